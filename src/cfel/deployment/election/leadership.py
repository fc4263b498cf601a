"""Who may command an edge server: the leader of the newest term that its own member of the election knows.

A command proves nothing by the term it names. It is compared with what the election has shown, so an edge
server that nobody elected cannot command the others, whatever term it claims.
"""

import asyncio
from collections.abc import Callable

from cfel.deployment.security.identity import Identity
from cfel.errors import StaleTermError

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
    """

    def __init__(self, election: Election, wait_seconds: float, on_fault: OnFault) -> None:
        self._election, self._wait_seconds, self._on_fault = election, wait_seconds, on_fault

    async def admit(self, caller: Identity, term: int) -> None:
        """Returns if the caller leads this term, as soon as that is known.

        Raises:
            StaleTermError: it does not, as far as this edge server knows.
        """
        clock = asyncio.get_running_loop().time
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
