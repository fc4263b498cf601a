"""An edge server's edge rounds: it has its devices estimate or train, and aggregates their updates.

A command may come twice, from the same coordinator or from its successor. An edge round that was carried out
is not repeated: its answer was stored and is given again. One under way has both callers wait for it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cfel.control.scheme import RoundPlan
from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.coordinator.check_state import check_state
from cfel.deployment.coordinator.control_state import CoordinatorState
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.open_round import DeviceAnswers
from cfel.deployment.edge.progress import EdgeProgress
from cfel.deployment.edge.state import EdgeState
from cfel.deployment.positions import Position
from cfel.deployment.protocol.calls import Endpoint, serve
from cfel.deployment.protocol.coordinator_requests import (
    DeviceEstimates,
    DeviceResult,
    EstimateAnswer,
    EstimateCommand,
    PlanAnswer,
    PlanCommand,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import InputError, RejectedError
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.edge import update_edge_model
from cfel.learning.models.flat import FlatModel
from cfel.rounds.kernel import DeviceWork, device_weights, find_late, make_order
from cfel.world import World

_LOG = logging.getLogger(__name__)


class EdgeTraining:
    """Carries out edge rounds.

    Args:
        world: what is run.
        progress: where the edge server is.
        devices: where its devices get their orders.
        compute: where updates are aggregated.
    """

    def __init__(
        self, world: World, progress: EdgeProgress, devices: DeviceService, compute: ComputeThread
    ) -> None:
        self._world, self._progress, self._devices, self._compute = world, progress, devices, compute
        self.running: dict[Position, asyncio.Task[PlanAnswer]] = {}
        self._states: dict[Position, CoordinatorState] = {}

    @property
    def newest_state(self) -> CoordinatorState | None:
        """The newest state of a coordinator: that of an edge round under way, or the stored one.

        A successor takes the plan over from here, and so asks the other edge servers for the same.
        """
        known = [*self._states.values(), self._progress.state.coordinator_state]
        return max((each for each in known if each is not None), key=lambda each: each.recency, default=None)

    def endpoints(self) -> list[Endpoint]:
        """What the coordinator may call."""
        return [serve(EstimateCommand, self.estimate), serve(PlanCommand, self.plan)]

    async def estimate(self, caller: Identity, command: EstimateCommand) -> EstimateAnswer:
        """Has devices estimate σ² and G² at the edge model."""
        await self._progress.admit(caller, command)
        with self._progress.check(caller):
            self._check_length("available", command.available)
        await self._progress.catch_up(caller, command.position)
        async with self._progress.busy:
            self._progress.check_position(command.position)
            self._progress.phase = "planning"
            # Orders need a ρ and a θ; an estimate uses neither.
            ones = [1.0] * self._world.setting.fleet.devices
            orders = self._make_orders(command.position, command.available, ones, ones)
            answers = await self._devices.collect_estimates(orders)
            found = answers.values.items()
            return EstimateAnswer(
                tuple(
                    DeviceEstimates(n, estimates, answers.measured.get(n), answers.answer_seconds[n])
                    for n, estimates in found
                ),
                answers.diverged,
            )

    async def plan(self, caller: Identity, command: PlanCommand) -> PlanAnswer:
        """Carries out an edge round, waits for the one under way, or returns the stored answer."""
        await self._progress.admit(caller, command)
        with self._progress.check(caller):
            at, plan = command.position, self._check_plan(command)
        if at not in self.running and at not in self._progress.state.reports:
            await self._progress.catch_up(caller, at)
        if at in self._progress.state.reports:
            return self._progress.state.reports[at]
        # Another copy of the command may have begun the round while this one caught up.
        if at not in self.running:
            task = asyncio.create_task(self._run_edge_round(at, command.state, plan))
            task.add_done_callback(lambda _: self._forget(at))
            self.running[at], self._states[at] = task, command.state
        # Should this coordinator die, its successor asks again and finds the round under way.
        return await asyncio.shield(self.running[at])

    def _forget(self, at: Position) -> None:
        self.running.pop(at, None)
        self._states.pop(at, None)

    async def _run_edge_round(
        self, at: Position, coordinator_state: CoordinatorState, plan: RoundPlan
    ) -> PlanAnswer:
        async with self._progress.busy:
            self._progress.check_position(at)
            self._progress.phase = "training"
            state = self._progress.state
            orders = self._make_orders(
                at,
                coordinator_state.available,
                plan.rho.tolist(),
                plan.theta.tolist(),
                coordinator_state.rate,
            )
            speeds = None if plan.speed is None else {n: float(plan.speed[n]) for n in orders}
            answers = await self._devices.collect_reports(orders, state.last_used_rounds, speeds)
            late = self._find_late(at, plan, answers.values)
            reports = [report for n, report in answers.values.items() if n not in late]
            model = await self._aggregate(state.model, plan, reports, coordinator_state.rate)
            # Each update is finite, but their sum is not. The round counts as one without devices.
            if model is None:
                _LOG.error("the updates of %s do not add up to finite numbers", sorted(answers.values))
                model, answers = state.model, replace(answers, values={}, measured={})
            results = self._list_results(orders, plan, answers)
            plannable = tuple(self._devices.list_plannable())
            answer = PlanAnswer(results, plannable, answers.seconds, answers.diverged)
            used = [result.device for result in results if result.device not in late]
            await self._progress.advance(_after_edge_round(state, at, coordinator_state, model, answer, used))
            return answer

    def _find_late(self, at: Position, plan: RoundPlan, reports: Mapping[int, DeviceReport]) -> set[int]:
        """Devices that were late by the experiment's model; where clocks measure, real time counts."""
        if self._devices.measures:
            return set()
        setting = self._world.setting
        work = [DeviceWork(n, each.steps, each.update.wire_bits, each.loss) for n, each in reports.items()]
        return find_late(setting, setting.conditions(*at[:2]), plan, work)

    async def _aggregate(
        self, model: FlatModel, plan: RoundPlan, reports: Sequence[DeviceReport], rate: float
    ) -> FlatModel | None:
        """The new model; None if it would not be finite, though each update is."""
        samples = {report.device: report.samples for report in reports}
        world = self._world
        weights = device_weights(world.setting, plan, samples)
        share, rate = len(reports) / len(self._devices.devices), world.training.local.learning_rate * rate

        def add_up() -> FlatModel | None:
            made = update_edge_model(model, reports, weights, world.edge_rules, share=share, rate=rate)
            return made if made.is_finite() else None

        return await self._compute.run(add_up)

    def _make_orders(
        self,
        at: Position,
        available: Sequence[bool],
        rho: Sequence[float],
        theta: Sequence[float],
        rate: float = 1.0,
    ) -> dict[int, DeviceOrder]:
        """Orders for the available devices of this edge server."""
        model = self._progress.state.model
        try:
            return {
                n: make_order(self._world.setting, *at[:2], n, rho[n], theta[n], model, rate)
                for n in self._devices.devices
                if available[n]
            }
        except InputError as error:
            raise RejectedError(str(error)) from error

    def _list_results(
        self,
        orders: Mapping[int, DeviceOrder],
        plan: RoundPlan,
        answers: DeviceAnswers[DeviceReport],
    ) -> tuple[DeviceResult, ...]:
        return tuple(
            DeviceResult(
                device=n,
                rho=orders[n].rho,
                theta=orders[n].theta,
                speed=1.0 if plan.speed is None else float(plan.speed[n]),
                steps=report.steps,
                wire_bits=report.update.wire_bits,
                loss=report.loss,
                estimates=report.estimates,
                measured=answers.measured.get(n),
                seconds=answers.answer_seconds[n],
            )
            for n, report in answers.values.items()
        )

    def _check_plan(self, command: PlanCommand) -> RoundPlan:
        check_state(self._world, command.state)
        plan = command.state.plan
        if plan is None or command.state.position != command.position:
            raise RejectedError(f"state: has no plan of {command.position}")
        return plan

    def _check_length(self, name: str, values: Sequence[object]) -> None:
        if len(values) != self._world.setting.fleet.devices:
            raise RejectedError(
                f"{name}: {len(values)} entries for {self._world.setting.fleet.devices} devices"
            )


def _after_edge_round(
    state: EdgeState,
    at: Position,
    coordinator_state: CoordinatorState,
    model: FlatModel,
    answer: PlanAnswer,
    used: Sequence[int],
) -> EdgeState:
    # A successor may ask again for any edge round since the last record.
    recent = {place: report for place, report in state.reports.items() if place[0] >= at[0] - 1}
    used_rounds = dict.fromkeys(used, at[:2])
    return replace(
        state,
        position=(at[0], at[1] + 1, 0),
        model=model,
        reports={**recent, at: answer},
        last_used_rounds={**state.last_used_rounds, **used_rounds},
        coordinator_state=coordinator_state,
    )
