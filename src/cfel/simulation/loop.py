"""The round loop (Algorithm 1) in virtual time: plan, train, aggregate, gossip, count the cost, record.

`run_in_directory` creates or resumes a run directory, appends every round and saves checkpoints. `simulate`
is the loop, pure but for the executor: a `RunState` in, outcomes with the next state out. Plans, costs and
records come from `rounds`, arithmetic on models from `learning`, as they do in a deployment.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path

import numpy as np

from cfel.arrays import BoolArray
from cfel.control.scheme import Observation, RoundPlan
from cfel.control.setting import Setting
from cfel.durable import translate_parse_errors
from cfel.errors import DivergedError, RunDirectoryError
from cfel.learning.device import return_update
from cfel.learning.device_messages import DeviceReport, DeviceState
from cfel.learning.differences import find_issue_key, find_key, gossip_differences, publish_models
from cfel.learning.edge import gossip_mix, mean_model
from cfel.learning.evaluate import Evaluation, summarise_devices
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.estimates import refresh_estimates
from cfel.learning.models.flat import FlatModel, complete_model, digest_models, join_digests
from cfel.membership import RoundLoss
from cfel.rounds.estimates import needs_estimates, note_influence, view_estimates
from cfel.rounds.kernel import (
    DeviceWork,
    EdgeRoundOutcome,
    charge_edge_round,
    charge_gossip,
    close_global_round,
    compute_outcome,
    device_weights,
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
    add_up,
    average_metrics,
    make_plan_table,
    make_record,
    mean_metric,
    measure_each,
    take_means,
)
from cfel.rounds.run_directory import RunRequest, open_run
from cfel.runlog import RoundRecord, RunDirectory, RunWriter, holds_run
from cfel.simulation.buffered import find_busy, run_buffered, work_during_gossip
from cfel.simulation.executors import ClusterExecutor, ClusterJob, EdgeUpdate, Executor, Job, JobResult
from cfel.simulation.state import (
    EdgeRoundOrders,
    RoundOutcome,
    RunState,
    enter_round,
    from_checkpoint,
    initial_state,
    to_checkpoint,
)
from cfel.system.conditions import Conditions
from cfel.wording import plural
from cfel.world import World

# Whole models of devices that are made at a time.
_AT_ONCE = 16


Progress = Callable[[RoundRecord], None]
"""Called with every finished round."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Hooks into a run."""

    # Entered once the directory is known to be this run's, and left at its end; gives what to call with every
    # round once it is written.
    follow: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(lambda _: None)
    # Called after every round; true ends the run there, with a checkpoint.
    interrupted: Callable[[], bool] = lambda: False


def run_in_directory(
    world: World,
    executor: Executor,
    request: RunRequest,
    checkpoint_every: int = 1,
    watch: Watch | None = None,
) -> list[RoundRecord]:
    """Runs an experiment to its end and leaves the run directory complete; returns the records of all rounds.

    Checkpoints are saved every so many global rounds; with 0, only the last.

    Raises:
        RunDirectoryError: the run cannot start or be resumed there, or a file cannot be written.
        DivergedError: training diverged; the checkpoint is of the last round in the log.
        KeyboardInterrupt: the run was interrupted; the checkpoint is of the last round in the log.
    """
    if request.resume and holds_run(request.path):
        _reject_deployment(request.path)
    writer, checkpoint = open_run(request, world.setting)
    with writer:
        if checkpoint is None:
            state = initial_state(world)
        else:
            with translate_parse_errors(request.path / "checkpoint"):
                state = from_checkpoint(checkpoint, world)
        outcomes = simulate(world, executor, state, time.perf_counter)
        _write_rounds(world, state, outcomes, writer, checkpoint_every, watch or Watch())
    return list(RunDirectory.open(request.path).records())


def _write_rounds(
    world: World,
    state: RunState,
    outcomes: Iterator[RoundOutcome],
    writer: RunWriter,
    checkpoint_every: int,
    watch: Watch,
) -> None:
    """Runs the rounds that are left, each written before the next begins; the last good one is saved."""
    done = RunDirectory.open(writer.path).records()
    with watch.follow() as progress:
        # A finished run is followed, too: a tracker may be new to it.
        if done and _ends(world, done[-1]):
            return
        last_saved, stopped = state.control.rounds_done, False
        diverged: DivergedError | None = None
        try:
            for outcome in outcomes:
                writer.append(outcome.record, outcome.plans)
                state, number = outcome.state, outcome.record.round
                stopped = watch.interrupted() and not _ends(world, outcome.record)
                if stopped or (checkpoint_every and number % checkpoint_every == 0):
                    writer.save_checkpoint(to_checkpoint(state))
                    last_saved = number
                progress(outcome.record)
                if stopped:
                    break
        except DivergedError as error:
            diverged = error
        if last_saved < state.control.rounds_done:
            writer.save_checkpoint(to_checkpoint(state))
        writer.wait()
        if diverged is not None:
            raise diverged.add_details(advice=_advice(writer.path, state.control.rounds_done)) from diverged
        if stopped:
            raise KeyboardInterrupt


def _ends(world: World, record: RoundRecord) -> bool:
    setting = world.at(record.round).setting
    return is_over(setting.rounds, setting.budget, setting.metrics[0], record)


def _advice(path: Path, good_rounds: int) -> str:
    """What can be done with the directory of a run that diverged."""
    smaller = "with a smaller --set local.learning_rate=… and another --out"
    if not good_rounds:
        return f". No round was finished: run it again {smaller}"
    kept = plural(good_rounds, "round")
    return (
        f". {kept} and a checkpoint are kept in {path}; --resume would only meet the same again. Run it "
        f"again {smaller}; to start from the last good model, `cfel export {path} --to good.safetensors` and "
        "--set model.init=good.safetensors"
    )


def _reject_deployment(path: Path) -> None:
    """Raises if the run is a federation's, or one of its edge servers': resuming it would cut its log."""
    if (path / "nodes").is_dir() or (path / "vote.json").exists():
        raise RunDirectoryError(
            f"{path} holds a deployment's run, whose devices keep their own state: "
            "resume it with `cfel up --resume`, or start its nodes again"
        )


def simulate(
    world: World, executor: Executor, state: RunState, now: Callable[[], float]
) -> Iterator[RoundOutcome]:
    """Runs global rounds from a state to the experiment's end; `now` is the wall clock, for the log only."""
    over = _is_complete(world, state)
    # Of edge models after the last gossip that each took part in.
    digests: dict[int, bytes] = {}
    while not over:
        begin = now()
        world, state = world.at(state.control.rounds_done), enter_round(world, state)
        setting = world.setting
        new = [i for i in setting.fleet.list_edges() if i not in digests]
        digests |= zip(new, digest_models([state.models[i] for i in new]), strict=True)
        edge_rounds: list[EdgeRoundOutcome] = []
        for edge_round in range(setting.rounds.edge_rounds):
            state, outcome = run_edge_round(world, executor, state, edge_round)
            edge_rounds.append(outcome)
            if setting.scheme.gossip.is_due_within(edge_round, setting.rounds.edge_rounds):
                state = run_gossip(world, executor, state, edge_round + 1)
                if world.losses:  # else those after the last gossip are enough
                    digests |= _digest_mixed(state.models, find_mixed(world, state, edge_round + 1))
                state = replace(state, control=charge_gossip(setting, state.control))
        state = run_gossip(world, executor, state, setting.rounds.edge_rounds)
        mixed = find_mixed(world, state, setting.rounds.edge_rounds)
        averaged = [
            world.edge_rules.add_to_average(model) if i in mixed[-1] else model
            for i, model in enumerate(state.models)
        ]
        control = close_global_round(setting, state.control)
        state = replace(state, control=control, models=tuple(averaged))
        digests |= _digest_mixed(state.models, mixed)
        # Whether the run is over depends on what is left of it, changes that follow included.
        ahead, entered = world.at(control.rounds_done).setting, enter_round(world, state)
        last = ends_at_budget(ahead, entered.control, partial(_look_ahead, ahead, entered))
        record = make_record(
            world,
            control,
            add_up(setting, edge_rounds),
            evaluate_round(world, executor, state, ends_at_budget=last),
            model_sha256=join_digests(digests[i] for i in setting.fleet.list_edges()),
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
    loss = world.losses.get((control.rounds_done + 1, edge_round, None))
    if loss is not None:
        conditions = conditions.without(mark(loss.absent, setting.fleet.devices))
    if buffered:
        conditions = conditions.without(find_busy(state.pending, setting.fleet.devices))
    before, state = state.issued, issue(world, state, edge_round, executor.workers)
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
        if loss is not None:
            state = lose_updates(
                executor, state, make_jobs(world, state, edge_round, conditions, plan, rate), loss
            )
            conditions = conditions.without(mark(loss.lost, setting.fleet.devices))
        orders = EdgeRoundOrders(
            number=control.rounds_done * setting.rounds.edge_rounds + edge_round,
            conditions=conditions,
            plan=plan,
            used=used,
            jobs=make_jobs(world, state, edge_round, conditions, plan, rate),
        )
        run = run_buffered if buffered else run_synchronous
        state, outcome = run(world, executor, state, orders)
    state = replace(state, control=charge_edge_round(control, outcome))
    if state.issued:
        # Where nobody took part the issue is void, see `EdgeServer`.
        took_part = np.unique(setting.fleet.cluster[outcome.conditions.available])
        issued = [new if i in took_part else before[i] for i, new in enumerate(state.issued)]
        state = replace(state, issued=tuple(issued))
    return state, outcome


def issue(world: World, state: RunState, edge_round: int, workers: int) -> RunState:
    """The state with the models that devices train from in an edge round, where they fetch differences."""
    if world.downloads is None:
        return state
    at, seed = (state.control.rounds_done, edge_round), world.setting.seed
    keys = [find_issue_key(seed, *at, i) for i in range(len(state.models))]
    issued = publish_models(state.models, state.issued, world.downloads, keys, workers)
    return replace(state, issued=tuple(issued))


def lose_updates(executor: Executor, state: RunState, jobs: Sequence[Job], loss: RoundLoss) -> RunState:
    """The state after devices have trained whose updates get lost: only they know of it."""
    devices = list(state.devices)
    for report, device in executor.run_updates([job for job in jobs if job[0].device in loss.trained]):
        before = devices[report.device].estimates
        devices[report.device] = replace(return_update(device, report.update), estimates=before)
    return replace(state, devices=tuple(devices))


def mark(devices: Sequence[int], size: int) -> BoolArray:
    """Per device, whether it is one of these."""
    return np.isin(np.arange(size), devices)


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
                model=state.offered[cluster[n]],
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
            complete_model(state.offered[setting.fleet.cluster[n]], devices[n].memory),
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
    outcome = compute_outcome(setting, orders.conditions, orders.plan, work, state.control.missed)
    return replace(state, models=tuple(models), devices=tuple(devices)), outcome


def group_by_cluster(world: World, orders: EdgeRoundOrders) -> list[tuple[int, list[Job]]]:
    """The jobs of every cluster that takes part; they are sorted by cluster."""
    cluster = world.setting.fleet.cluster
    groups = groupby(orders.jobs, lambda job: int(cluster[job[0].device]))
    return [(number, list(jobs)) for number, jobs in groups]


def run_clusters(
    world: World,
    executor: ClusterExecutor,
    state: RunState,
    orders: EdgeRoundOrders,
    groups: Sequence[tuple[int, Sequence[Job]]],
) -> tuple[RunState, EdgeRoundOutcome]:
    """One edge round, cluster by cluster. Control is charged later."""
    models, devices, work = list(state.models), list(state.devices), []
    jobs = [
        ClusterJob(
            own,
            plan_edge_update(world, orders, cluster, [order.device for order, _ in own]),
            models[cluster],
        )
        for cluster, own in groups
    ]
    for (cluster, _), result in zip(groups, executor.run_clusters(jobs), strict=True):
        models[cluster] = result.model
        for each, kept in result.devices:
            devices[each.device] = kept
            work.append(each)
    # Sums run by device, whichever cluster it is in.
    work.sort(key=lambda each: each.device)
    outcome = compute_outcome(world.setting, orders.conditions, orders.plan, work, state.control.missed)
    return replace(state, models=tuple(models), devices=tuple(devices)), outcome


def plan_edge_update(
    world: World, orders: EdgeRoundOrders, cluster: int, devices: Sequence[int]
) -> EdgeUpdate:
    """The update of a cluster's edge model by these of its devices."""
    setting, local = world.setting, world.training.local
    return EdgeUpdate(
        weights=device_weights(setting, orders.plan, {n: world.data[n].samples for n in devices}),
        share=len(devices) / int(setting.fleet.sizes[cluster]),
        rate=local.learning_rate * local.find_rate(orders.used),
        used=orders.used,
    )


def run_gossip(world: World, executor: Executor, state: RunState, edge_rounds_done: int) -> RunState:
    """The state after edge servers have averaged their models. Control is not charged yet."""
    models: Sequence[FlatModel] = state.models
    public: Sequence[FlatModel] = state.public
    for step in range(world.setting.scheme.gossip.steps):
        backhaul = world.setting.backhaul_at(state.control.rounds_done, edge_rounds_done, step)
        at = state.control.rounds_done, edge_rounds_done, step
        loss = world.losses.get((at[0] + 1, *at[1:]))
        weights = backhaul.weights if loss is None else np.array(loss.rows)
        took_part = [loss is None or i in loss.mixed for i in range(len(models))]
        if world.differences is None:
            mixed = gossip_mix(models, weights, executor.workers)
        else:
            keys = [find_key(world.setting.seed, at, i) for i in range(len(models))]
            mixed, sent = gossip_differences(
                models, public, weights, world.differences, keys, executor.workers
            )
            public = [new if took_part[i] else public[i] for i, new in enumerate(sent)]
        # One that missed the step keeps its model.
        models = [new if took_part[i] else models[i] for i, new in enumerate(mixed)]
    return replace(
        state, models=tuple(models), public=tuple(public), pending=work_during_gossip(world.setting, state)
    )


def find_mixed(world: World, state: RunState, edge_rounds_done: int) -> list[tuple[int, ...]]:
    """Per step of a gossip exchange, the edge servers that took part in it."""
    number, everybody = state.control.rounds_done + 1, tuple(world.setting.fleet.list_edges())
    steps = range(world.setting.scheme.gossip.steps)
    losses = (world.losses.get((number, edge_rounds_done, step)) for step in steps)
    return [everybody if loss is None else loss.mixed for loss in losses]


def _digest_mixed(models: Sequence[FlatModel], mixed: Sequence[Sequence[int]]) -> dict[int, bytes]:
    """The digests of those that took part in a step; one that missed later steps has kept its model since."""
    found = sorted(set().union(*mixed))
    return dict(zip(found, digest_models([models[i] for i in found]), strict=True))


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
    """The model that a device uses itself, made of its edge server's and what it remembers.

    `name` is that of the whole model that its algorithm keeps; None if it keeps a part, or nothing.
    """
    if name is None:
        return complete_model(model, device.memory)
    # A device that has not taken part yet has nothing but the edge model.
    return FlatModel(device.memory[name], model.buffers) if name in device.memory else model


def measure_peak_memory() -> int:
    """Most memory in bytes that this process has used; workers in other processes do not count."""
    # Linux counts in kibibytes, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
