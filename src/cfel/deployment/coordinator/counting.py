"""What the coordinator makes of edge servers' answers: the next state, scores, and gossip weights.

Pure functions; nothing is called or awaited here. Costs come from `rounds.kernel`, as in the simulator, and
from `measurement` where devices measure. Devices are not trusted: what they measured is bounded by
`measurement.plausibility` before anything is planned or counted with it, for the answers of all edge servers
at once, because a device is compared with all others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec
import numpy as np

from cfel.arrays import FloatArray
from cfel.control.exchange import join_answers
from cfel.control.scheme import RoundPlan
from cfel.deployment.coordinator.state import CoordinatorState, FinishedEdgeRound
from cfel.deployment.measurement.measured_rounds import (
    FederationMeasurements,
    add_overhead,
    add_rest,
    advance_by,
    advance_ledger,
    apply_measured_costs,
    apply_reports,
    collect_measurements,
)
from cfel.deployment.measurement.plausibility import BoundedReports, ObservedWork, bound_reports
from cfel.deployment.protocol.device_requests import MOST_UNUSED, MeasurementReport
from cfel.deployment.protocol.edge_requests import (
    DeviceEstimates,
    DeviceResult,
    EstimateAnswer,
    FetchAnswer,
    MixAnswer,
    MixingRows,
    ModelScores,
    PlanAnswer,
)
from cfel.errors import DeploymentError
from cfel.learning.local.estimates import Estimates, refresh_estimates
from cfel.membership import RoundLoss
from cfel.rounds.kernel import (
    DeviceWork,
    EdgeRoundOutcome,
    charge_costs,
    charge_edge_round,
    compute_outcome,
    find_late,
)
from cfel.rounds.records import NOBODY, RoundScores, average_metrics, mean_metric
from cfel.system.backhaul import Backhaul, live_metropolis_weights
from cfel.system.conditions import Conditions
from cfel.world import World


def add_estimates(state: CoordinatorState, answers: Iterable[EstimateAnswer]) -> CoordinatorState:
    """The state with fresh σ² and G²."""
    estimates, found = list(state.estimates), [each for answer in answers for each in answer.devices]
    for each in found:
        estimates[each.device] = refresh_estimates(state.estimates[each.device], each.estimates)
    return replace(state, estimates=tuple(estimates), measured=_add_reports(state, found))


def add_edge_round(
    world: World,
    state: CoordinatorState,
    answers: Mapping[int, PlanAnswer],
    seconds: float,
) -> CoordinatorState:
    """The state after an edge round.

    Args:
        world: what is run.
        state: with the plan.
        answers: what came of it, by edge server.
        seconds: by the coordinator's clock since the previous count.
    """
    if state.plan is None:
        raise DeploymentError("an edge round without a plan cannot be counted")
    found = (result for answer in answers.values() for result in answer.devices)
    # Sums run in the order of devices, never in that of arrival, or the last bit would depend on the network.
    results = sorted(found, key=lambda result: result.device)
    arrived = {result.device for result in results}
    connected = {n for answer in answers.values() for n in answer.connected}
    planned = np.flatnonzero(state.available).tolist()
    finished = FinishedEdgeRound(
        state.edge_round,
        tuple(n in arrived for n in range(world.setting.fleet.devices)),
        use_actual_orders(state.plan, results),
        tuple(DeviceWork(each.device, each.steps, each.wire_bits, each.loss) for each in results),
        losses=_find_losses(state, results),
        missed=() if state.control.missed is None else tuple(state.control.missed.tolist()),
    )
    if state.measured is not None:
        cluster_seconds = {i: answer.seconds for i, answer in answers.items()}
        measurements = collect_measurements(world, _find_reports(results), cluster_seconds, seconds)
        finished = replace(finished, measurements=measurements)
    outcome = count_edge_round(world, state.control.rounds_done, finished)
    estimates = list(state.estimates)
    for result in results:
        estimates[result.device] = _find_newest(estimates[result.device], result)
    at, late = state.position[:2], _find_late(world, state, finished)
    used_rounds = dict.fromkeys(sorted(arrived - late), at)
    late_rounds = {n: each for n, each in state.late_rounds.items() if n not in used_rounds}
    late_rounds |= {n: (*late_rounds.get(n, ()), at)[-MOST_UNUSED:] for n in sorted(late)}
    # The plan is used up; a successor that finds none makes the next one.
    after = replace(
        state,
        control=charge_edge_round(state.control, outcome),
        edge_round=state.edge_round + 1,
        step=0,
        estimates=tuple(estimates),
        finished=(*state.finished, finished),
        # A device that is connected gets another chance; one that is neither there nor answered is planned
        # without.
        absent_devices=tuple(
            n for n in {*planned, *state.absent_devices} if n not in arrived and n not in connected
        ),
        plan=None,
        available=(),
        absent_now=(),
        measured=_add_reports(state, results),
        last_used_rounds={**state.last_used_rounds, **used_rounds},
        late_rounds=late_rounds,
    )
    if after.measured is None or finished.measurements is None:
        return after
    realised = advance_ledger(state.control.realised, outcome, finished.measurements)
    return replace(
        after,
        control=replace(after.control, realised=realised),
        measured=add_overhead(after.measured, outcome, finished.measurements),
    )


def note_used(state: CoordinatorState, answers: Iterable[FetchAnswer]) -> CoordinatorState:
    """The state with uploads that edge servers used although nobody heard of the edge round.

    What they mix reaches all models; a device that moves must not send it to another edge server again.
    """
    used = dict(state.last_used_rounds)
    for answer in answers:
        for device, at in answer.last_used_rounds.items():
            used[device] = max(at, used.get(device, at))
    return replace(state, last_used_rounds=used)


def add_sums(
    world: World, state: CoordinatorState, answers: Mapping[int, PlanAnswer], seconds: float
) -> CoordinatorState:
    """The same where a fleet is planned by clusters: edge servers have counted their own devices."""
    if state.decision is None:
        raise DeploymentError("an edge round without a decision cannot be counted")
    sums = {i: answer.sums for i, answer in answers.items() if answer.sums is not None}
    columns = [sums[i].totals if i in sums else NOBODY for i in range(world.setting.fleet.clusters)]
    totals = join_answers(columns)
    control = charge_costs(state.control, totals.expected, totals.realised)
    # Of a decision, the record needs only what it says about all devices.
    decided = replace(state.decision, terms=None, settlement=None)
    after = replace(
        state,
        control=control,
        edge_round=state.edge_round + 1,
        step=0,
        decision=None,
        asked=(),
        decided=(*state.decided, decided),
        totals=(*state.totals, totals),
        gossip_losses=(*state.gossip_losses, *_find_lost_clusters(world, state, sums.keys())),
    )
    if state.measured is None:
        return after
    passed = max([seconds, *(answer.seconds for answer in answers.values())])
    slowest = max((each.device_seconds for each in sums.values()), default=0.0)
    return replace(
        after,
        control=replace(control, realised=advance_by(state.control.realised, totals.realised, passed)),
        measured=add_rest(state.measured, passed, slowest),
    )


def _find_lost_clusters(world: World, state: CoordinatorState, counted: Collection[int]) -> list[RoundLoss]:
    """What the simulator has to know of edge servers that were not asked, or have not answered.

    What the others have lost is in their own logs.
    """
    fleet, number = world.setting.fleet, state.control.rounds_done + 1
    members, edges = fleet.list_members(), fleet.list_edges()
    absent = [i for i in edges if i not in state.asked]
    lost = [i for i in state.asked if i not in counted]
    if not absent and not lost:
        return []

    def list_devices(clusters: Sequence[int]) -> tuple[int, ...]:
        return tuple(n for n in members if fleet.cluster[n] in clusters)

    return [RoundLoss(number, state.edge_round, list_devices(absent), list_devices(lost))]


def _find_newest(known: Estimates | None, result: DeviceResult) -> Estimates | None:
    """A device's estimates; those of one that took no step may be of an update that got lost."""
    if known is None or result.estimates is None or result.steps:
        return result.estimates
    return replace(known, kept_energy=result.estimates.kept_energy)


def _find_losses(state: CoordinatorState, results: Sequence[DeviceResult]) -> tuple[RoundLoss, ...]:
    """What the simulator has to know of an edge round to repeat it: who was missing, and who had trained.

    It finds out by itself who missed the scheme's deadline.
    """
    number, arrived = state.control.rounds_done + 1, {each.device for each in results}
    lost = tuple(n for n in np.flatnonzero(state.available).tolist() if n not in arrived)
    now = [RoundLoss(number, state.edge_round, state.absent_now, lost)] if state.absent_now or lost else []
    earlier = [
        RoundLoss(global_round + 1, edge_round, trained=(each.device,))
        for each in results
        for global_round, edge_round in each.unused
        if (global_round, edge_round) not in state.late_rounds.get(each.device, ())
    ]
    return (*now, *earlier)


def _find_late(world: World, state: CoordinatorState, finished: FinishedEdgeRound) -> set[int]:
    """Devices whose uploads went into no model, because they missed the scheme's deadline."""
    if state.measured is not None:
        return set()
    conditions = world.setting.conditions(*state.position[:2])
    return find_late(world.setting, conditions, finished.plan, finished.work)


def use_actual_orders(plan: RoundPlan, results: Iterable[DeviceResult]) -> RoundPlan:
    """Replaces ρ, θ and speed in the plan by those of the orders that devices carried out.

    A coordinator that takes over in the middle of an edge round may plan it again, with other estimates or
    measurements, while devices carry out the orders they already have.
    """
    rho, theta = plan.rho.copy(), plan.theta.copy()
    speed = np.ones(len(rho)) if plan.speed is None else plan.speed.copy()
    for result in results:
        rho[result.device], theta[result.device] = result.rho, result.theta
        speed[result.device] = result.speed
    # A plan at full clocks has no speeds, and records tell the two apart.
    full = plan.speed is None and bool((speed == 1).all())
    return replace(plan, rho=rho, theta=theta, speed=None if full else speed)


def _add_reports(
    state: CoordinatorState, found: Iterable[DeviceEstimates | DeviceResult]
) -> FederationMeasurements | None:
    return None if state.measured is None else state.measured.add_reports(_find_reports(found))


def _find_reports(found: Iterable[DeviceEstimates | DeviceResult]) -> dict[int, MeasurementReport]:
    return {each.device: each.measured for each in found if each.measured is not None}


def count_edge_round(world: World, global_round: int, finished: FinishedEdgeRound) -> EdgeRoundOutcome:
    """The costs of a finished edge round, as measured where clocks measured it."""
    conditions = world.setting.conditions(global_round, finished.edge_round)
    conditions = replace(conditions, available=np.array(finished.available))
    if finished.measurements is not None:
        conditions = apply_reports(finished.measurements.devices, conditions)
    missed = np.array(finished.missed) if finished.missed else None
    outcome = compute_outcome(world.setting, conditions, finished.plan, finished.work, missed)
    return (
        outcome
        if finished.measurements is None
        else apply_measured_costs(world, outcome, finished.measurements)
    )


Answer = TypeVar("Answer", EstimateAnswer, PlanAnswer)


def bound_answers(
    world: World,
    usual: Conditions,
    state: CoordinatorState,
    answers: Mapping[int, Answer],
    spread: float,
) -> tuple[dict[int, Answer], BoundedReports]:
    """Bounds what devices measured, before anything is planned or counted with it.

    Args:
        world: what is run.
        usual: each device's usual figures in the experiment's model.
        state: with the previous reports.
        answers: as edge servers gave them, by edge server.
        spread: how far a figure may be from its reference.

    Returns:
        The answers with bounded measurements, and these with the devices' accounts.
    """
    if state.measured is None:
        return dict(answers), BoundedReports({}, [], ())
    found = [each for answer in answers.values() for each in answer.devices]
    fresh = {each.device: each.measured for each in found if each.measured is not None}
    local_steps = None if state.plan is None else state.plan.local_steps
    observed = {each.device: observe_work(world, each, local_steps) for each in found}
    now = world.setting.conditions(*state.position[:2])
    bounded = bound_reports(fresh, state.measured, observed, usual, now, spread)
    return {edge: _replace_reports(each, bounded.reports) for edge, each in answers.items()}, bounded


def _replace_reports(answer: Answer, reports: Mapping[int, MeasurementReport]) -> Answer:
    devices = tuple(
        msgspec.structs.replace(each, measured=reports.get(each.device)) for each in answer.devices
    )
    return msgspec.structs.replace(answer, devices=devices)


def observe_work(
    world: World, found: DeviceEstimates | DeviceResult, local_steps: int | None
) -> ObservedWork:
    """What the edge server saw of a device's work."""
    gradients, setting = world.training.local.fresh_batches, world.setting
    if isinstance(found, DeviceEstimates):
        return ObservedWork(found.seconds, gradients, gradients, 0.0)
    share = found.wire_bits * setting.charged_share / setting.upload_bits if setting.model_bits else 0.0
    steps = float(setting.charge_steps(found.steps, found.rho, local_steps))
    return ObservedWork(found.seconds, steps, steps + gradients, share)


def combine_scores(world: World, known: Sequence[float], answers: Mapping[int, MixAnswer]) -> RoundScores:
    """What the edge models score.

    Args:
        world: what is run.
        known: the newest metric of every edge model.
        answers: of those that were evaluated in this round, by cluster.
    """
    setting, names = world.setting, world.task.metrics
    measured = {i: each.metrics for i, each in answers.items() if each.metrics}
    return RoundScores(
        mean_metric(setting, known, answers),
        lambda: _join(each.device_metrics for each in answers.values()),
        metrics=average_metrics(setting, measured, names),
    )


def read_scores(scores: ModelScores) -> RoundScores:
    """What the mean model scores."""
    return RoundScores(scores.metric, lambda: _join([scores.device_metrics]), metrics=scores.metrics)


def _join(parts: Iterable[Sequence[float]]) -> FloatArray:
    return np.array([value for part in parts for value in part], dtype=np.float64)


def mixing_rows(
    backhaul: Backhaul, received: Mapping[int, Collection[int]], *, at_once: bool = False
) -> MixingRows:
    """The mixing matrix, row by row.

    With nothing missing it is the experiment's, to the last bit. A link counts only if both ends have the
    other's model; an edge server that is missing keeps its own.

    Args:
        backhaul: graph and weights of the experiment.
        received: whose models each edge server has; without those that are missing.
        at_once: all average over all, whatever the links.
    """
    if at_once:
        return _rows_at_once(backhaul, received)
    graph = backhaul.graph.copy()
    for a, b in list(graph.edges):
        # One way is not enough: the weights are symmetric in what they assume about both ends.
        if a not in received or b not in received or b not in received[a] or a not in received[b]:
            graph.remove_edge(a, b)
    # The stored matrix, not a computed one, so that a complete step equals the simulator's bit for bit.
    if len(received) == len(backhaul.members) and graph.number_of_edges() == backhaul.graph.number_of_edges():
        return tuple(tuple(row.tolist()) for row in backhaul.weights)
    live = np.array([i in received for i in range(backhaul.clusters)])
    return tuple(tuple(row.tolist()) for row in live_metropolis_weights(graph, backhaul.target, live))


def _rows_at_once(backhaul: Backhaul, received: Mapping[int, Collection[int]]) -> MixingRows:
    """A group whose members have each other's models shares their mean; the others keep their own."""
    live = _find_group(received)
    if len(live) == len(backhaul.members):
        return tuple(tuple(row.tolist()) for row in backhaul.weights)
    rows = np.eye(backhaul.clusters)
    for i in live:
        rows[i] = 0.0
        rows[i, live] = backhaul.target[live] / backhaul.target[live].sum()
    return tuple(tuple(row.tolist()) for row in rows)


def _find_group(received: Mapping[int, Collection[int]]) -> list[int]:
    """Leaves out, one by one, the edge server with the most links where a model is missing.

    So one whose model nobody accepts is left out, and not those that reject it. Of two that lack only each
    other's models the one that lacks more goes.
    """
    group = list(received)

    def lacks(i: int, j: int) -> bool:
        return i != j and j not in received[i]

    def count_missing(i: int) -> tuple[int, int, int]:
        either = sum(lacks(i, j) or lacks(j, i) for j in group)
        return either, sum(lacks(i, j) for j in group), i

    while group and count_missing(worst := max(group, key=count_missing))[0]:
        group.remove(worst)
    return sorted(group)
