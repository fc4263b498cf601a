"""The round loop (Algorithm 1): plan, train, aggregate, gossip, count the cost, write it down.

Pure but for the executor: a `RunState` in, outcomes with the next state out. It does no arithmetic on models
of its own; `learning.roles` does, for the simulator and the deployment alike.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from cfel.control.problem import FloatArray
from cfel.control.scheme import Observation, RoundPlan
from cfel.cost import (
    Ledger,
    after_edge_round,
    after_exchange,
    after_global_round,
    device_joules,
    device_seconds,
    edge_round_cost,
    realised_joules,
    realised_seconds,
)
from cfel.learning.exchange import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.flat import FlatModel
from cfel.learning.roles import edge_aggregate, gossip_mix
from cfel.simulation.executors import Executor, Task
from cfel.simulation.outcome import EdgeRoundOutcome, RoundOutcome, Work
from cfel.simulation.parameters import SimulationParameters
from cfel.simulation.records import is_last, plan_table, round_record
from cfel.simulation.state import RunState
from cfel.system import Conditions
from cfel.world import World


def simulate(
    world: World,
    executor: Executor,
    parameters: SimulationParameters,
    state: RunState,
    now: Callable[[], float],
) -> Iterator[RoundOutcome]:
    """Runs global rounds until the experiment's end.

    Args:
        world: what is run.
        executor: where devices' work is done.
        parameters: accounts, evaluation and when to stop.
        state: where to go on from.
        now: wall-clock seconds, for the log only.
    """
    while state.rounds_done < world.rounds.global_rounds:
        begin = now()
        edge_rounds: list[EdgeRoundOutcome] = []
        for edge_round in range(world.rounds.edge_rounds):
            state, outcome = run_edge_round(world, executor, parameters, state, edge_round)
            edge_rounds.append(outcome)
            if world.scheme.gossip.is_due_within(edge_round, world.rounds.edge_rounds):
                state = _exchanged(world, state, after_exchange)
        state = _exchanged(world, state, after_global_round)
        state = replace(state, rounds_done=state.rounds_done + 1)
        record = round_record(world, executor, parameters, state, edge_rounds, begin, now)
        yield RoundOutcome(record, plan_table(world, edge_rounds, state.rounds_done), state)
        if is_last(world, parameters, record):
            return


def _exchanged(world: World, state: RunState, counted: Callable[[Ledger, FloatArray], Ledger]) -> RunState:
    """The state after edge servers have exchanged their models; `counted` is what that does to a ledger."""
    models: Sequence[FlatModel] = state.models
    for _ in range(world.scheme.gossip.steps):
        models = gossip_mix(models, world.backhaul.weights)
    return replace(
        state,
        models=tuple(models),
        expected=counted(state.expected, world.exchange_seconds),
        realised=counted(state.realised, world.exchange_seconds),
    )


def run_edge_round(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState, edge_round: int
) -> tuple[RunState, EdgeRoundOutcome]:
    """One edge round of all clusters: estimate, plan, train, aggregate."""
    conditions = world.fleet.conditions(
        world.seed, state.rounds_done, edge_round, world.model_bits, state.spent_joules
    )
    state = _estimated(world, executor, state, conditions, edge_round)
    observation = _observation(world, parameters, state, conditions, edge_round)
    plan, scheme = world.scheme.plan(state.scheme, observation)
    tasks = _tasks(world, state, conditions, edge_round, plan)
    models, devices, work = _trained(world, executor, state, tasks)
    outcome = _outcome(world, parameters, conditions, plan, work)
    state = replace(
        state,
        models=models,
        devices=devices,
        scheme=scheme,
        expected=after_edge_round(state.expected, outcome.expected),
        realised=after_edge_round(state.realised, outcome.realised),
        spent_joules=state.spent_joules + outcome.joules,
    )
    return state, outcome


def _estimated(
    world: World, executor: Executor, state: RunState, conditions: Conditions, edge_round: int
) -> RunState:
    """The state with fresh estimates where they are needed: while there are none at all, or always (`fresh`).

    With `reuse` a device's first steps give its own estimates at no cost. Whoever joins later is taken to be
    like the others until then, instead of computing two more gradients.
    """
    always = world.local.estimator == "fresh"
    if not always and any(device.estimates is not None for device in state.devices):
        return state
    asked = np.flatnonzero(conditions.available).tolist()
    tasks = [(_order(world, state, edge_round, n, 1.0, 1.0), state.devices[n]) for n in asked]
    devices = list(state.devices)
    for n, remembered in zip(asked, executor.estimates(tasks), strict=True):
        devices[n] = remembered
    return replace(state, devices=tuple(devices))


def _observation(
    world: World, parameters: SimulationParameters, state: RunState, conditions: Conditions, edge_round: int
) -> Observation:
    sigma2, g2 = _known_estimates(state)
    battery = world.fleet.battery_joules
    exchanges = world.scheme.gossip.exchanges_from(edge_round, world.rounds.edge_rounds)
    return Observation(
        global_round=state.rounds_done,
        edge_round=edge_round,
        rounds=world.rounds,
        conditions=conditions,
        cluster=world.fleet.cluster,
        sigma2=sigma2,
        g2=g2,
        ledger=state.expected if parameters.accounting == "expected" else state.realised,
        budget=world.budget,
        backhaul_seconds=world.exchange_seconds * exchanges,
        battery=None if battery is None else np.maximum(battery - state.spent_joules, 0.0),
    )


def _known_estimates(state: RunState) -> tuple[FloatArray, FloatArray]:
    """Every device's σ² and G²; the mean of the known ones for those that have none yet."""
    known = [device.estimates for device in state.devices]
    both = np.array([(math.nan, math.nan) if each is None else (each.sigma2, each.g2) for each in known])
    missing = np.isnan(both[:, 0])
    both[missing] = 0.0 if missing.all() else both[~missing].mean(axis=0)
    return both[:, 0], both[:, 1]


def _tasks(
    world: World, state: RunState, conditions: Conditions, edge_round: int, plan: RoundPlan
) -> list[Task]:
    """Orders for everybody who takes part, by device id and therefore by cluster."""
    return [
        (_order(world, state, edge_round, n, float(plan.rho[n]), float(plan.theta[n])), state.devices[n])
        for n in np.flatnonzero(conditions.available).tolist()
    ]


def _order(
    world: World, state: RunState, edge_round: int, device: int, rho: float, theta: float
) -> DeviceOrder:
    return DeviceOrder(
        seed=world.seed,
        global_round=state.rounds_done,
        edge_round=edge_round,
        device=device,
        rho=rho,
        theta=theta,
        tau=world.rounds.local_steps,
        model=state.models[world.fleet.cluster[device]],
    )


def _trained(
    world: World, executor: Executor, state: RunState, tasks: list[Task]
) -> tuple[tuple[FlatModel, ...], tuple[DeviceState, ...], list[Work]]:
    """Trains all devices; each edge server aggregates as soon as its own are done."""
    models, devices = list(state.models), list(state.devices)
    work: list[Work] = []
    for cluster, answers in groupby(executor.updates(tasks), lambda answer: _cluster(world, answer[0])):
        reports = []
        for report, remembered in answers:
            devices[report.device] = remembered
            reports.append(report)
        models[cluster] = edge_aggregate(models[cluster], reports, _weights(world, reports))
        work.extend(Work(each.device, each.steps, each.update.wire_bits, each.loss) for each in reports)
    return tuple(models), tuple(devices), work


def _weights(world: World, reports: Sequence[DeviceReport]) -> Mapping[int, float] | None:
    if world.scheme.gossip.weights == "equal":
        return None
    return {report.device: float(report.samples) for report in reports}


def _cluster(world: World, report: DeviceReport) -> int:
    return int(world.fleet.cluster[report.device])


def _outcome(
    world: World, parameters: SimulationParameters, conditions: Conditions, plan: RoundPlan, work: list[Work]
) -> EdgeRoundOutcome:
    """The edge round's cost, expected and realised."""
    fleet, tau = world.fleet, world.rounds.local_steps
    steps, wire_bits = np.zeros(fleet.devices), np.zeros(fleet.devices)
    for each in work:
        steps[each.device] = each.steps
        wire_bits[each.device] = each.wire_bits * world.charged_share
    sent = wire_bits / world.model_bits if parameters.uploads == "wire" else plan.theta
    now, present = conditions, conditions.available
    expected = (
        device_seconds(plan.rho, plan.theta, tau, now.mu, now.nu),
        device_joules(plan.rho, plan.theta, tau, now.alpha, now.nu, now.power),
    )
    realised = (
        realised_seconds(steps, sent, now.mu, now.nu),
        realised_joules(steps, sent, now.alpha, now.nu, now.power),
    )
    seconds, joules = expected if parameters.accounting == "expected" else realised
    return EdgeRoundOutcome(
        conditions=conditions,
        plan=plan,
        steps=steps,
        wire_bits=wire_bits,
        seconds=np.where(present, seconds, 0.0),
        joules=np.where(present, joules, 0.0),
        expected=edge_round_cost(*expected, fleet.cluster, fleet.clusters, present),
        realised=edge_round_cost(*realised, fleet.cluster, fleet.clusters, present),
        losses=tuple(each.loss for each in work if each.steps),
    )
