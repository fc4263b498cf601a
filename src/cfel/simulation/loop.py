"""The round loop (Algorithm 1): plan, train, aggregate, gossip, count the cost, write it down.

Pure but for the executor: a `RunState` in, outcomes with the next state out. It does no arithmetic on models
of its own; `learning.roles` does, for the simulator and the deployment alike.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.scheme import RoundPlan
from cfel.cost import Ledger, after_edge_round, after_exchange, after_global_round
from cfel.errors import DivergedError
from cfel.learning.aggregation import aggregate
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.local.estimates import refresh_estimates
from cfel.learning.models.flat import FlatModel, model_sha256
from cfel.learning.roles import gossip_mix
from cfel.rounds import (
    EdgeRoundOutcome,
    SimulationParameters,
    Work,
    counted,
    device_weights,
    is_evaluated,
    is_last,
    mean_metric,
    mean_model,
    observed,
    ordered,
    plan_table,
    round_record,
    wants_estimates,
)
from cfel.simulation.executors import Answer, Executor, Task
from cfel.simulation.outcome import RoundOutcome
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
                state = _exchanged(world, parameters, state, after_exchange)
        state = _exchanged(world, parameters, state, after_global_round)
        state = replace(state, rounds_done=state.rounds_done + 1)
        accuracy = _accuracy(world, executor, parameters, state)
        record = round_record(
            world,
            parameters,
            state,
            edge_rounds,
            accuracy=accuracy,
            model_sha256=model_sha256(state.models, parameters.workers),
            wall_seconds=now() - begin,
        )
        yield RoundOutcome(record, plan_table(world, edge_rounds, state.rounds_done), state)
        if is_last(world, parameters, record):
            return


def _exchanged(
    world: World,
    parameters: SimulationParameters,
    state: RunState,
    counted: Callable[[Ledger, FloatArray], Ledger],
) -> RunState:
    """The state after edge servers have exchanged their models; `counted` is what that does to a ledger."""
    models: Sequence[FlatModel] = state.models
    for _ in range(world.scheme.gossip.steps):
        models = gossip_mix(models, world.backhaul.weights, parameters.workers)
    return replace(
        state,
        models=tuple(models),
        expected=counted(state.expected, world.exchange_seconds),
        realised=counted(state.realised, world.exchange_seconds),
    )


def run_edge_round(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState, edge_round: int
) -> tuple[RunState, EdgeRoundOutcome]:
    """One edge round of all clusters: estimate, plan, train, aggregate.

    Raises:
        DivergedError: a device's training has diverged.
    """
    try:
        return _edge_round(world, executor, parameters, state, edge_round)
    except DivergedError as error:
        raise error.add_details(cluster=int(world.fleet.cluster[error.device])) from error


def _edge_round(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState, edge_round: int
) -> tuple[RunState, EdgeRoundOutcome]:
    conditions = world.fleet.conditions(
        world.seed, state.rounds_done, edge_round, world.model_bits, state.spent_joules
    )
    state = _estimated(world, executor, state, conditions, edge_round)
    observation = observed(world, parameters, state, edge_round, conditions, state.estimates)
    plan, scheme = world.scheme.plan(state.scheme, observation)
    tasks = _tasks(world, state, conditions, edge_round, plan)
    models, devices, work = _trained(world, executor, state, tasks)
    outcome = counted(world, parameters, conditions, plan, work)
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
    """The state with fresh estimates where they are needed."""
    if not wants_estimates(world, state.estimates):
        return state
    asked = np.flatnonzero(conditions.available).tolist()
    orders = [_order(world, state, edge_round, n, 1.0, 1.0) for n in asked]
    devices = list(state.devices)
    for n, fresh in zip(asked, executor.estimates(orders), strict=True):
        devices[n] = replace(devices[n], estimates=refresh_estimates(devices[n].estimates, fresh))
    return replace(state, devices=tuple(devices))


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
    model = state.models[world.fleet.cluster[device]]
    return ordered(world, state.rounds_done, edge_round, device, rho, theta, model)


def _trained(
    world: World, executor: Executor, state: RunState, tasks: list[Task]
) -> tuple[tuple[FlatModel, ...], tuple[DeviceState, ...], list[Work]]:
    """Trains all devices; each edge server takes in its own as they are done."""
    models, devices = list(state.models), list(state.devices)
    work: list[Work] = []

    def noted(answer: Answer) -> DeviceReport:
        report, remembered = answer
        devices[report.device] = remembered
        work.append(Work(report.device, report.steps, report.update.wire_bits, report.loss))
        return report

    answers = executor.updates(tasks)
    for cluster, own in groupby((order.device for order, _ in tasks), world.fleet.cluster.__getitem__):
        asked = list(own)
        reports = map(noted, islice(answers, len(asked)))
        weights = device_weights(world, {n: world.data[n].samples for n in asked})
        models[cluster] = aggregate(models[cluster], reports, weights, world.aggregation)
    assert next(answers, None) is None  # noqa: S101 — an executor ends its work after its last answer
    return tuple(models), tuple(devices), work


def _accuracy(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState
) -> float | None:
    """The task's metric, averaged over devices, or `None` when this round is not evaluated."""
    if not is_evaluated(world, parameters, state):
        return None
    if parameters.evaluate_on == "mean":
        mean = mean_model(world, dict(enumerate(state.models)))
        return executor.evaluations([mean], parameters.evaluate_samples)[0].metric
    results = executor.evaluations(state.models, parameters.evaluate_samples)
    return mean_metric(world, [each.metric for each in results])
