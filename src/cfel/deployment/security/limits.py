"""How much one member may ask of a server at once; who asks more is told to come again later.

Per caller, by certificate: calls per second (a bucket that fills steadily and holds two seconds' worth),
calls that are open, and bytes of bodies that are under way. Strangers never get this far. Not a
limit on what all members together may ask.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError

MOST_OPEN_CALLS = 128
"""Calls of one member at a time; an honest one has a handful open."""

_BURST_SECONDS = 2.0


class BusyError(RejectedError):
    """The caller asks too much at once; it may come again."""


class TooSlowError(RejectedError):
    """The caller takes too long to say what it wants."""


@dataclass(slots=True)
class Visitor:
    """What one member has under way.

    Attributes:
        tokens: calls it may make at once.
        filled_at: when they were counted.
        open_calls: calls under way.
        body_bytes: of the bodies of these calls.
    """

    tokens: float
    filled_at: float
    open_calls: int = 0
    body_bytes: int = 0


class Turnstile:
    """Lets calls in.

    Args:
        calls_per_second: of one member, in the long run.
        bytes_in_flight: of one member; a single body may be larger.
        now: a clock that only runs forward.
    """

    def __init__(
        self, calls_per_second: float, bytes_in_flight: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._most_bytes, self._now = calls_per_second, bytes_in_flight, now
        self._visitors: dict[Identity, Visitor] = {}

    @contextmanager
    def visit(self, caller: Identity) -> Iterator["Visit"]:
        """One call, from its begin to its end.

        Raises:
            BusyError: the caller makes too many.
        """
        visitor = self._visitors.setdefault(caller, Visitor(self._most_tokens, self._now()))
        self._take_token(visitor)
        if visitor.open_calls >= MOST_OPEN_CALLS:
            raise BusyError(f"more than {MOST_OPEN_CALLS} calls at a time")
        visit = Visit(visitor, self._most_bytes)
        visitor.open_calls += 1
        try:
            yield visit
        finally:
            visitor.open_calls -= 1
            visitor.body_bytes -= visit.body_bytes

    @property
    def _most_tokens(self) -> float:
        return max(1.0, _BURST_SECONDS * self._rate)

    def _take_token(self, visitor: Visitor) -> None:
        now = self._now()
        gained = (now - visitor.filled_at) * self._rate
        visitor.tokens, visitor.filled_at = min(self._most_tokens, visitor.tokens + gained), now
        if visitor.tokens < 1:
            raise BusyError(f"more than {self._rate:g} calls a second")
        visitor.tokens -= 1


class Visit:
    """A call that was let in; it says what it brings before it brings it."""

    def __init__(self, visitor: Visitor, most_bytes: int) -> None:
        self._visitor, self._most_bytes = visitor, most_bytes
        self.body_bytes = 0

    def brings(self, body_bytes: int) -> None:
        """Notes the size of the body.

        Raises:
            BusyError: with those of the caller's other calls it is too much.
        """
        others = self._visitor.body_bytes
        if others and others + body_bytes > self._most_bytes:
            raise BusyError(f"more than {self._most_bytes} bytes in flight")
        self.body_bytes += body_bytes
        self._visitor.body_bytes += body_bytes
