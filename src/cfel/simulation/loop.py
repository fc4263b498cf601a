"""The round loop (Algorithm 1) in virtual time: plan, train, aggregate, gossip, count the cost, record.

Pure but for the executor: a `RunState` in, outcomes with the next state out. Plans, costs and records come
from `rounds`, arithmetic on models from `learning`, as they do in a deployment.
"""

import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice

from cfel.control.scheme import RoundPlan
from cfel.errors import DivergedError
from cfel.learning.device_messages import DeviceReport, DeviceState
from cfel.learning.edge_update import update_edge_model
from cfel.learning.models.flat import FlatModel, model_sha256
from cfel.learning.roles import gossip_mix
from cfel.rounds.ending import is_over
from cfel.rounds.estimates import combine_estimates
from cfel.rounds.kernel import (
    DeviceWork,
    EdgeRoundOutcome,
    charge_edge_round,
    charge_exchange,
    close_global_round,
    count_costs,
    observe,
    plan_edge_round,
)
from cfel.rounds.orders import device_weights, find_rate
from cfel.rounds.parameters import SimulationParameters
from cfel.rounds.records import make_plan_table, make_record
from cfel.simulation.buffered import BegunRound, find_busy, pass_exchange, run_buffered
from cfel.simulation.evaluation import evaluate_round
from cfel.simulation.executors import Executor, Job, JobResult
from cfel.simulation.jobs import estimate, make_jobs
from cfel.simulation.state import RoundOutcome, RunState
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
    setting, control, buffered = world.setting, state.control, world.aggregation.buffer > 0
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
            world.aggregation,
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
