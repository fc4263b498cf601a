"""Limits on what one node may ask of a server at once; beyond them it is asked to retry later.

Per caller, identified by certificate: calls per second (a token bucket that holds two seconds' worth), open
calls, and bytes of bodies in flight, of requests and of answers that are not read yet. Edge servers trust one
another and may call ten times as often. Callers without a valid certificate never get this far. This is no
limit on what all nodes together may ask. How slowly a request may arrive is limited where it is received, in
`protocol.grpc_transport`. Rejections are counted by reason; reasons are kept short and few, because a
rejected caller can influence them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.wording import escape_control

MOST_OPEN_CALLS = 128
"""Calls of one node at a time; an honest one has a handful open."""

_BURST_SECONDS = 2.0
_EDGE_FACTOR = 10.0
"""Edge servers elect, command and exchange models; a device makes a few calls per edge round."""


class BusyError(RejectedError):
    """The caller asks too much at once; it may retry."""


class TooSlowError(RejectedError):
    """The caller takes too long to send its request."""


@dataclass(slots=True)
class CallerQuota:
    """What one caller has in flight.

    Attributes:
        tokens: how many calls it may make now.
        filled_at: when the tokens were last counted.
        open_calls: its calls in progress.
        body_bytes: total size of the bodies of these calls.
    """

    tokens: float
    filled_at: float
    open_calls: int = 0
    body_bytes: int = 0


class RateLimiter:
    """Admits or rejects calls.

    Args:
        calls_per_second: for one device or operator, in the long run.
        bytes_in_flight: for one caller; a single body may be larger.
        now: a monotonic clock.
    """

    def __init__(
        self, calls_per_second: float, bytes_in_flight: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._most_bytes, self._now = calls_per_second, bytes_in_flight, now
        self._quotas: dict[Identity, CallerQuota] = {}

    @contextmanager
    def admit(self, caller: Identity) -> Iterator["AdmittedCall"]:
        """Admits one call, until the context ends.

        Raises:
            BusyError: the caller makes too many calls.
        """
        rate = self._rate * (_EDGE_FACTOR if caller.role == "edge" else 1.0)
        quota = self._quotas.setdefault(caller, CallerQuota(_count_tokens(rate), self._now()))
        # Taken even if the call is rejected below: rejecting costs time, too.
        self._take_token(quota, rate)
        if quota.open_calls >= MOST_OPEN_CALLS:
            raise BusyError(f"more than {MOST_OPEN_CALLS} calls at a time")
        call = AdmittedCall(quota, self._most_bytes)
        quota.open_calls += 1
        try:
            yield call
        finally:
            quota.open_calls -= 1
            quota.body_bytes -= call.body_bytes

    def _take_token(self, quota: CallerQuota, rate: float) -> None:
        now = self._now()
        gained = (now - quota.filled_at) * rate
        quota.tokens, quota.filled_at = min(_count_tokens(rate), quota.tokens + gained), now
        if quota.tokens < 1:
            raise BusyError(f"more than {rate:g} calls a second")
        quota.tokens -= 1


def _count_tokens(rate: float) -> float:
    """How many calls a caller may make at once."""
    return max(1.0, _BURST_SECONDS * rate)


class AdmittedCall:
    """A call that was admitted; its bodies are counted before they are received or sent."""

    def __init__(self, quota: CallerQuota, most_bytes: int) -> None:
        self._quota, self._most_bytes = quota, most_bytes
        self.body_bytes = 0

    def add_body(self, body_bytes: int) -> None:
        """Counts a body against the caller's quota.

        Raises:
            BusyError: together with the bodies of its other calls it is too much.
        """
        # A body on its own always passes: a model may be larger than the limit.
        others = self._quota.body_bytes
        if body_bytes and others and others + body_bytes > self._most_bytes:
            raise BusyError(f"more than {self._most_bytes} bytes in flight")
        self.body_bytes += body_bytes
        self._quota.body_bytes += body_bytes


MOST_CHARACTERS = 200
MOST_REASONS = 50
MOST_REASONS_OF_ONE = 10
"""Different reasons that one caller may add; the rest are for others."""
OTHERS = "other reasons"
ALWAYS_LOGGED = 10
LOGGED_EVERY = 100


def shorten(reason: str) -> str:
    """A reason on one line and not too long: it may quote what came in, and that may be anything."""
    reason = escape_control(reason[: 2 * MOST_CHARACTERS])
    return reason if len(reason) <= MOST_CHARACTERS else reason[: MOST_CHARACTERS - 1] + "…"


def count_rejection(counts: dict[str, int], reason: str, added: set[str]) -> int:
    """Counts one more rejection; beyond a limit, new reasons are counted together.

    Args:
        counts: how often each reason was counted.
        reason: why the call was rejected.
        added: the reasons that this caller was the first to be rejected for.

    Returns:
        How often this reason has been counted.
    """
    name = shorten(reason)
    # Reasons may quote the caller, who could otherwise fill the memory, or hide the reasons of others.
    if name not in counts:
        if len(counts) >= MOST_REASONS or len(added) >= MOST_REASONS_OF_ONE:
            name = OTHERS
        else:
            added.add(name)
    counts[name] = counts.get(name, 0) + 1
    return counts[name]


def should_log(times: int) -> bool:
    """Whether to log the n-th rejection for a reason: a flood must not fill the disk."""
    return times <= ALWAYS_LOGGED or times % LOGGED_EVERY == 0
