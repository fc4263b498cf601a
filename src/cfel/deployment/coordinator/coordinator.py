"""The coordinator: a role that one edge server holds for a term, without any state on a disk.

It plans edge rounds, has the edge servers carry them out and gossip, and makes the record of each global
round. All it knows travels in every command (`control_state`). A successor asks the others for the newest
state and repeats the last command; an edge server that has carried it out already repeats its answer.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cfel.arrays import BoolArray
from cfel.control.scheme import Observation
from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.coordinator.bounding import Answer, bound_answers
from cfel.deployment.coordinator.control_state import CoordinatorState, initial_coordinator_state
from cfel.deployment.coordinator.counting import add_edge_round, add_estimates, count_edge_round
from cfel.deployment.coordinator.divergence import Divergence, describe_all_diverged
from cfel.deployment.coordinator.edge_calls import QUICK_SECONDS, TRY_AGAIN_SECONDS, TermCalls
from cfel.deployment.coordinator.handover import Handover
from cfel.deployment.coordinator.partial_mixing import mixing_rows
from cfel.deployment.coordinator.proposals import propose
from cfel.deployment.coordinator.scores import combine_scores, read_scores
from cfel.deployment.coordinator.succession import succeed
from cfel.deployment.measurement.measured_rounds import apply_reports, reserve_overhead
from cfel.deployment.measurement.plausibility import Doubts, usual_conditions
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.positions import ends_exchange, ends_global_round, gossip_is_next
from cfel.deployment.protocol.calls import Calls
from cfel.deployment.protocol.coordinator_requests import (
    CloseCommand,
    EstimateAnswer,
    EstimateCommand,
    FetchAnswer,
    FetchCommand,
    MeanMetricRequest,
    MixAnswer,
    MixCommand,
    MixingRows,
    NewestRequest,
    PlanAnswer,
    PlanCommand,
    ReleaseRequest,
    StopCommand,
)
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import OnRejection
from cfel.errors import UnreachableError
from cfel.rounds.estimates import (
    find_impossible,
    implausible_devices,
    needs_estimates,
    note_habits,
    view_estimates,
)
from cfel.rounds.kernel import (
    charge_gossip,
    close_global_round,
    ends_at_budget,
    find_used,
    is_evaluated,
    is_over,
    observe,
    plan_edge_round,
)
from cfel.rounds.records import RoundScores, make_plan_table, make_record
from cfel.system import Conditions
from cfel.world import World


class Coordinator:
    """The coordinator of one term.

    Args:
        world: what is run.
        deployment: deadlines.
        term: its number.
        calls: how it reaches the edge servers, its own included.
        compute: where plans are made.
        is_leading: whether it still may act.
        number: the edge server that it runs on.
        on_rejection: called for implausible estimates, measurements and handed-over states.
        is_gone: whether an edge server has been silent for too long to wait for it.
    """

    def __init__(
        self,
        world: World,
        deployment: DeploymentParameters,
        term: int,
        calls: Calls,
        compute: ComputeThread,
        is_leading: Callable[[], bool],
        number: int,
        on_rejection: OnRejection,
        is_gone: Callable[[int], bool],
    ) -> None:
        self._on_rejection = on_rejection
        self._world, self._deployment = world, deployment
        self._compute, self._number = compute, number
        self._edges = TermCalls(
            term, world.setting.fleet.clusters, calls, is_leading, deployment.gossip_seconds, is_gone
        )
        self._usual = usual_conditions(world.setting)
        # Answers of the clusters whose models were evaluated after the last gossip step.
        self._evaluated: dict[int, MixAnswer] = {}
        # What earlier coordinators had done, as far as it is not certain.
        self._handover = Handover(initial_coordinator_state(world, measures=deployment.measures))
        # Whether the next gossip step may have been carried out already.
        self._mixes_first = True
        self._divergence = Divergence()
        self._doubts = Doubts(deployment.quarantine_after, self._on_quarantine)
        self._counted_at = time.monotonic()

    async def lead(self) -> None:
        """Leads the experiment to its end.

        Raises:
            DeposedError: another coordinator has taken over.
            AllDivergedError: no device can train any more.
        """
        # No state of its own: whatever the last coordinator did is known to the edge servers.
        state, over = await self._take_over(), False
        self._counted_at = time.monotonic()
        while not over:
            if not gossip_is_next(self._world, state.position):
                state = await self._run_edge_round(state)
            elif not ends_global_round(self._world, state.position):
                state = await self._gossip_within_round(state)
            else:
                state, over = await self._end_global_round(state)
        missing = sorted(
            set(range(self._world.setting.fleet.clusters)).difference(self._edges.list_present())
        )
        await self._edges.ask_once(ReleaseRequest(tuple(missing)), QUICK_SECONDS)

    async def _take_over(self) -> CoordinatorState:
        found = await succeed(self._edges, self._world, self._deployment, self._number)
        for number, reason in found.doubts:
            self._on_rejection(Identity("edge", number), "newest", reason)
        self._handover = found
        return found.state

    async def _run_edge_round(self, state: CoordinatorState) -> CoordinatorState:
        if state.plan is None:
            state = await self._plan(state)
        command = PlanCommand(self._edges.term, state.position, state)
        found = await self._edges.command(command, self._deployment.round_seconds)
        state, answers, implausible = self._bound(state, found)
        after = add_edge_round(self._world, state, answers, self._since_last_count())
        arrived = {each.device for answer in answers.values() for each in answer.devices}
        self._doubts.add(arrived, implausible | self._judge_estimates(after, arrived))
        await self._stop_if_diverged(state.available, answers.values(), after)
        return after

    async def _stop_if_diverged(
        self,
        asked: Sequence[bool],
        answers: Iterable[EstimateAnswer | PlanAnswer],
        state: CoordinatorState,
    ) -> None:
        """Ends the run if nobody can train any more: rounds without any device would use it up.

        Raises:
            AllDivergedError: nobody can; all edge servers that are there have been told.
        """
        absent = {*state.absent_devices, *np.flatnonzero(self._without_edge_server()).tolist()}
        there = set(range(self._world.setting.fleet.devices)) - absent
        if self._divergence.is_total(set(np.flatnonzero(asked).tolist()), list(answers), there):
            await self._edges.command(
                StopCommand(self._edges.term, state.position), self._deployment.gossip_seconds
            )
            raise describe_all_diverged(self._world, state.position)

    async def _plan(self, state: CoordinatorState) -> CoordinatorState:
        setting, control = self._world.setting, state.control
        conditions = setting.conditions(control.rounds_done, state.edge_round, control.spent_joules)
        state = await self._wait_for_devices(state, set(np.flatnonzero(conditions.available).tolist()))
        conditions = conditions.without(self._list_absent(state))
        available = tuple(conditions.available.tolist())
        if (known := self._handover.find_plan(state.position)) is not None:
            # Its devices are at work, and cannot estimate again; the plan follows from the same estimates.
            state = replace(state, estimates=known.estimates)
        elif needs_estimates(self._world.training.local.estimator, state.estimates):
            command = EstimateCommand(self._edges.term, state.position, available)
            answers = await self._edges.command(command, self._deployment.round_seconds)
            state = add_estimates(state, self._bound(state, answers)[1].values())
            await self._stop_if_diverged(available, answers.values(), state)
        observation = self._observe(state, conditions)
        control = note_habits(setting, control, state.estimates, conditions.available)
        # A plan for a million devices takes seconds; heartbeats must go out meanwhile.
        plan, control = await self._compute.run(lambda: plan_edge_round(setting, control, observation))
        plan = replace(plan, speed=None) if observation.full_clocks else plan
        local = self._world.training.local
        rate = local.find_rate(find_used(local, observation))
        asked = tuple(plan.leave_out(conditions).available.tolist())
        return replace(state, plan=plan, control=control, available=asked, rate=rate)

    def _list_absent(self, state: CoordinatorState) -> BoolArray:
        """Per device, whether it or its edge server is not there, or is left out."""
        absent = self._without_edge_server()
        absent[[*state.absent_devices, *self._doubts.find_quarantined()]] = True
        return absent

    def _observe(self, state: CoordinatorState, conditions: Conditions) -> Observation:
        """What the scheme sees of these conditions, as measured where devices measure."""
        setting = self._world.setting
        if state.measured is not None:
            conditions = apply_reports(state.measured.devices, conditions)
        estimates = view_estimates(setting, state.control, state.estimates, conditions.available)
        observation = observe(setting, state.control, state.edge_round, conditions, estimates)
        if state.measured is None:
            return observation
        # Nothing sets clocks on devices yet, so slower ones must be neither planned nor charged.
        return replace(reserve_overhead(self._world, state.measured, observation), full_clocks=True)

    async def _ends_at_budget(self, state: CoordinatorState) -> bool:
        """Whether the budgets do not cover another round; `state` is after the one that has ended."""
        setting, control = self._world.setting, state.control

        def look_ahead() -> Observation:
            conditions = setting.conditions(control.rounds_done, 0, control.spent_joules)
            return self._observe(replace(state, edge_round=0), conditions.without(self._list_absent(state)))

        return await self._compute.run(lambda: ends_at_budget(setting, control, look_ahead))

    def _bound(
        self, state: CoordinatorState, answers: Mapping[int, Answer]
    ) -> tuple[CoordinatorState, dict[int, Answer], set[int]]:
        """Bounds what devices measured and charges their accounts; also who reported implausible figures."""
        answers, bounded = bound_answers(self._world, self._usual, state, answers, self._deployment)
        for device, reason in bounded.reasons:
            self._on_rejection(Identity("device", device), "measurements", reason)
        if state.measured is not None:
            state = replace(state, measured=replace(state.measured, accounts=bounded.accounts))
        return state, answers, {device for device, _ in bounded.reasons}

    def _judge_estimates(self, state: CoordinatorState, arrived: set[int]) -> set[int]:
        """Reports implausible σ² and G² among those that have just arrived; returns whose are impossible."""
        small, habits = self._world.setting.small_batches is not None, state.control.habits
        present = np.isin(np.arange(len(state.estimates)), sorted(arrived))
        found = implausible_devices(state.estimates, present, small_batches=small, habits=habits)
        for device in arrived.intersection(found):
            self._on_rejection(Identity("device", device), "estimates", "its σ² and G² are not plausible")
        # A device that is merely influential counts as the mean of the others, and its updates are useful.
        return arrived.intersection(find_impossible(state.estimates, small_batches=small))

    async def _wait_for_devices(self, state: CoordinatorState, available: set[int]) -> CoordinatorState:
        """Waits while every available device is absent and no other is connected: such rounds do nothing.

        If other devices are connected, the round passes without any device, as in the simulator.
        """
        absent = {*state.absent_devices, *np.flatnonzero(self._without_edge_server()).tolist()}
        if not available or not available <= absent:
            return state
        connected: set[int] = set()
        while not connected:
            answers = await self._edges.ask_once(NewestRequest(self._edges.term), QUICK_SECONDS)
            connected = {n for each in answers.values() for n in each.connected}
            await asyncio.sleep(0 if connected else TRY_AGAIN_SECONDS)
        return replace(state, absent_devices=tuple(n for n in state.absent_devices if n not in connected))

    def _on_quarantine(self, device: int) -> None:
        self._on_rejection(
            Identity("device", device), "reports", "left out after repeated implausible reports"
        )

    def _without_edge_server(self) -> BoolArray:
        """Per device, whether its edge server is gone."""
        return np.isin(self._world.setting.fleet.cluster, self._edges.find_gone())

    def _since_last_count(self) -> float:
        """Seconds since the previous call; their sum leaves no time out."""
        now = time.monotonic()
        passed, self._counted_at = now - self._counted_at, now
        return passed

    def _measure_exchange(self, state: CoordinatorState) -> tuple[CoordinatorState, float | None]:
        """Adds the seconds of the exchange just finished, and returns them; None where the model counts."""
        if state.measured is None:
            return state, None
        seconds = self._since_last_count()
        measured = replace(state.measured, exchange=state.measured.exchange.add(seconds, 1))
        return replace(state, measured=measured), seconds

    async def _gossip_within_round(self, state: CoordinatorState) -> CoordinatorState:
        """A gossip step that does not end the global round."""
        after = replace(await self._gossip(state, evaluates=False), step=state.step + 1)
        if not ends_exchange(self._world, state.position):
            return after
        after, seconds = self._measure_exchange(after)
        return replace(after, control=charge_gossip(self._world.setting, after.control, seconds))

    async def _end_global_round(self, state: CoordinatorState) -> tuple[CoordinatorState, bool]:
        """The gossip step that ends a global round, and its record; returns also whether the run is over."""
        world, setting, evaluation = self._world, self._world.setting, self._world.evaluation
        closed = replace(state, control=close_global_round(setting, state.control))
        last = await self._ends_at_budget(closed)
        evaluates = is_evaluated(setting, evaluation.every, closed.control, ends_at_budget=last)
        # Measured, it is not known before the exchange whether it uses the budget up.
        evaluates |= state.measured is not None and setting.rounds.stop == "budget"
        # A part of the model is on devices only, so edge servers have nothing to evaluate.
        evaluates = evaluates and not world.new_device.memory
        after = await self._gossip(state, evaluates and evaluation.on == "edge")
        after, seconds = self._measure_exchange(after)
        control = close_global_round(setting, state.control, seconds)
        if seconds is not None:
            last = await self._ends_at_budget(replace(after, control=control))
        edge_rounds = [
            count_edge_round(world, state.control.rounds_done, finished) for finished in state.finished
        ]
        scores = await self._find_scores(after) if evaluates else RoundScores()
        record = make_record(
            world,
            control,
            edge_rounds,
            scores,
            model_sha256=hashlib.sha256(b"".join(map(bytes.fromhex, after.digests))).hexdigest(),
            wall_seconds=time.time() - state.started_at,
            ends_at_budget=last,
        )
        record = self._handover.choose_record(record)
        await propose(self._edges, state.position, record, self._deployment.gossip_seconds)
        table = make_plan_table(setting, edge_rounds, control.rounds_done)
        over = is_over(setting.rounds, setting.budget, setting.metrics[0], record)
        command = CloseCommand(self._edges.term, state.position, record, table, over)
        await self._edges.command(command, self._deployment.gossip_seconds)
        return replace(
            after, control=control, edge_round=0, step=0, finished=(), started_at=time.time()
        ), over

    async def _gossip(self, state: CoordinatorState, evaluates: bool) -> CoordinatorState:
        """One gossip step: all fetch models, then all mix with the weights of those that are there."""
        seconds, term = self._deployment.gossip_seconds, self._edges.term
        fetched = await self._edges.command(
            FetchCommand(term, state.position, self._edges.list_present()), seconds
        )
        # An edge server that is behind has no model for this step.
        present = {i: each for i, each in fetched.items() if each.position >= state.position}
        setting = self._world.setting
        received = {i: each.received_from for i, each in present.items()}
        at_once = setting.scheme.gossip.reach == "everybody"
        backhaul = setting.backhaul_at(*state.position)
        rows = self._find_rows(present) or mixing_rows(backhaul, received, at_once=at_once)
        command = MixCommand(term, state.position, rows, evaluates, state)
        answers = await self._edges.command(command, seconds, only=present)
        self._evaluated = {i: each for i, each in answers.items() if each.metric is not None}
        digests, metrics = list(state.digests), list(state.metrics)
        for i, each in answers.items():
            digests[i] = each.digest
            if each.metric is not None:
                metrics[i] = each.metric
        return replace(state, digests=tuple(digests), metrics=tuple(metrics))

    def _find_rows(self, present: Mapping[int, FetchAnswer]) -> MixingRows | None:
        """The weights with which edge servers have mixed already, which the others must use, too.

        That can only be under the previous coordinator, so in its last step.
        """
        mixed = {i: each.rows for i, each in present.items() if each.rows is not None}
        if self._mixes_first:
            self._mixes_first = False
            found = list(mixed.values())
            return max(found, key=found.count, default=None)
        for number in mixed:
            self._on_rejection(Identity("edge", number), "fetch", "a gossip step that was not commanded yet")
        return None

    async def _find_scores(self, state: CoordinatorState) -> RoundScores:
        if self._world.evaluation.on == "edge":
            return combine_scores(self._world, state.metrics, self._evaluated)
        seconds, own = self._deployment.gossip_seconds, self._number
        answers = await self._edges.ask_once(MeanMetricRequest(), seconds, only=[own])
        if not answers:
            raise UnreachableError("the mean model could not be evaluated")
        return read_scores(answers[own])
