"""When each other edge server was last heard of, by whatever passed between the two."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls, Handler, Method
from cfel.deployment.transport.messages import Message
from cfel.errors import RejectedError

# In intervals at which everybody is asked.
_ALIVE, _LOST = 2.5, 5.0


class Contacts:
    """The other edge servers, as seen from one.

    Args:
        others: their numbers.
        interval_seconds: how often each of them is asked for a sign of life.
        now: a clock that only runs forward.
    """

    def __init__(self, others: Iterable[int], interval_seconds: float, now: Callable[[], float]) -> None:
        self.interval_seconds, self._now = interval_seconds, now
        self._began = now()
        self._heard: dict[int, float | None] = dict.fromkeys(others)

    def heard(self, whom: Identity) -> None:
        """Notes a sign of life."""
        if whom.role == "edge" and whom.number in self._heard:
            self._heard[whom.number] = self._now()

    def state(self, number: int) -> str:
        """One of `cfel.status.EDGE_STATES`; suspect, too, as long as it was never heard of."""
        if number not in self._heard:
            return "alive"
        at = self._heard[number]
        silence = (self._now() - (self._began if at is None else at)) / self.interval_seconds
        if silence > _LOST:
            return "lost"
        return "alive" if at is not None and silence <= _ALIVE else "suspect"

    def lost(self) -> list[int]:
        """Those that have been silent for long."""
        return [number for number in self._heard if self.state(number) == "lost"]

    def noting(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """The methods, where each call is a sign of life of its caller."""
        return {name: replace(method, handle=self._noting(method)) for name, method in methods.items()}

    def _noting(self, method: Method) -> Handler:
        async def handle(caller: Identity, message: Message) -> Message:
            self.heard(caller)
            return await method.handle(caller, message)

        return handle


class NotedCalls:
    """Calls where each answer, a refusal too, is a sign of life.

    Args:
        calls: how others are reached.
        contacts: where it is noted.
    """

    def __init__(self, calls: Calls, contacts: Contacts) -> None:
        self._calls, self._contacts = calls, contacts

    async def call(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Calls`."""
        try:
            answer = await self._calls.call(to, method, message, seconds)
        except RejectedError:
            self._contacts.heard(to)
            raise
        self._contacts.heard(to)
        return answer
