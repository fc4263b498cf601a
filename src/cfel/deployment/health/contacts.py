"""Which edge servers are in touch: when each was last heard of, and when it last answered.

Every call and every answer counts, whatever it is about. Who is asked when, and what follows, is up to
`edge.peer_monitor`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from cfel.deployment.protocol.calls import Answer, AnyRequest, Calls, Endpoint, Request
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError

# All in intervals at which the others are asked: when one counts as suspect, and as lost,
_ALIVE, _LOST = 2.5, 5.0
# and how long one must be silent at least until the others continue without it.
_LEAST_GONE = 2.0


class PeerContacts:
    """When each other edge server was last heard of, in whatever call, and when it last answered.

    Args:
        others: their numbers.
        interval_seconds: how often each of them is asked for a sign of life.
        now: a monotonic clock.
    """

    def __init__(self, others: Iterable[int], interval_seconds: float, now: Callable[[], float]) -> None:
        self.interval_seconds, self._now = interval_seconds, now
        self._started_at = now()
        self._heard_at: dict[int, float | None] = dict.fromkeys(others)
        self._answered_at = dict.fromkeys(self._heard_at, self._started_at)
        # Since when each has been in touch without a break.
        self._there_since = dict.fromkeys(self._heard_at, self._started_at)

    def note(self, node: Identity) -> None:
        """Notes a sign of life."""
        if node.role == "edge" and node.number in self._heard_at:
            if self.state(node.number) != "alive":
                self._there_since[node.number] = self._now()
            self._heard_at[node.number] = self._now()

    def note_answer(self, node: Identity) -> None:
        """Notes that an edge server can be reached, which is more than a sign of life."""
        self.note(node)
        if node.role == "edge" and node.number in self._answered_at:
            self._answered_at[node.number] = self._now()

    def state(self, number: int) -> str:
        """One of `cfel.status.EDGE_STATES`; suspect, too, until it is heard of for the first time."""
        if number not in self._heard_at:
            return "alive"
        at = self._heard_at[number]
        silence = self._silence(number) / self.interval_seconds
        if silence > _LOST:
            return "lost"
        return "alive" if at is not None and silence <= _ALIVE else "suspect"

    def is_gone(self, number: int, gone_seconds: float) -> bool:
        """Whether the others should continue without an edge server: it answers no calls.

        Its own calls do not count. One behind a firewall may greet the others, but carries out no command.
        """
        if number not in self._answered_at:
            return False
        # One that was asked only twice since it last answered may just have been slow.
        most = max(gone_seconds, _LEAST_GONE * self.interval_seconds)
        return self._now() - self._answered_at[number] > most

    def find_unreachable(self) -> list[int]:
        """Edge servers that call, but have not answered for long."""
        # One that has just been started calls before it is asked for the first time.
        since = self._now() - _LOST * self.interval_seconds
        alive = [i for i in self._answered_at if self.state(i) == "alive"]
        return [i for i in alive if max(self._answered_at[i], self._there_since[i]) < since]

    def _silence(self, number: int) -> float:
        at = self._heard_at[number]
        return self._now() - (self._started_at if at is None else at)

    def find_lost(self) -> list[int]:
        """Edge servers that have been silent for long."""
        return [number for number in self._heard_at if self.state(number) == "lost"]

    def watch_endpoint(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint where each call is a sign of life of its caller."""

        async def handle(caller: Identity, request: AnyRequest) -> Any:  # noqa: ANN401 — any answer
            self.note(caller)
            return await endpoint.handle(caller, request)

        return replace(endpoint, handle=handle)


@dataclass(frozen=True, slots=True)
class WatchedCalls:
    """Calls where each answer, a rejection too, is a sign of life."""

    calls: Calls
    contacts: PeerContacts

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        try:
            answer = await self.calls.call(to, request, seconds)
        except RejectedError:
            self.contacts.note_answer(to)
            raise
        self.contacts.note_answer(to)
        return answer
