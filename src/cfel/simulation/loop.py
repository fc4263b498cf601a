"""The round loop (Algorithm 1) in virtual time: plan, train, aggregate, gossip, count the cost, record.

Pure but for the executor: a `RunState` in, outcomes with the next state out. Plans, costs and records come
from `rounds`, arithmetic on models from `learning`, as they do in a deployment.
"""

import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from cfel.control.scheme import Observation, RoundPlan
from cfel.control.setting import Setting
from cfel.errors import DivergedError
from cfel.learning.device import return_update
from cfel.learning.device_messages import DeviceReport, DeviceState
from cfel.learning.edge import gossip_mix, mean_model
from cfel.learning.evaluate import Evaluation, summarise_devices
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.estimates import refresh_estimates
from cfel.learning.models.flat import FlatModel, complete_model, model_sha256
from cfel.rounds.estimates import needs_estimates, note_influence, view_estimates
from cfel.rounds.kernel import (
    DeviceWork,
    EdgeRoundOutcome,
    charge_edge_round,
    charge_gossip,
    close_global_round,
    compute_outcome,
    ends_at_budget,
    find_late,
    find_used,
    is_evaluated,
    is_over,
    make_order,
    observe,
    plan_edge_round,
)
from cfel.rounds.records import (
    RoundScores,
    average_metrics,
    make_plan_table,
    make_record,
    mean_metric,
    measure_each,
    take_means,
)
from cfel.rounds.totals import add_up
from cfel.simulation.buffered import find_busy, run_buffered, work_during_gossip
from cfel.simulation.executors import Executor, Job, JobResult
from cfel.simulation.state import EdgeRoundOrders, RoundOutcome, RunState, enter_round
from cfel.simulation.whole_clusters import ClusterExecutor, group_by_cluster, plan_edge_update, run_clusters
from cfel.system.conditions import Conditions
from cfel.world import World

# Whole models of devices that are made at a time.
_AT_ONCE = 16


def simulate(
    world: World, executor: Executor, state: RunState, now: Callable[[], float]
) -> Iterator[RoundOutcome]:
    """Runs global rounds until the experiment's end.

    Args:
        world: what is run.
        executor: where devices' work is done.
        state: where to continue from.
        now: wall-clock seconds, for the log only.
    """
    over = _is_complete(world, state)
    while not over:
        begin = now()
        world, state = world.at(state.control.rounds_done), enter_round(world, state)
        setting = world.setting
        edge_rounds: list[EdgeRoundOutcome] = []
        for edge_round in range(setting.rounds.edge_rounds):
            state, outcome = run_edge_round(world, executor, state, edge_round)
            edge_rounds.append(outcome)
            if setting.scheme.gossip.is_due_within(edge_round, setting.rounds.edge_rounds):
                state = run_gossip(world, executor, state, edge_round + 1)
                state = replace(state, control=charge_gossip(setting, state.control))
        state = run_gossip(world, executor, state, setting.rounds.edge_rounds)
        averaged = map(world.edge_rules.add_to_average, state.models)
        control = close_global_round(setting, state.control)
        state = replace(state, control=control, models=tuple(averaged))
        # Whether the run is over depends on what is left of it, changes that follow included.
        ahead, entered = world.at(control.rounds_done).setting, enter_round(world, state)
        last = ends_at_budget(ahead, entered.control, partial(_look_ahead, ahead, entered))
        record = make_record(
            world,
            control,
            add_up(setting, edge_rounds),
            evaluate_round(world, executor, state, ends_at_budget=last),
            model_sha256=model_sha256([state.models[i] for i in setting.fleet.list_edges()]),
            wall_seconds=now() - begin,
            ends_at_budget=last,
            peak_memory_bytes=measure_peak_memory(),
        )
        yield RoundOutcome(record, make_plan_table(setting, edge_rounds, record.round), state)
        over = is_over(ahead.rounds, ahead.budget, ahead.metrics[0], record)


def _is_complete(world: World, state: RunState) -> bool:
    done = state.control.rounds_done
    return done >= world.at(done).setting.rounds.global_rounds


def _look_ahead(setting: Setting, state: RunState) -> Observation:
    """What the scheme would see at the start of the next global round."""
    control = state.control
    conditions = setting.conditions(control.rounds_done, 0, control.spent_joules)
    estimates = view_estimates(setting, control, state.estimates, conditions.available)
    return observe(setting, control, 0, conditions, estimates)


def run_edge_round(
    world: World, executor: Executor, state: RunState, edge_round: int
) -> tuple[RunState, EdgeRoundOutcome]:
    """One edge round of all clusters: estimate, plan, train, aggregate.

    Raises:
        DivergedError: a device's training has diverged.
    """
    setting, control, buffered = world.setting, state.control, world.edge_rules.aggregation.buffer > 0
    conditions = setting.conditions(control.rounds_done, edge_round, control.spent_joules)
    if buffered:
        conditions = conditions.without(find_busy(state.pending, setting.fleet.devices))
    with _name_cluster(world):
        state = estimate(world, executor, state, conditions, edge_round)
        # Once, as it looks at every device of what may be a large fleet.
        known = state.estimates
        estimates = view_estimates(setting, control, known, conditions.available)
        observation = observe(setting, control, edge_round, conditions, estimates)
        control = note_influence(setting, control, known, conditions.available)
        plan, control = plan_edge_round(setting, control, observation)
        conditions, used = plan.leave_out(conditions), find_used(setting.schedule_by, observation)
        rate = world.training.local.find_rate(used)
        orders = EdgeRoundOrders(
            number=control.rounds_done * setting.rounds.edge_rounds + edge_round,
            conditions=conditions,
            plan=plan,
            used=used,
            jobs=make_jobs(world, state, edge_round, conditions, plan, rate),
        )
        run = run_buffered if buffered else run_synchronous
        state, outcome = run(world, executor, state, orders)
    return replace(state, control=charge_edge_round(control, outcome)), outcome


def make_jobs(
    world: World, state: RunState, edge_round: int, conditions: Conditions, plan: RoundPlan, rate: float
) -> list[Job]:
    """An order for every device that takes part, with its state, by cluster and device."""
    setting, number, rho, theta = (
        world.setting,
        state.control.rounds_done,
        plan.rho.tolist(),
        plan.theta.tolist(),
    )
    cluster = setting.fleet.cluster
    return [
        (
            make_order(
                setting,
                *(number, edge_round, n, rho[n], theta[n]),
                model=state.models[cluster[n]],
                rate=rate,
                local_steps=plan.local_steps,
            ),
            state.devices[n],
        )
        for n in sorted(np.flatnonzero(conditions.available).tolist(), key=cluster.__getitem__)
    ]


@contextmanager
def _name_cluster(world: World) -> Iterator[None]:
    """Adds the cluster to the error of a device that has diverged."""
    try:
        yield
    except DivergedError as error:
        raise error.add_details(cluster=int(world.setting.fleet.cluster[error.device])) from error


def estimate(
    world: World, executor: Executor, state: RunState, conditions: Conditions, edge_round: int
) -> RunState:
    """The state with fresh estimates where they are needed."""
    if not needs_estimates(world.training.local.estimator, (each.estimates for each in state.devices)):
        return state
    available = np.flatnonzero(conditions.available).tolist()
    setting, devices = world.setting, list(state.devices)
    # Estimates are taken without the device's state, so its own part of the model is added here.
    orders = [
        make_order(
            setting,
            *(state.control.rounds_done, edge_round, n, 1.0, 1.0),
            complete_model(state.models[setting.fleet.cluster[n]], devices[n].memory),
        )
        for n in available
    ]
    for n, fresh in zip(available, executor.run_estimates(orders), strict=True):
        devices[n] = replace(devices[n], estimates=refresh_estimates(devices[n].estimates, fresh))
    return replace(state, devices=tuple(devices))


def run_synchronous(
    world: World, executor: Executor, state: RunState, orders: EdgeRoundOrders
) -> tuple[RunState, EdgeRoundOutcome]:
    """Trains all devices; each edge server aggregates reports as they come in. Control is charged later."""
    setting, models, devices = world.setting, list(state.models), list(state.devices)
    groups, waits = group_by_cluster(world, orders), setting.scheme.deadline_seconds == np.inf
    sizes = [len(jobs) for _, jobs in groups]
    if waits and isinstance(executor, ClusterExecutor) and executor.can_run_clusters(sizes):
        return run_clusters(world, executor, state, orders, groups)
    work: list[DeviceWork] = []

    def note(answer: JobResult) -> DeviceReport:
        report, device = answer
        devices[report.device] = device
        work.append(DeviceWork(report.device, report.steps, report.update.wire_bits, report.loss))
        return report

    answers = executor.run_updates(orders.jobs)
    for cluster, jobs in groups:
        numbers = [order.device for order, _ in jobs]
        reports: Iterable[DeviceReport] = map(note, islice(answers, len(numbers)))
        if not waits:
            # Who is late is known only when all have ended their steps, so reports are kept until then.
            done = list(reports)
            late = find_late(setting, orders.conditions, orders.plan, work[len(work) - len(done) :])
            for report in (each for each in done if each.device in late):
                devices[report.device] = return_update(devices[report.device], report.update)
            reports = [each for each in done if each.device not in late]
            numbers = [n for n in numbers if n not in late]
        update = plan_edge_update(world, orders, cluster, numbers)
        models[cluster] = update.apply(models[cluster], reports, world.edge_rules)
    assert next(answers, None) is None  # noqa: S101 — an executor ends its work after its last answer
    # Sums run by device, whichever cluster it is in.
    work.sort(key=lambda each: each.device)
    outcome = compute_outcome(setting, orders.conditions, orders.plan, work)
    return replace(state, models=tuple(models), devices=tuple(devices)), outcome


def run_gossip(world: World, executor: Executor, state: RunState, edge_rounds_done: int) -> RunState:
    """The state after edge servers have averaged their models. Control is not charged yet."""
    models: Sequence[FlatModel] = state.models
    for step in range(world.setting.scheme.gossip.steps):
        backhaul = world.setting.backhaul_at(state.control.rounds_done, edge_rounds_done, step)
        models = gossip_mix(models, backhaul.weights, executor.workers)
    return replace(state, models=tuple(models), pending=work_during_gossip(world.setting, state))


def evaluate_round(
    world: World, executor: Executor, state: RunState, *, ends_at_budget: bool = False
) -> RoundScores:
    """Evaluates the models of a round; empty when the round is not evaluated.

    Where a part of the model is personal, an edge model cannot be evaluated alone: accuracy is then the mean
    over devices of their own models. Plans and costs do not depend on any of this.
    """
    setting, asked = world.setting, world.evaluation
    ahead = world.at(state.control.rounds_done).setting
    if not is_evaluated(ahead, asked.every, state.control, ends_at_budget=ends_at_budget):
        return RoundScores()
    models = [world.edge_rules.read_average(model) for model in state.models]
    if asked.on == "mean":
        models = [mean_model(setting.fleet.sizes, dict(enumerate(models)))]
    # Where all devices share one model, its number is 0.
    members = setting.fleet.list_members()
    number = (setting.fleet.cluster[members] if len(models) > 1 else np.zeros(len(members), int)).tolist()
    measure = partial(measure_each, world, members)
    personal = losses = None
    owners = list(zip(members, number, strict=True))
    if own := _evaluate_personal(world, executor, state.devices, models, owners):
        personal = measure([each.per_sample for each in own])
        losses = measure([each.losses for each in own])
        if world.new_device.memory:
            found = summarise_devices(personal)
            metrics = {
                name: float(np.nanmean(measure([each.metrics[name] for each in own])))
                for name in world.task.metrics
            }
            return RoundScores(None if found is None else found.mean, None, personal, losses, metrics)
    edges = executor.run_evaluations(models, asked.samples)
    means = [take_means(each) for each in edges]
    alone = len(edges) == 1
    return RoundScores(
        edges[0].metric if alone else mean_metric(setting, [each.metric for each in edges]),
        lambda: measure([edges[i].per_sample for i in number]),
        personal,
        losses,
        means[0] if alone else average_metrics(setting, dict(enumerate(means)), world.task.metrics),
    )


def _evaluate_personal(
    world: World,
    executor: Executor,
    devices: Sequence[DeviceState],
    models: Sequence[FlatModel],
    owners: Sequence[tuple[int, int]],
) -> list[Evaluation]:
    """Every owner's own model, by numbers of device and edge model; empty where devices have none."""
    name = find_algorithm(world.training).personal_model
    if name is None and not world.new_device.memory:
        return []
    found: list[Evaluation] = []
    for start in range(0, len(owners), _AT_ONCE):
        part = owners[start : start + _AT_ONCE]
        own = [find_own_model(models[i], devices[n], name) for n, i in part]
        found += executor.run_evaluations(own, world.evaluation.samples)
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


def measure_peak_memory() -> int:
    """Most memory in bytes that this process has used; workers in other processes do not count."""
    # Linux counts in kibibytes, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
