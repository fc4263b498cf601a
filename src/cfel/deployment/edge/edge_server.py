"""An edge server as the coordinator and other edge servers see it: its endpoints, and how it catches up.

    plan   have the devices train, aggregate what arrived        (l, r, s) → (l, r + 1, 0)
    fetch  get the neighbours' models for a gossip step          (l, r, s)
    mix    average them with the weights given                   (l, r, s) → (l, r, s + 1), or (l + 1, 0, 0)
    close  write the finished global round to the log

What `plan` does is in `training`, `fetch` and `mix` are in `gossip`, `close` is in `round_log`.
"""

from dataclasses import replace
from pathlib import Path

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.gossip import EdgeGossip
from cfel.deployment.edge.neighbour_models import NeighbourModels
from cfel.deployment.edge.progress import EdgeProgress
from cfel.deployment.edge.round_log import EdgeLog
from cfel.deployment.edge.state import EdgeState
from cfel.deployment.edge.training import EdgeTraining
from cfel.deployment.payloads import EncodedModels
from cfel.deployment.positions import Position
from cfel.deployment.protocol.calls import Calls, Endpoint, serve
from cfel.deployment.protocol.coordinator_requests import (
    CloseCommand,
    EstimateAnswer,
    EstimateCommand,
    FetchAnswer,
    FetchCommand,
    MeanMetricAnswer,
    MeanMetricRequest,
    MixAnswer,
    MixCommand,
    NewestAnswer,
    NewestRequest,
    PlanAnswer,
    PlanCommand,
)
from cfel.deployment.protocol.device_requests import Confirmation
from cfel.deployment.protocol.peer_requests import PeerModelAnswer, PeerModelRequest
from cfel.deployment.security.identity import Identity
from cfel.rounds.ending import is_over
from cfel.rounds.parameters import SimulationParameters
from cfel.world import World


class EdgeServer:
    """One edge server.

    Args:
        world: what is run.
        simulation: how much of the test set to evaluate on, and when the run ends.
        number: its cluster.
        directory: where its state and its log are kept.
        devices: where its devices get their orders.
        calls: how it reaches other edge servers, and itself.
        compute: where arithmetic is done.
        models: where its models are kept encoded.
        gossip_seconds: how long to try to fetch a neighbour's model.

    Attributes:
        log: its log.
        progress: where it is.
        training: its edge rounds.
    """

    def __init__(
        self,
        world: World,
        simulation: SimulationParameters,
        number: int,
        directory: Path,
        devices: DeviceService,
        calls: Calls,
        compute: ComputeThread,
        models: EncodedModels,
        gossip_seconds: float,
    ) -> None:
        self.number, self._devices = number, devices
        self.log = EdgeLog(directory, number, calls, compute, gossip_seconds)
        self.progress = EdgeProgress(world, directory, devices, compute)
        self.training = EdgeTraining(world, self.progress, devices, compute)
        self._neighbours = NeighbourModels(calls, world.start, gossip_seconds)
        self._gossip = EdgeGossip(world, simulation, number, self.progress, self._neighbours, models, compute)
        rounds, budget = world.setting.rounds, world.setting.budget
        if self.log.records and is_over(rounds, budget, self.log.records[-1]):
            self.log.finished.set()

    @property
    def state(self) -> EdgeState:
        """Where it is."""
        return self.progress.state

    @property
    def phase(self) -> str:
        """What it is doing, in the words of `cfel.status`."""
        return "finished" if self.log.finished.is_set() else self.progress.phase

    def endpoints(self) -> list[Endpoint]:
        """What other edge servers may call."""
        return [
            serve(NewestRequest, self.newest),
            serve(EstimateCommand, self.estimate),
            serve(PlanCommand, self.plan),
            serve(FetchCommand, self.fetch),
            serve(MixCommand, self.mix),
            serve(CloseCommand, self.close),
            serve(PeerModelRequest, self.peer_model),
            serve(MeanMetricRequest, self.mean_metric),
            *self.log.endpoints(),
        ]

    async def newest(self, caller: Identity, request: NewestRequest) -> NewestAnswer:
        """Returns where this server is, and the newest state of a coordinator it has seen."""
        del caller, request
        connected = tuple(self._devices.connected())
        return NewestAnswer(self.state.position, self.training.newest_state, connected)

    async def estimate(self, caller: Identity, command: EstimateCommand) -> EstimateAnswer:
        """Has its devices estimate σ² and G² at its model."""
        self.progress.check_term(caller, command)
        await self._catch_up(command.at)
        return await self.training.estimate(command)

    async def plan(self, caller: Identity, command: PlanCommand) -> PlanAnswer:
        """Carries out an edge round, or returns the stored answer if it has done so."""
        self.progress.check_term(caller, command)
        stored = self.state.reports.get(command.at)
        if stored is not None:
            return stored
        if command.at not in self.training.running:
            await self._catch_up(command.at)
        return await self.training.carry_out(command)

    async def fetch(self, caller: Identity, command: FetchCommand) -> FetchAnswer:
        """Fetches others' models for a gossip step."""
        self.progress.check_term(caller, command)
        return await self._gossip.fetch(command)

    async def mix(self, caller: Identity, command: MixCommand) -> MixAnswer:
        """Averages its model with others'."""
        self.progress.check_term(caller, command)
        return await self._gossip.mix(command)

    async def close(self, caller: Identity, command: CloseCommand) -> Confirmation:
        """Writes a finished global round to its log."""
        self.progress.check_term(caller, command)
        await self.log.write_round(caller, command)
        return Confirmation()

    async def peer_model(self, caller: Identity, request: PeerModelRequest) -> PeerModelAnswer:
        """Returns its model to another edge server."""
        del caller
        return await self._gossip.give_model(request)

    async def mean_metric(self, caller: Identity, request: MeanMetricRequest) -> MeanMetricAnswer:
        """Evaluates the mean of all edge models."""
        del caller, request
        return await self._gossip.evaluate_mean()

    async def adopt_end(self, number: int) -> None:
        """Takes over the end of the experiment from another edge server: its log and, if needed, its model.

        Raises:
            DeploymentError: the other one cannot be reached, or rejects.
        """
        missed = await self.log.fetch_missed(Identity("edge", number))
        end, model = await self._neighbours.fetch_present(number)
        async with self.progress.busy:
            if end[0] - self.state.position[0] > 1:
                await self.progress.save(replace(self.state, position=end, model=model, before=model))
            elif self.state.position < end:
                await self.progress.save(replace(self.state, position=end))
        await self.log.adopt_end(missed, end[0])

    async def _catch_up(self, at: Position) -> None:
        """Moves to a position that the others have reached without this edge server.

        After a gossip step missed it keeps its model, as gossip among the others assumed. After a longer
        absence its model is out of date, and it takes that of a neighbour.
        """
        async with self.progress.busy:
            if self.state.position >= at:
                return
            if at[0] - self.state.position[0] <= 1:
                await self.progress.save(replace(self.state, position=at))
                return
            model = await self._neighbours.fetch_any_present(self._gossip.partners)
            await self.progress.save(replace(self.state, position=at, model=model, before=model))
