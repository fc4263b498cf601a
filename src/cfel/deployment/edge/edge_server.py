"""An edge server without its devices: what it does on commands, its log, and how a run ends for it.

    plan   have the devices train, aggregate what arrived    (l, r, s) → (l, r + 1, 0)      `training`
    fetch  get the neighbours' models for a gossip step      (l, r, s)                      `gossip`
    mix    average them with the weights given               (l, r, s) → (l, r, s + 1),     `gossip`
                                                             or (l + 1, 0, 0)
    close  write the finished global round to the log                                       `round_log`
    stop   end with an error: the training of all devices diverged

A position (l, r, s) counts global rounds, edge rounds and gossip steps (`positions`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.disk_writes import DiskWrites
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.gossip import EdgeGossip
from cfel.deployment.edge.neighbour_models import NeighbourModels
from cfel.deployment.edge.peer_faults import PeerFaults
from cfel.deployment.edge.progress import EdgeProgress
from cfel.deployment.edge.round_log import EdgeLog
from cfel.deployment.edge.state import EdgeState
from cfel.deployment.edge.training import EdgeTraining
from cfel.deployment.election.leadership import Leadership
from cfel.deployment.payloads import EncodedModels
from cfel.deployment.protocol.calls import Calls, Endpoint, serve
from cfel.deployment.protocol.coordinator_requests import NewestAnswer, NewestRequest, StopCommand
from cfel.deployment.protocol.device_requests import Confirmation
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.rounds.kernel import is_over
from cfel.runlog import RoundRecord
from cfel.world import World


class EdgeServer:
    """One edge server.

    Args:
        world: what is run.
        number: its cluster.
        directory: where its state and its log are kept.
        devices: where its devices get their orders.
        calls: how it reaches other edge servers, and itself.
        compute: where arithmetic is done.
        disk: what it writes.
        models: where its models are kept encoded.
        gossip_seconds: how long to try to fetch a neighbour's model.
        faults: where faults of other edge servers are noted.
        leadership: who may command.
        is_gone: whether an edge server has been silent for too long to wait for it.

    Attributes:
        log: its log.
        progress: where it is.
        training: its edge rounds.
        stopped: set when the run has to end because the training of all devices diverged.
    """

    def __init__(
        self,
        world: World,
        number: int,
        directory: Path,
        devices: DeviceService,
        calls: Calls,
        compute: ComputeThread,
        disk: DiskWrites,
        models: EncodedModels,
        gossip_seconds: float,
        faults: PeerFaults,
        leadership: Leadership,
        is_gone: Callable[[int], bool],
    ) -> None:
        self.number, self._devices, self._leadership = number, devices, leadership
        self._neighbours = NeighbourModels(calls, world.start, gossip_seconds, faults, is_gone)
        self.progress = EdgeProgress(world, number, directory, devices, self._neighbours, disk, leadership)
        self.log = EdgeLog(directory, number, self.progress, calls, disk, gossip_seconds)
        self.training = EdgeTraining(world, self.progress, devices, compute)
        self._gossip = EdgeGossip(world, number, self.progress, self._neighbours, models, compute)
        self._faults, self.stopped = faults, asyncio.Event()
        if self.log.records and self._ends(self.log.records[-1]):
            self.log.finished.set()

    def _ends(self, record: RoundRecord) -> bool:
        """Whether the experiment is over with this round."""
        setting = self.progress.world.setting
        return is_over(setting.rounds, setting.budget, setting.metrics[0], record)

    @property
    def state(self) -> EdgeState:
        """Where it is."""
        return self.progress.state

    @property
    def phase(self) -> str:
        """What it is doing, in the words of `cfel.status`."""
        return "finished" if self.log.finished.is_set() else self.progress.phase

    @property
    def is_idle(self) -> bool:
        """Whether it carries out no command, and could carry one out."""
        return not self.progress.busy.locked() and not self.progress.is_stuck

    def endpoints(self) -> list[Endpoint]:
        """What other edge servers may call."""
        parts = (self.training, self._gossip, self.log)
        own = [serve(NewestRequest, self.newest), serve(StopCommand, self.stop)]
        return own + [each for part in parts for each in part.endpoints()]

    async def newest(self, caller: Identity, request: NewestRequest) -> NewestAnswer:
        """Returns where this server is, and the newest state of a coordinator it has seen."""
        await self._leadership.admit(caller, request.term)
        return NewestAnswer(
            self.state.position,
            self.training.newest_state,
            tuple(self._devices.list_connected()),
            bool(self.progress.loss) or self.log.has_lost_proposal,
            self.log.newest_proposal,
        )

    async def stop(self, caller: Identity, command: StopCommand) -> Confirmation:
        """Lets the run end with an error, unless devices here can still train."""
        await self.progress.admit(caller, command)
        # No proof against the coordinator: this edge server may have missed the last round.
        if self._devices.has_answers:
            raise RejectedError("stop: training has not diverged at all devices here")
        self.stopped.set()
        return Confirmation()

    async def adopt_end(self, number: int) -> None:
        """Takes over the end of the experiment from another edge server: its log and, if needed, its model.

        Raises:
            DeploymentError: the other one cannot be reached, or rejects.
        """
        missed = await self.log.fetch_missed(Identity("edge", number))
        records = [*self.log.records, *missed]
        if not records or not self._ends(records[-1]):
            self._faults.note(
                number, "answer", "says that the experiment is over, but its log does not show it"
            )
            raise RejectedError("its log does not show the end")
        end, model = await self._neighbours.fetch_present(number)
        async with self.progress.busy:
            # Further behind than one global round, its own model is out of date.
            if self.progress.loss or end[0] - self.state.position[0] > 1:
                await self.progress.save(replace(self.state, position=end, model=model, previous_model=model))
            elif self.state.position < end:
                await self.progress.save(replace(self.state, position=end))
        await self.log.adopt_end(missed, end[0])
