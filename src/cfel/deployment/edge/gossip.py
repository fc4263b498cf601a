"""An edge server's gossip steps: it fetches its neighbours' models, averages them, and gives away its own.

    fetch  get the neighbours' models for a gossip step          (l, r, s)
    mix    average them with the weights given                   (l, r, s) → (l, r, s + 1), or (l + 1, 0, 0)

The coordinator makes the weights from who has whose model (`coordinator.partial_mixing`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.coordinator.check_state import check_rows, check_state
from cfel.deployment.edge.neighbour_models import NeighbourModels
from cfel.deployment.edge.progress import EdgeProgress
from cfel.deployment.payloads import EncodedModels
from cfel.deployment.positions import Position, after_gossip_step, ends_global_round
from cfel.deployment.protocol.calls import Endpoint, serve
from cfel.deployment.protocol.coordinator_requests import (
    FetchAnswer,
    FetchCommand,
    MeanMetricRequest,
    MixAnswer,
    MixCommand,
    ModelScores,
)
from cfel.deployment.protocol.peer_requests import PeerModelAnswer, PeerModelRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.learning.edge import mean_model, weighted_model
from cfel.learning.evaluate import evaluate
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.rounds.records import measure_each, take_means
from cfel.world import World


class EdgeGossip:
    """Carries out gossip steps.

    Args:
        world: what is run.
        number: the edge server.
        progress: where it is.
        neighbours: fetches models of others.
        models: where its own models are kept encoded.
        compute: where models are averaged and evaluated.
    """

    def __init__(
        self,
        world: World,
        number: int,
        progress: EdgeProgress,
        neighbours: NeighbourModels,
        models: EncodedModels,
        compute: ComputeThread,
    ) -> None:
        self._world, self._number = world, number
        self._progress, self._neighbours, self._models = progress, neighbours, models
        self._compute = compute
        self._workspace: Workspace | None = None

    def endpoints(self) -> list[Endpoint]:
        """What other edge servers may call."""
        return [
            serve(FetchCommand, self.fetch),
            serve(MixCommand, self.mix),
            serve(PeerModelRequest, self.give_model),
            serve(MeanMetricRequest, self.evaluate_mean),
        ]

    async def fetch(self, caller: Identity, command: FetchCommand) -> FetchAnswer:
        """Fetches others' models for a gossip step."""
        await self._progress.admit(caller, command)
        state, at = self._progress.state, command.position
        if state.gossip is not None and state.has_mixed(at):
            return FetchAnswer(state.position, (), state.gossip.rows)
        if at < state.position:
            return FetchAnswer(state.position, (), None)  # a late copy of the command: this step is over
        self._progress.phase = "gossip"
        wanted = [j for j in self._progress.active_neighbours(at) if j in command.present]
        models = await self._neighbours.fetch(command.term, at, wanted, state.model)
        return FetchAnswer(self._progress.state.position, tuple(sorted(models)), None)

    async def mix(self, caller: Identity, command: MixCommand) -> MixAnswer:
        """Averages its model with others', or returns the stored answer if it has done so."""
        await self._progress.admit(caller, command)
        at = command.position
        with self._progress.check(caller):
            check_state(self._world, command.state)
            check_rows(self._world, command.rows)
        weights = {j: weight for j, weight in enumerate(command.rows[self._number]) if weight}
        fetched: dict[int, FlatModel] = {}
        # Outside the lock, because fetching may take as long as `gossip_seconds`.
        if not self._progress.state.has_mixed(at):
            wanted = [j for j in weights if j != self._number]
            fetched = await self._neighbours.fetch(command.term, at, wanted, self._progress.state.model)
        async with self._progress.busy:
            state = self._progress.state
            if state.gossip is not None and state.has_mixed(at):
                return state.gossip
            self._progress.check_position(at)
            models = {**fetched, self._number: state.model}
            if missing := sorted(weights.keys() - models.keys()):
                raise RejectedError(f"models of edge servers {missing} are missing")
            mixed, answer = await self._compute.run(lambda: self._average(models, weights, command))
            after = replace(
                state,
                position=after_gossip_step(self._world, at),
                model=mixed,
                previous_model=state.model,
                gossip=answer,
                coordinator_state=command.state,
            )
            await self._progress.advance(after)
            # Models of a step are large; none of them is needed again.
            self._neighbours.forget()
        return answer

    def _average(
        self, models: Mapping[int, FlatModel], weights: Mapping[int, float], command: MixCommand
    ) -> tuple[FlatModel, MixAnswer]:
        mixed = weighted_model(models, weights)
        if ends_global_round(self._world, command.position):
            mixed = self._world.edge_rules.add_to_average(mixed)
        if not mixed.is_finite():
            raise RejectedError("the average of these models is not finite")
        answer = MixAnswer(command.position, command.rows, mixed.sha256().hex(), None)
        if not command.evaluate:
            return mixed, answer
        own = np.flatnonzero(self._world.setting.fleet.cluster == self._number).tolist()
        scores = self._evaluate(mixed, own)
        return mixed, msgspec.structs.replace(answer, **msgspec.structs.asdict(scores))

    def _evaluate(self, model: FlatModel, devices: Sequence[int]) -> ModelScores:
        """Evaluates a model on the test set, for these devices, too; to be called in the compute thread."""
        if self._workspace is None:
            world = self._world
            self._workspace = Workspace(world.task, world.training, world.compress)
        samples = self._world.evaluation.samples or None
        model = self._world.edge_rules.read_average(model)
        found = evaluate(model, self._workspace, samples, self._world.setting.seed)
        each: tuple[float, ...] = ()
        if self._world.evaluation.device_accuracy != "never":
            values = [found.per_sample] * len(devices)
            each = tuple(measure_each(self._world, devices, values).tolist())
        return ModelScores(found.metric, take_means(found), each)

    async def give_model(self, caller: Identity, request: PeerModelRequest) -> PeerModelAnswer:
        """Returns a part of its model before a gossip step, or of the present one if no step is named."""
        del caller
        if self._progress.loss:
            raise RejectedError("has lost its state, and has no model yet")
        state = self._progress.state
        encoded = await self._models.get(self._choose_model(request.position))
        if request.sha256 not in (None, encoded.sha256):
            raise RejectedError(f"is at {state.position}, and has another model by now")
        part = await encoded.part(request.offset, request.most_bytes)
        return PeerModelAnswer(state.position, encoded.sha256, part)

    def _choose_model(self, at: Position | None) -> FlatModel:
        state = self._progress.state
        if at is None or state.position == at:
            return state.model
        if state.has_mixed(at):
            return state.previous_model
        raise RejectedError(f"is at {state.position}, has no model of {at}")

    async def evaluate_mean(self, caller: Identity, request: MeanMetricRequest) -> ModelScores:
        """Evaluates the mean of all edge models that can be fetched, every device counting alike."""
        del request
        # It takes seconds and all models, so no other node may ask for it.
        if caller.number != self._number:
            raise RejectedError("an edge server evaluates the mean model for itself only")
        models = await self._neighbours.fetch_all_present(range(self._world.setting.fleet.clusters))
        fleet = self._world.setting.fleet
        return await self._compute.run(
            lambda: self._evaluate(mean_model(fleet.sizes, models), range(fleet.devices))
        )
