"""Adds what edge servers report to the coordinator's state: estimates, finished edge rounds and their costs.

Pure functions from a `CoordinatorState` and answers to the next state. Costs come from `rounds.kernel`,
as in the simulator, and from `measurement` where devices measure. Nothing is called or awaited here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from cfel.control.scheme import RoundPlan
from cfel.deployment.coordinator.control_state import CoordinatorState, FinishedEdgeRound
from cfel.deployment.measurement.measured_rounds import (
    FederationMeasurements,
    add_overhead,
    advance_ledger,
    apply_measured_costs,
    apply_reports,
    collect_measurements,
)
from cfel.deployment.protocol.coordinator_requests import (
    DeviceEstimates,
    DeviceResult,
    EstimateAnswer,
    PlanAnswer,
)
from cfel.deployment.protocol.device_requests import MeasurementReport
from cfel.errors import DeploymentError
from cfel.learning.local.estimates import refresh_estimates
from cfel.rounds.kernel import DeviceWork, EdgeRoundOutcome, charge_edge_round, compute_outcome
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
    )
    if state.measured is not None:
        cluster_seconds = {i: answer.seconds for i, answer in answers.items()}
        measurements = collect_measurements(world, _find_reports(results), cluster_seconds, seconds)
        finished = replace(finished, measurements=measurements)
    outcome = count_edge_round(world, state.control.rounds_done, finished)
    estimates = list(state.estimates)
    for result in results:
        estimates[result.device] = result.estimates
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
        measured=_add_reports(state, results),
    )
    if after.measured is None or finished.measurements is None:
        return after
    realised = advance_ledger(state.control.realised, outcome, finished.measurements)
    return replace(
        after,
        control=replace(after.control, realised=realised),
        measured=add_overhead(after.measured, outcome, finished.measurements),
    )


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
    outcome = compute_outcome(world.setting, conditions, finished.plan, finished.work)
    return (
        outcome
        if finished.measurements is None
        else apply_measured_costs(world, outcome, finished.measurements)
    )
