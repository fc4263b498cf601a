"""The round loop (Algorithm 1) in virtual time: plan, train, aggregate, gossip, count the cost, record.

Pure but for the executor: a `RunState` in, outcomes with the next state out. Plans, costs and records come
from `rounds`, arithmetic on models from `learning`, as they do in a deployment.
"""

import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice

import numpy as np

from cfel.control.scheme import RoundPlan
from cfel.errors import DivergedError
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.edge_update import mean_model, update_edge_model
from cfel.learning.evaluate import Evaluation, summarise_devices
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.estimates import refresh_estimates
from cfel.learning.models.flat import FlatModel, complete_model, model_sha256
from cfel.learning.roles import gossip_mix
from cfel.rounds.estimates import combine_estimates, needs_estimates
from cfel.rounds.kernel import (
    DeviceWork,
    EdgeRoundOutcome,
    charge_edge_round,
    charge_exchange,
    close_global_round,
    count_costs,
    device_weights,
    find_rate,
    is_evaluated,
    is_over,
    make_order,
    observe,
    plan_edge_round,
)
from cfel.rounds.parameters import SimulationParameters
from cfel.rounds.records import (
    RoundScores,
    average_metrics,
    make_plan_table,
    make_record,
    mean_metric,
    measure_each,
    take_means,
)
from cfel.simulation.buffered import BegunRound, find_busy, pass_exchange, run_buffered
from cfel.simulation.executors import Executor, Job, JobResult
from cfel.simulation.state import RoundOutcome, RunState
from cfel.system import Conditions
from cfel.world import World

# --------------------------------------------------------------------------------------------------
# The work of an edge round, as an executor gets it: orders and states of the devices that take part.


def estimate(
    world: World, executor: Executor, state: RunState, conditions: Conditions, edge_round: int
) -> RunState:
    """The state with fresh estimates where they are needed."""
    if not needs_estimates(world.training.local.estimator, state.estimates):
        return state
    available = np.flatnonzero(conditions.available).tolist()
    devices = list(state.devices)
    orders = [_complete(_make_order(world, state, edge_round, n, 1.0, 1.0), devices[n]) for n in available]
    for n, fresh in zip(available, executor.run_estimates(orders), strict=True):
        devices[n] = replace(devices[n], estimates=refresh_estimates(devices[n].estimates, fresh))
    return replace(state, devices=tuple(devices))


def _complete(order: DeviceOrder, device: DeviceState) -> DeviceOrder:
    """The order with the device's own part in its model: estimates are taken without the device's state."""
    return replace(order, model=complete_model(order.model, device.memory))


def make_jobs(
    world: World, state: RunState, conditions: Conditions, edge_round: int, plan: RoundPlan, rate: float
) -> list[Job]:
    """Orders for all devices that take part, by device id and therefore by cluster."""
    rho, theta = plan.rho.tolist(), plan.theta.tolist()
    return [
        (_make_order(world, state, edge_round, n, rho[n], theta[n], rate), state.devices[n])
        for n in np.flatnonzero(conditions.available).tolist()
    ]


def _make_order(
    world: World, state: RunState, edge_round: int, device: int, rho: float, theta: float, rate: float = 1.0
) -> DeviceOrder:
    model = state.models[world.setting.fleet.cluster[device]]
    return make_order(world.setting, state.control.rounds_done, edge_round, device, rho, theta, model, rate)


# --------------------------------------------------------------------------------------------------
# What is measured after a global round: edge models, devices, and the models that devices keep.
#
# Where a part of the model is personal, an edge model cannot be evaluated alone: accuracy is then the
# mean over
# devices of their own models. Plans and costs do not depend on any of this.


# Whole models of devices that are made at a time.
_AT_ONCE = 16


def evaluate_round(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState
) -> RoundScores:
    """Evaluates the models of a round; empty when the round is not evaluated."""
    if not is_evaluated(world.setting, parameters, state.control):
        return RoundScores()
    models = [world.edge_rules.read_average(model) for model in state.models]
    if parameters.evaluate_on == "mean":
        models = [mean_model(world.setting.fleet.sizes, dict(enumerate(models)))]
    # Where all devices share one model, its number is 0.
    number = [i if len(models) > 1 else 0 for i in world.setting.fleet.cluster.tolist()]
    measure = partial(measure_each, world, parameters, range(len(number)))
    personal = losses = None
    if own := _evaluate_personal(world, executor, parameters, state.devices, [models[i] for i in number]):
        personal = measure([each.per_sample for each in own])
        losses = measure([each.losses for each in own])
        if world.new_device.memory:
            found = summarise_devices(personal)
            metrics = {
                name: float(np.nanmean(measure([each.metrics[name] for each in own])))
                for name in world.task.metrics
            }
            return RoundScores(None if found is None else found.mean, None, personal, losses, metrics)
    edges = executor.run_evaluations(models, parameters.evaluate_samples)
    means = [take_means(each) for each in edges]
    return RoundScores(
        edges[0].metric if len(edges) == 1 else mean_metric(world.setting, [each.metric for each in edges]),
        lambda: measure([edges[i].per_sample for i in number]),
        personal,
        losses,
        means[0]
        if len(means) == 1
        else average_metrics(world.setting, dict(enumerate(means)), world.task.metrics),
    )


def _evaluate_personal(
    world: World,
    executor: Executor,
    parameters: SimulationParameters,
    devices: Sequence[DeviceState],
    models: Sequence[FlatModel],
) -> list[Evaluation]:
    """Every device's own model; empty where devices have none.

    Args:
        world: what is run.
        executor: where models are evaluated.
        parameters: how many test samples.
        devices: what each remembers.
        models: the edge model of each.
    """
    name = find_algorithm(world.training).personal_model
    if name is None and not world.new_device.memory:
        return []
    found: list[Evaluation] = []
    for start in range(0, len(devices), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        own = [find_own_model(*each, name) for each in zip(models[part], devices[part], strict=True)]
        found += executor.run_evaluations(own, parameters.evaluate_samples)
    return found


def find_own_model(model: FlatModel, device: DeviceState, name: str | None) -> FlatModel:
    """The model that a device uses itself.

    Args:
        model: of its edge server.
        device: what it remembers.
        name: of the whole model that its algorithm keeps; None if it keeps a part, or nothing.
    """
    if name is None:
        return complete_model(model, device.memory)
    # A device that has not taken part yet has nothing but the edge model.
    return FlatModel(device.memory[name], model.buffers) if name in device.memory else model


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
        parameters: accounts and evaluation.
        state: where to continue from.
        now: wall-clock seconds, for the log only.
    """
    setting = world.setting
    while state.control.rounds_done < setting.rounds.global_rounds:
        begin = now()
        edge_rounds: list[EdgeRoundOutcome] = []
        for edge_round in range(setting.rounds.edge_rounds):
            state, outcome = run_edge_round(world, executor, parameters, state, edge_round)
            edge_rounds.append(outcome)
            if setting.scheme.gossip.is_due_within(edge_round, setting.rounds.edge_rounds):
                control = charge_exchange(setting, state.control)
                models = _exchange(world, parameters, state, edge_round + 1)
                pending = pass_exchange(setting, state)
                state = replace(state, control=control, models=models, pending=pending)
        # Charged before the models are mixed: whether this round is evaluated depends on what it used.
        control = close_global_round(setting, state.control)
        mixed = _exchange(world, parameters, state, setting.rounds.edge_rounds)
        averaged, pending = map(world.edge_rules.add_to_average, mixed), pass_exchange(setting, state)
        state = replace(state, control=control, models=tuple(averaged), pending=pending)
        scores = evaluate_round(world, executor, parameters, state)
        record = make_record(
            setting,
            parameters,
            control,
            edge_rounds,
            accuracy=scores.accuracy,
            model_sha256=model_sha256(state.models),
            wall_seconds=now() - begin,
            peak_memory_bytes=measure_peak_memory(),
        )
        over = is_over(setting.rounds, setting.budget, record)
        record = scores.add_to(record, parameters, over=over)
        yield RoundOutcome(record, make_plan_table(setting, edge_rounds, control.rounds_done), state)
        if over:
            return


def _exchange(
    world: World, parameters: SimulationParameters, state: RunState, edge_rounds_done: int
) -> tuple[FlatModel, ...]:
    """The edge models after an exchange between edge servers."""
    setting = world.setting
    models: Sequence[FlatModel] = state.models
    for step in range(setting.scheme.gossip.steps):
        backhaul = setting.backhaul_at(state.control.rounds_done, edge_rounds_done, step)
        models = gossip_mix(models, backhaul.weights, parameters.workers)
    return tuple(models)


def run_edge_round(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState, edge_round: int
) -> tuple[RunState, EdgeRoundOutcome]:
    """One edge round of all clusters: estimate, plan, train, aggregate.

    Raises:
        DivergedError: a device's training has diverged.
    """
    try:
        return _run_edge_round(world, executor, parameters, state, edge_round)
    except DivergedError as error:
        raise error.add_details(cluster=int(world.setting.fleet.cluster[error.device])) from error


def _run_edge_round(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState, edge_round: int
) -> tuple[RunState, EdgeRoundOutcome]:
    setting, control, buffered = world.setting, state.control, world.edge_rules.aggregation.buffer > 0
    conditions = setting.conditions(control.rounds_done, edge_round, control.spent_joules)
    if buffered:
        conditions = conditions.without(find_busy(state.pending, setting.fleet.devices))
    state = estimate(world, executor, state, conditions, edge_round)
    small_batches = setting.small_batches is not None
    estimates = combine_estimates(state.estimates, conditions.available, small_batches=small_batches)
    observation = observe(setting, parameters, control, edge_round, conditions, estimates)
    plan, control = plan_edge_round(setting, control, observation)
    rate = find_rate(world.training.local, observation)
    conditions = plan.leave_out(conditions)
    jobs = make_jobs(world, state, conditions, edge_round, plan, rate)
    if buffered:
        number = control.rounds_done * setting.rounds.edge_rounds + edge_round
        begun = BegunRound(number, conditions, plan, jobs, rate)
        state, outcome = run_buffered(world, executor, parameters, state, begun)
        return replace(state, control=charge_edge_round(control, outcome)), outcome
    models, devices, work = _train(world, executor, state, plan, jobs, rate)
    outcome = count_costs(setting, parameters, conditions, plan, work)
    return RunState(charge_edge_round(control, outcome), models, devices), outcome


def _train(
    world: World, executor: Executor, state: RunState, plan: RoundPlan, jobs: list[Job], rate: float
) -> tuple[tuple[FlatModel, ...], tuple[DeviceState, ...], list[DeviceWork]]:
    """Trains all devices; each edge server aggregates reports as they are done."""
    models, devices = list(state.models), list(state.devices)
    work: list[DeviceWork] = []

    def note(answer: JobResult) -> DeviceReport:
        report, device = answer
        devices[report.device] = device
        work.append(DeviceWork(report.device, report.steps, report.update.wire_bits, report.loss))
        return report

    answers = executor.run_updates(jobs)
    cluster_of = world.setting.fleet.cluster.__getitem__
    for cluster, members in groupby((order.device for order, _ in jobs), cluster_of):
        numbers = list(members)
        weights = device_weights(world.setting, plan, {n: world.data[n].samples for n in numbers})
        reports = map(note, islice(answers, len(numbers)))
        models[cluster] = update_edge_model(
            models[cluster],
            reports,
            weights,
            world.edge_rules,
            share=len(numbers) / int(world.setting.fleet.sizes[cluster]),
            rate=world.training.local.learning_rate * rate,
        )
    assert next(answers, None) is None  # noqa: S101 — an executor ends its work after its last answer
    return tuple(models), tuple(devices), work


def measure_peak_memory() -> int:
    """Most memory in bytes that this process has used; workers in other processes do not count."""
    # Linux counts in kibibytes, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
