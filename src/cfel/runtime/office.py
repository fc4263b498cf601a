"""The coordinator's office at one edge server: taken when it is elected, left when it is not any more."""

import asyncio
import logging
from collections.abc import Mapping

from cfel.rounds import SimulationParameters
from cfel.runtime.coordinator import Coordinator, DeposedError
from cfel.runtime.edge_server import EdgeServer
from cfel.runtime.identity import Identity
from cfel.runtime.member import Member
from cfel.runtime.messages import Message
from cfel.runtime.parameters import DeploymentParameters
from cfel.runtime.transport import Calls, Method
from cfel.runtime.workroom import Workroom
from cfel.world import World

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.01


class WithOwn:
    """Calls where one's own methods are called without a network.

    Args:
        own: whose they are.
        calls: for everybody else.
        methods: one's own.
    """

    def __init__(self, own: Identity, calls: Calls, methods: Mapping[str, Method]) -> None:
        self._own, self._calls, self._methods = own, calls, methods

    async def call(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Calls`."""
        if to == self._own:
            return await self._methods[method].handle(self._own, message)
        return await self._calls.call(to, method, message, seconds)


class Office:
    """Holds the office while its edge server is the leader.

    Args:
        server: its edge server.
        calls: how to reach all edge servers, its own included.
        workroom: where plans are made.
        world: what is run.
        simulation: accounts, evaluation, when to stop.
        deployment: deadlines.
    """

    def __init__(
        self,
        server: EdgeServer,
        calls: Calls,
        workroom: Workroom,
        world: World,
        simulation: SimulationParameters,
        deployment: DeploymentParameters,
    ) -> None:
        self._server, self._calls, self._workroom = server, calls, workroom
        self._world, self._simulation, self._deployment = world, simulation, deployment
        self._term: asyncio.Task[None] | None = None

    def change(self, term: int, leader: int | None, member: Member) -> None:
        """Takes the office if its edge server leads from now on, else leaves it."""
        self._server.obey(term)
        self.leave()
        if leader == self._server.number:
            self._term = asyncio.get_running_loop().create_task(self._lead(term, member))

    async def closing(self) -> None:
        """Returns when the coordinator, if it sits here, has told everybody that the experiment is over."""
        if self._term is not None:
            await asyncio.wait([self._term])

    def leave(self) -> None:
        """Leaves the office at once."""
        if self._term is not None and not self._term.done():
            self._term.cancel()

    async def _lead(self, term: int, member: Member) -> None:
        def in_office() -> bool:
            return member.state.term == term and member.leads()

        coordinator = Coordinator(
            self._world,
            self._simulation,
            self._deployment,
            term,
            self._calls,
            self._workroom,
            in_office,
            self._server.number,
        )
        while not in_office():
            # Elected, but not yet answered by a majority.
            await asyncio.sleep(_LOOK_SECONDS)
        try:
            await coordinator.lead()
        except DeposedError as error:
            _LOG.warning("%s", error)
