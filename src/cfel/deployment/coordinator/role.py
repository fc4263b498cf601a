"""The coordinator's role at one edge server: starts a `Coordinator` when elected, ends it with its term.

It also resigns for a while after a coordinator failed, so that another edge server takes over. Who is elected
is decided in `election`, what a coordinator does in `coordinator`.
"""

import asyncio
import logging
from collections.abc import Callable

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.coordinator.coordinator import Coordinator
from cfel.deployment.coordinator.edge_calls import DeposedError
from cfel.deployment.disk_writes import DiskHealth
from cfel.deployment.edge.edge_server import EdgeServer
from cfel.deployment.election.member import Member
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.calls import Calls
from cfel.deployment.transport.grpc_transport import OnRejection
from cfel.errors import AllDivergedError
from cfel.rounds.parameters import SimulationParameters
from cfel.world import World

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.01
_DISK_LOOK_SECONDS = 0.5
_RESTS_WITHOUT_DISK = 8.0
# The longest rest after a failure, in election timeouts.
_MOST_RESTS = 64.0


class CoordinatorRole:
    """Runs a coordinator while its edge server is the leader.

    Args:
        server: its edge server.
        calls: how to reach all edge servers, its own included.
        compute: where plans are made.
        disk: whether its edge server can write.
        world: what is run.
        simulation: accounts, evaluation, when to stop.
        deployment: deadlines.
        on_rejection: called for devices with implausible estimates or measurements.
        is_gone: whether an edge server has been silent for too long to wait for it.
    """

    def __init__(
        self,
        server: EdgeServer,
        calls: Calls,
        compute: ComputeThread,
        disk: DiskHealth,
        world: World,
        simulation: SimulationParameters,
        deployment: DeploymentParameters,
        on_rejection: OnRejection,
        is_gone: Callable[[int], bool],
    ) -> None:
        self._on_rejection, self._is_gone = on_rejection, is_gone
        self._server, self._calls, self._compute, self._disk = server, calls, compute, disk
        self._world, self._simulation, self._deployment = world, simulation, deployment
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._failures = 0
        self._failure, self._failed_at = "", server.state.position

    def change(self, term: int, leader: int | None, member: Member) -> None:
        """Starts a coordinator if its edge server leads from now on; ends the one of an earlier term."""
        # A term has one coordinator, and the old one may still be waiting for answers.
        self.leave()
        if leader == self._server.number:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._lead(term, member))
            self._watch = loop.create_task(self._watch_disk(term, member))

    @property
    def problem(self) -> str:
        """Why its last term failed, until the run makes progress again; else empty."""
        return self._failure if self._server.state.position == self._failed_at else ""

    async def wait_for_end(self) -> None:
        """Returns when the coordinator, if it runs here, has released all edge servers."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def leave(self) -> None:
        """Ends the coordinator at once."""
        for task in (self._task, self._watch):
            if task is not None and not task.done():
                task.cancel()

    async def _watch_disk(self, term: int, member: Member) -> None:
        """Leaves the role to another edge server if this one cannot write: its own rounds would stop all."""
        while not self._disk.is_stuck:
            await asyncio.sleep(_DISK_LOOK_SECONDS)
        _LOG.warning("leaves the coordinator's role to another edge server: the disk here takes no writes")
        member.resign(term, _RESTS_WITHOUT_DISK * self._deployment.election_seconds)

    async def _lead(self, term: int, member: Member) -> None:
        def is_leading() -> bool:
            return member.state.term == term and member.is_leading()

        coordinator = Coordinator(
            self._world,
            self._simulation,
            self._deployment,
            term,
            self._calls,
            self._compute,
            is_leading,
            self._server.number,
            self._on_rejection,
            self._is_gone,
        )
        while not is_leading():
            # Elected, but not yet answered by a majority.
            await asyncio.sleep(_LOOK_SECONDS)
        try:
            await coordinator.lead()
        except DeposedError as error:
            _LOG.warning("%s", error)
            # Its lease may have been renewed meanwhile: a leader must not stay without a coordinator.
            member.resign(term, self._deployment.election_seconds)
        except AllDivergedError as error:
            # Edge servers that were told end. Should this one not, it must not lead without a coordinator.
            _LOG.error("%s", error)
            member.resign(term, self._deployment.election_seconds)
        except Exception as error:  # noqa: BLE001 — logged with its trace; another edge server must take over
            self._give_up(term, member, error)
        else:
            self._failures = 0

    def _give_up(self, term: int, member: Member, error: Exception) -> None:
        """Leaves the role to another edge server; should that fail too, each waits longer."""
        self._failures += 1
        # Doubled each time, so that a failure that all edge servers share does not turn into an endless
        # election.
        rest_seconds = self._deployment.election_seconds * min(4.0 * 2**self._failures, _MOST_RESTS)
        self._failure, self._failed_at = (
            f"coordinator of term {term} failed: {error!r}",
            self._server.state.position,
        )
        _LOG.error("%s; asks for no votes for %.1f s", self._failure, rest_seconds, exc_info=error)
        member.resign(term, rest_seconds)
