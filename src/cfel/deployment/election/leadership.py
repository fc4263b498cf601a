"""Who may command an edge server: the leader of the newest term that its own member of the election knows.

A command proves nothing by the term it names. It is compared with what the election has shown, so an edge
server that nobody elected cannot command the others, whatever term it claims. One that was elected and sends
a command that is not valid is not obeyed for a while.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError, StaleTermError

_LOOK_SECONDS = 0.01

Election = Callable[[], tuple[int, int | None]]
"""The newest term that the edge server knows, and who leads it, if known."""

OnFault = Callable[[int, str], None]
"""Called with an edge server and what it did wrong."""


class Leadership:
    """Admits commands of the leader.

    Args:
        election: what the election has shown.
        wait_seconds: how long a command may be ahead of its sender's first heartbeat.
        on_fault: called for commands of others than the leader.
        distrust_seconds: how long a leader is not obeyed after an invalid command.
        on_distrust: called when that begins.
    """

    def __init__(
        self,
        election: Election,
        wait_seconds: float,
        on_fault: OnFault,
        distrust_seconds: float = 0.0,
        on_distrust: OnFault = lambda _number, _what: None,
    ) -> None:
        self._election, self._wait_seconds, self._on_fault = election, wait_seconds, on_fault
        self._distrust_seconds, self._on_distrust = distrust_seconds, on_distrust
        self._distrusted_until: dict[int, float] = {}

    @contextmanager
    def check(self, caller: Identity) -> Iterator[None]:
        """Distrusts the caller if its command turns out to be invalid: no honest coordinator sends such."""
        try:
            yield
        except RejectedError as error:
            now = asyncio.get_running_loop().time()
            self._distrusted_until[caller.number] = now + self._distrust_seconds
            self._on_distrust(caller.number, f"sent a command that is not valid: {error}")
            raise

    async def admit(self, caller: Identity, term: int) -> None:
        """Returns if the caller leads this term, as soon as that is known.

        Raises:
            StaleTermError: it does not, as far as this edge server knows.
        """
        clock = asyncio.get_running_loop().time
        if clock() < self._distrusted_until.get(caller.number, 0.0):
            raise StaleTermError(f"commands of {caller} are not carried out for now: one was not valid")
        deadline = clock() + self._wait_seconds
        while (known := self._election()) != (term, caller.number):
            if term < known[0]:
                raise StaleTermError(f"stale term {term} of {caller}: term {known[0]} has begun")
            # A term has one leader, so there is nothing to wait for once it is known.
            if (known[0] == term and known[1] is not None) or clock() > deadline:
                leader = "nobody" if known[1] is None else f"edge-{known[1]}"
                reason = f"a command of term {term}, but {leader} leads term {known[0]}"
                self._on_fault(caller.number, f"sent {reason}")
                raise StaleTermError(f"{reason}, as far as known here")
            await asyncio.sleep(_LOOK_SECONDS)
