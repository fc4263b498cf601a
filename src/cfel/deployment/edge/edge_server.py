"""An edge server's part: obeys the coordinator of the highest term, one step at a time, and forgets nothing.

    plan   have the devices train, aggregate what arrived        (l, r, s) → (l, r + 1, 0)
    fetch  get the neighbours' models for a gossip step          (l, r, s)
    mix    average them with the weights given                   (l, r, s) → (l, r, s + 1), or (l + 1, 0, 0)
    close  write the finished global round down

Every command may come twice, from the same coordinator or from its successor: what was done is not done
again, its answer is given again. The state is on the disk before an answer is given.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.coordinator.control_state import plan_from_json
from cfel.deployment.edge.chronicle import Chronicle
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.neighbour_models import Neighbours
from cfel.deployment.edge.state import EdgeDisk, EdgeState
from cfel.deployment.payloads import model_bytes
from cfel.deployment.positions import Position, after_gossip_step, gossip_is_next, place, position
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls, Method
from cfel.deployment.transport.messages import Message
from cfel.errors import RejectedError
from cfel.learning.aggregation import aggregate
from cfel.learning.device_messages import DeviceReport
from cfel.learning.evaluate import evaluate
from cfel.learning.local.estimates import encode_estimates
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import weighted_model
from cfel.rounds.edge_models import mean_model
from cfel.rounds.ending import is_over
from cfel.rounds.orders import device_weights, make_order
from cfel.rounds.parameters import SimulationParameters
from cfel.world import World

_LOG = logging.getLogger(__name__)


class EdgeServer:
    """One edge server.

    Args:
        world: what is run.
        simulation: how much of the test set to look at.
        number: its cluster.
        directory: where its state is kept.
        device_service: where its devices come.
        calls: how it reaches its neighbours.
        compute: where arithmetic is done.
        gossip_seconds: how long to try to get a neighbour's model.

    Attributes:
        chronicle: its log.
        state: where it is.
        term: the highest it has heard of.
        commanded_at: when a command last came.
    """

    def __init__(
        self,
        world: World,
        simulation: SimulationParameters,
        number: int,
        directory: Path,
        device_service: DeviceService,
        calls: Calls,
        compute: ComputeThread,
        gossip_seconds: float,
    ) -> None:
        self._world, self._simulation, self.number = world, simulation, number
        self._device_service, self._compute = device_service, compute
        self._disk = EdgeDisk(directory, world.start)
        self.chronicle = Chronicle(directory, number, calls, compute, gossip_seconds)
        self.state = self._disk.load()
        self.term = 0
        self.commanded_at = time.monotonic()
        self._phase = "waiting"
        self._busy = asyncio.Lock()
        self._running: dict[Position, asyncio.Task[Mapping[str, Any]]] = {}
        self._neighbours = Neighbours(calls, world.start, gossip_seconds)
        self._workspace: Workspace | None = None
        records = self.chronicle.log.records
        if records and is_over(world.setting.rounds, world.setting.budget, records[-1]):
            self.chronicle.finished.set()

    @property
    def phase(self) -> str:
        """What it is doing."""
        return "finished" if self.chronicle.finished.is_set() else self._phase

    def methods(self) -> dict[str, Method]:
        """What other edge servers may call."""
        handlers = {
            "newest": self.newest,
            "estimate": self.estimate,
            "plan": self.plan,
            "fetch": self.fetch,
            "mix": self.mix,
            "close": self.close,
            "peer_model": self.peer_model,
            "mean_metric": self.mean_metric,
        }
        own = {name: Method(("edge",), handler) for name, handler in handlers.items()}
        return own | self.chronicle.methods()

    async def newest(self, caller: Identity, message: Message) -> Message:
        """Where this server is, and the newest plan it has seen."""
        del caller, message
        return Message(
            {
                "position": self.state.position,
                "control": self.state.control,
                "connected": self._device_service.connected(),
                "logged": self.chronicle.log.last_round,
            }
        )

    async def estimate(self, caller: Identity, message: Message) -> Message:
        """Has its devices estimate σ² and G² at its model."""
        at = self._commanded(caller, message)
        await self._reach(at)
        async with self._busy:
            self._expect(at)
            self._phase = "planning"
            orders = {
                n: make_order(self._world.setting, *at[:2], n, 1.0, 1.0, self.state.model)
                for n in self._members(message.header["available"])
            }
            found = await self._device_service.collect_estimates(orders)
            estimates = [[n, each.sigma2, each.g2] for n, each in found.items()]
            return Message({"estimates": estimates, **self._device_service.measured(found)})

    async def plan(self, caller: Identity, message: Message) -> Message:
        """Carries out an edge round, or tells again what came of it."""
        at = self._commanded(caller, message)
        told = self.state.reports.get(place(at))
        if told is not None:
            return Message(told)
        if at not in self._running:
            await self._reach(at)
            if at not in self._running:
                task = asyncio.create_task(self._edge_round(at, message.header["control"]))
                task.add_done_callback(lambda _: self._running.pop(at, None))
                self._running[at] = task
        # Should this coordinator die, its successor asks again and finds the round under way.
        return Message(await asyncio.shield(self._running[at]))

    async def _edge_round(self, at: Position, control: Mapping[str, Any]) -> Mapping[str, Any]:
        async with self._busy:
            self._expect(at)
            self._phase = "training"
            plan, model = plan_from_json(control["plan"]), self.state.model
            orders = {
                n: make_order(
                    self._world.setting, *at[:2], n, float(plan.rho[n]), float(plan.theta[n]), model
                )
                for n in self._members(control["available"])
            }
            reports = await self._device_service.collect_reports(orders, self.state.used)
            sent = [reports[device] for device in sorted(reports)]
            samples = {report.device: report.samples for report in sent}
            weights, rule = device_weights(self._world.setting, samples), self._world.aggregation
            aggregated = await self._compute.run(lambda: aggregate(model, sent, weights, rule))
            told = {
                "work": [_work_row(each) for each in reports.values()],
                "connected": self._device_service.connected(),
                **self._device_service.measured(reports),
            }
            recent = {
                key: old for key, old in self.state.reports.items() if int(key.split("/")[0]) >= at[0] - 1
            }
            after = replace(
                self.state,
                position=(at[0], at[1] + 1, 0),
                model=aggregated,
                reports={**recent, place(at): told},
                used={**self.state.used, **dict.fromkeys(reports, at[:2])},
                control=control,
            )
            await asyncio.gather(self._become(after), self._announce(after))
            self._phase = "waiting"
            return told

    async def fetch(self, caller: Identity, message: Message) -> Message:
        """Gets others' models for a gossip step; tells whose it has."""
        at = self._commanded(caller, message)
        if self._has_mixed(at):
            return Message({"position": self.state.position, "got": [], "rows": self._told()["rows"]})
        self._phase = "gossip"
        live = message.header["live"]
        models = await self._neighbours.fetch(at, [j for j in self._partners() if j in live])
        return Message({"position": self.state.position, "got": sorted(models), "rows": None})

    async def mix(self, caller: Identity, message: Message) -> Message:
        """Averages its model with others', or tells again what came of it."""
        at = self._commanded(caller, message)
        rows = message.header["rows"]
        weights = {j: w for j, w in enumerate(rows[self.number]) if w}
        fetched: dict[int, FlatModel] = {}
        if not self._has_mixed(at):
            fetched = await self._neighbours.fetch(at, [j for j in weights if j != self.number])
        async with self._busy:
            if self._has_mixed(at):
                return Message(self._told())
            self._expect(at)
            models = {**fetched, self.number: self.state.model}
            if missing := sorted(weights.keys() - models.keys()):
                raise RejectedError(f"models of edge servers {missing} are missing")
            looks = bool(message.header["evaluate"])
            mixed, told = await self._compute.run(lambda: self._mixed(models, weights, looks))
            told |= {"at": at, "rows": rows}
            after = replace(
                self.state,
                position=after_gossip_step(self._world, at),
                model=mixed,
                before=self.state.model,
                gossip=told,
                control=message.header["control"],
            )
            await asyncio.gather(self._become(after), self._announce(after))
            self._phase = "waiting"
            self._neighbours.forget()
        return Message(told)

    def _mixed(
        self, models: Mapping[int, FlatModel], weights: Mapping[int, float], looks: bool
    ) -> tuple[FlatModel, dict[str, Any]]:
        mixed = weighted_model(models, weights)
        metric = self.metric(mixed) if looks else None
        return mixed, {"digest": mixed.sha256().hex(), "metric": metric}

    def metric(self, model: FlatModel) -> float:
        """A model on the test set; to be called in the compute."""
        if self._workspace is None:
            world = self._world
            self._workspace = Workspace(world.task, world.local, world.compress)
        samples = self._simulation.evaluate_samples or None
        return evaluate(model, self._workspace, samples, self._world.setting.seed).metric

    async def adopt_end(self, number: int) -> None:
        """Takes the end of the experiment over from another edge server: log and, if long away, model.

        Raises:
            DeploymentError: it cannot be had.
        """
        lines = await self.chronicle.missed(Identity("edge", number))
        end, model = await self._neighbours.present(number)
        async with self._busy:
            if end[0] - self.state.position[0] > 1:
                await self._become(replace(self.state, position=end, model=model, before=model))
            elif self.state.position < end:
                await self._become(replace(self.state, position=end))
        await self.chronicle.end_with(lines, end[0])

    async def close(self, caller: Identity, message: Message) -> Message:
        """Writes a finished global round down."""
        await self.chronicle.close(caller, self._commanded(caller, message)[0], message)
        return Message()

    async def peer_model(self, caller: Identity, message: Message) -> Message:
        """Its model before a gossip step, or the present one if none is named."""
        del caller
        state = self.state
        if "at" not in message.header:
            return Message({"position": state.position}, model_bytes(state.model))
        at = _position(message)
        if state.position == at:
            return Message({}, model_bytes(state.model))
        if self._has_mixed(at):
            return Message({}, model_bytes(state.before))
        raise RejectedError(f"is at {state.position}, has no model of {at}")

    async def mean_metric(self, caller: Identity, message: Message) -> Message:
        """The metric of the mean of all edge models that can be had, every device counting alike."""
        del caller, message
        models = await self._neighbours.present_models(range(self._world.setting.fleet.clusters))
        return Message(
            {
                "metric": await self._compute.run(
                    lambda: self.metric(mean_model(self._world.setting.fleet.sizes, models))
                )
            }
        )

    def obey(self, term: int) -> None:
        """Notes a term; commands of older ones are refused from now on."""
        self.term = max(self.term, term)

    def _commanded(self, caller: Identity, message: Message) -> Position:
        term = message.whole("term")
        if term < self.term:
            raise RejectedError(f"stale term {term} of {caller}: term {self.term} has begun")
        self.obey(term)
        self.commanded_at = time.monotonic()
        return _position(message)

    async def _reach(self, at: Position) -> None:
        """Catches up when the others have gone on without it.

        Whoever missed no more than a gossip step keeps its own model, as gossip among the others assumed.
        After a longer absence its model is out of date, and that of a neighbour takes its place.
        """
        async with self._busy:
            if self.state.position >= at:
                return
            if at[0] - self.state.position[0] <= 1:
                await self._become(replace(self.state, position=at))
                return
            model = await self._neighbours.present_model(self._partners())
            await self._become(replace(self.state, position=at, model=model, before=model))

    def _told(self) -> Mapping[str, Any]:
        return self.state.gossip or {}

    def _has_mixed(self, at: Position) -> bool:
        return self.state.gossip is not None and tuple(self.state.gossip["at"]) == at

    def _expect(self, at: Position) -> None:
        if self.state.position != at:
            raise RejectedError(f"is at {self.state.position}, not at {at}")

    async def _become(self, state: EdgeState) -> None:
        await self._compute.run(lambda: self._disk.save(state))
        self.state = state

    async def _announce(self, state: EdgeState) -> None:
        """Has devices fetch the model, if training is what comes next."""
        world, at = self._world, state.position
        if at[0] < world.setting.rounds.global_rounds and not gossip_is_next(world, at):
            await self._device_service.announce(state.model)

    def _members(self, available: Iterable[bool]) -> list[int]:
        present = np.array(list(available), dtype=bool)
        return [n for n in self._device_service.devices if present[n]]

    def _partners(self) -> list[int]:
        """Those whose models it gossips with."""
        row = self._world.setting.backhaul.weights[self.number]
        return [j for j in np.flatnonzero(row).tolist() if j != self.number]


def _position(message: Message) -> Position:
    try:
        return position(message.header.get("at"))
    except (TypeError, ValueError) as error:
        raise RejectedError(f"at = {message.header.get('at')!r}: no position") from error


def _work_row(report: DeviceReport) -> list[Any]:
    """What the coordinator is told of a device's work."""
    work = [report.device, report.steps, report.update.wire_bits, report.loss]
    return [*work, encode_estimates(report.estimates)]
