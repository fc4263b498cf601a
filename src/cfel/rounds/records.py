"""From the edge rounds of a global round and its evaluation to its line of the log and its table of plans.

Where a fleet is planned by clusters, nobody adds up the numbers of all devices: every cluster adds up its own
(`count_clusters`), in the order of devices, and the sums are added in the order of clusters.
Models are evaluated elsewhere: by the simulator's executors, or by the edge servers of a deployment.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control.clusters import Decision
from cfel.control.scheme import RoundPlan
from cfel.control.setting import Setting
from cfel.cost import NO_DEVICE, EdgeRoundCost, GlobalRoundCost, global_round_cost
from cfel.learning.evaluate import Evaluation, choose_test_samples, measure_devices, summarise_devices
from cfel.membership import RoundLoss
from cfel.metric import Metric
from cfel.rounds.kernel import ControlState, EdgeRoundOutcome, is_over
from cfel.runlog import PlanTable, RoundRecord
from cfel.world import World


@dataclass(frozen=True, slots=True, eq=False)
class ClusterTotals:
    """What an edge round came to, one entry per cluster.

    Attributes:
        expected_seconds, expected_slowest, expected_joules: of the plan, as in `EdgeRoundCost`.
        realised_seconds, realised_slowest, realised_joules: of what was done.
        devices: how many took part in it, and `took_part` in this global round so far.
        rho, theta, share: sums of the plan's ρ and θ, and of the share of steps that devices were to take.
        steps, wire_bits: sums of what was done.
        loss, losses: sum of training losses, and how many there are.
        downloads: sum of what was fetched, in whole models.
    """

    expected_seconds: FloatArray
    expected_slowest: FloatArray
    expected_joules: FloatArray
    realised_seconds: FloatArray
    realised_slowest: FloatArray
    realised_joules: FloatArray
    devices: FloatArray
    took_part: FloatArray
    rho: FloatArray
    theta: FloatArray
    share: FloatArray
    steps: FloatArray
    wire_bits: FloatArray
    loss: FloatArray
    losses: FloatArray
    downloads: FloatArray = field(default_factory=lambda: np.zeros(1))  # earlier versions do not count them

    @property
    def expected(self) -> EdgeRoundCost:
        """The cost of the plan."""
        slowest = self.expected_slowest.astype(np.int64)
        return EdgeRoundCost(self.expected_seconds, slowest, float(self.expected_joules.sum()))

    @property
    def realised(self) -> EdgeRoundCost:
        """The cost of what was done."""
        slowest = self.realised_slowest.astype(np.int64)
        return EdgeRoundCost(self.realised_seconds, slowest, float(self.realised_joules.sum()))


def _make_nobody() -> ClusterTotals:
    nothing, no_device = np.zeros(1), np.full(1, float(NO_DEVICE))
    columns = {each.name: nothing for each in fields(ClusterTotals)}
    return ClusterTotals(**{**columns, "expected_slowest": no_device, "realised_slowest": no_device})


NOBODY = _make_nobody()
"""Of a cluster in which nobody took part."""


def count_clusters(setting: Setting, outcome: EdgeRoundOutcome, took_part: BoolArray) -> ClusterTotals:
    """Adds up an edge round, cluster by cluster; `took_part` in this global round so far, it included."""
    fleet, present = setting.fleet, outcome.conditions.available

    def add(values: FloatArray | BoolArray, who: BoolArray = present) -> FloatArray:
        return np.asarray(np.bincount(fleet.cluster[who], values[who], fleet.clusters), dtype=np.float64)

    losses = np.full(fleet.devices, np.nan)
    losses[list(outcome.losses)] = list(outcome.losses.values())
    stepped = np.zeros(fleet.devices, dtype=bool)
    stepped[list(outcome.losses)] = True
    expected, realised = outcome.expected, outcome.realised
    if expected.cluster_joules is None or realised.cluster_joules is None:
        raise ValueError("an edge round that was not counted by clusters")
    return ClusterTotals(
        expected_seconds=expected.seconds,
        expected_slowest=expected.slowest_device.astype(np.float64),
        expected_joules=expected.cluster_joules,
        realised_seconds=realised.seconds,
        realised_slowest=realised.slowest_device.astype(np.float64),
        realised_joules=realised.cluster_joules,
        devices=add(present),
        took_part=add(took_part, took_part),
        rho=add(outcome.plan.rho),
        theta=add(outcome.plan.theta),
        share=add(setting.share_steps(outcome.plan)),
        steps=add(outcome.steps),
        wire_bits=add(outcome.wire_bits),
        loss=add(losses, stepped),
        losses=add(stepped, stepped),
        downloads=add(outcome.downloads),
    )


@dataclass(frozen=True, slots=True, eq=False)
class RoundTotals:
    """What a global round came to, as its record says it.

    Attributes:
        cost: realised; plans make devices finish together, so who was waited for shows in what was done.
        plans: of the edge rounds, or the decisions behind them.
        rho_mean, theta_mean, loss: means; the last one is None without any.
        share, theta: sums of the shares of steps, and of θ, that were planned.
        steps, wire_bits: of what was done.
        downloads: what devices fetched, in whole models.
        took_part: how many took part in at least one of them.
    """

    cost: GlobalRoundCost
    plans: Sequence[RoundPlan | Decision]
    rho_mean: float
    theta_mean: float
    loss: float | None
    share: float
    theta: float
    steps: int
    wire_bits: float
    downloads: float
    took_part: int


def add_up(setting: Setting, edge_rounds: Sequence[EdgeRoundOutcome]) -> RoundTotals:
    """Adds up the edge rounds of a global round."""
    present = [each.conditions.available for each in edge_rounds]
    if setting.by_clusters:
        so_far = np.logical_or.accumulate(present)
        counted = [count_clusters(setting, each, who) for each, who in zip(edge_rounds, so_far, strict=True)]
        return add_up_clusters(setting, counted, [each.plan for each in edge_rounds])
    plans = [each.plan for each in edge_rounds]
    losses = [loss for each in edge_rounds for loss in each.losses.values()]
    return RoundTotals(
        cost=_count_cost(setting, [each.realised for each in edge_rounds]),
        plans=plans,
        rho_mean=_mean([plan.rho[who] for plan, who in zip(plans, present, strict=True)]),
        theta_mean=_mean([plan.theta[who] for plan, who in zip(plans, present, strict=True)]),
        loss=math.fsum(losses) / len(losses) if losses else None,
        share=_sum_present(edge_rounds, setting.share_steps),
        theta=_sum_present(edge_rounds, lambda plan: plan.theta),
        steps=int(sum(each.steps.sum() for each in edge_rounds)),
        wire_bits=sum(float(each.wire_bits.sum()) for each in edge_rounds),
        downloads=math.fsum(float(each.downloads.sum()) for each in edge_rounds),
        took_part=int(np.logical_or.reduce(present).sum()),
    )


def add_up_clusters(
    setting: Setting, edge_rounds: Sequence[ClusterTotals], plans: Sequence[RoundPlan | Decision]
) -> RoundTotals:
    """Adds up what clusters have added up."""

    def add(values: Callable[[ClusterTotals], FloatArray]) -> float:
        return math.fsum(float(values(each).sum()) for each in edge_rounds)

    orders, losses = add(lambda each: each.devices), add(lambda each: each.losses)
    return RoundTotals(
        cost=_count_cost(setting, [each.realised for each in edge_rounds]),
        plans=plans,
        rho_mean=add(lambda each: each.rho) / orders if orders else 0.0,
        theta_mean=add(lambda each: each.theta) / orders if orders else 0.0,
        loss=add(lambda each: each.loss) / losses if losses else None,
        share=add(lambda each: each.share),
        theta=add(lambda each: each.theta),
        steps=int(add(lambda each: each.steps)),
        wire_bits=add(lambda each: each.wire_bits),
        downloads=add(lambda each: each.downloads) if setting.downloads_differences else orders,
        took_part=int(edge_rounds[-1].took_part.sum()) if edge_rounds else 0,
    )


def _count_cost(setting: Setting, edge_rounds: Sequence[EdgeRoundCost]) -> GlobalRoundCost:
    return global_round_cost(
        edge_rounds, setting.exchange_seconds, every_edge_round=setting.scheme.gossip.every_edge_round
    )


def _mean(parts: list[np.ndarray]) -> float:
    joined = np.concatenate(parts)
    return float(joined.mean()) if len(joined) else 0.0


def _sum_present(edge_rounds: Sequence[EdgeRoundOutcome], values: Callable[[RoundPlan], FloatArray]) -> float:
    """The sum of a plan's column over the devices that took part, in all edge rounds."""
    return math.fsum(float(values(each.plan)[each.conditions.available].sum()) for each in edge_rounds)


@dataclass(frozen=True, slots=True, eq=False)
class RoundScores:
    """What was measured after a round."""

    accuracy: float | None = None  # the task's metric; None when the round was not evaluated
    # Measures the edge models per device, on test samples like its own; None if it cannot.
    devices: Callable[[], FloatArray] | None = None
    personal: FloatArray | None = None  # the same of devices' own models; None where they have none
    personal_losses: FloatArray | None = None  # the task's loss of these
    # The task's further metrics, averaged like accuracy.
    metrics: Mapping[str, float] = field(default_factory=dict)

    def add_to(self, record: RoundRecord, metric: Metric, *, per_device: bool) -> RoundRecord:
        """The record with these values of a metric, and with those of edge models per device if asked for."""
        record = replace(record, metrics=dict(self.metrics))
        devices = self.devices() if per_device and self.devices is not None else None
        found = None if devices is None else summarise_devices(devices, metric)
        if found is not None:
            record = replace(
                record,
                device_accuracy_mean=found.mean,
                device_accuracy_worst=found.worst,
                device_accuracy_spread=found.spread,
            )
        own = None if self.personal is None else summarise_devices(self.personal, metric)
        if own is None or self.personal_losses is None:
            return record
        return replace(
            record,
            personal_accuracy_mean=own.mean,
            personal_accuracy_worst=own.worst,
            personal_accuracy_spread=own.spread,
            personal_loss=float(np.nanmean(self.personal_losses)),
        )


def make_record(
    world: World,
    control: ControlState,
    totals: RoundTotals,
    scores: RoundScores,
    *,
    model_sha256: str,
    wall_seconds: float,
    ends_at_budget: bool = False,
    peak_memory_bytes: int | None = None,
    losses: Sequence[RoundLoss] = (),
) -> RoundRecord:
    """The log's line for a global round that has just ended; `control` has its costs already.

    `scores` are empty when the round was not evaluated; `ends_at_budget` says that the budgets do not cover
    another round.
    """
    setting, ahead = (world.at(control.rounds_done - 1 + later).setting for later in (0, 1))
    ledger = control.ledger(setting)
    record = RoundRecord(
        round=control.rounds_done,
        seconds=ledger.seconds,
        joules=ledger.joules,
        seconds_expected=control.expected.seconds,
        joules_expected=control.expected.joules,
        seconds_realised=control.realised.seconds,
        joules_realised=control.realised.joules,
        accuracy=scores.accuracy,
        loss=totals.loss,
        wall_seconds=wall_seconds,
        model_sha256=model_sha256,
        straggler=None if totals.cost.straggler == NO_DEVICE else totals.cost.straggler,
        slowest_cluster=totals.cost.slowest_cluster,
        ends_at_budget=ends_at_budget,
        peak_memory_bytes=peak_memory_bytes,
        changes=world.changes_after(control.rounds_done),
        losses=tuple(losses),
        **_describe_plans(totals),
        **_count_work(setting, totals, control.rounds_done - 1),
    )
    over = is_over(ahead.rounds, ahead.budget, setting.metrics[0], record)
    return scores.add_to(record, setting.metrics[0], per_device=world.evaluation.measures_devices(over=over))


def _describe_plans(totals: RoundTotals) -> dict[str, Any]:
    """Fields of a record that the round's plans give."""
    plans = totals.plans
    return {
        "rho_mean": totals.rho_mean,
        "theta_mean": totals.theta_mean,
        # Those of the last edge round: the next plan starts from them.
        "sigma2": plans[-1].sigma2,
        "g2": plans[-1].g2,
        "gap": _find_gap(plans),
        "feasible": all(plan.feasible for plan in plans),
        # Each sentence once, however many edge rounds report it.
        "violations": tuple(dict.fromkeys(words for plan in plans for words in plan.violations)),
        "devices_taking_part": totals.took_part,
    }


def _count_work(setting: Setting, totals: RoundTotals, global_round: int) -> dict[str, Any]:
    """Fields of a record that count steps and bytes of a global round (from 0)."""
    uploads, backhaul = totals.wire_bits / 8, setting.count_backhaul_bits(global_round) / 8
    return {
        "wire_bytes": math.ceil(uploads + backhaul),
        "steps_planned": setting.rounds.local_steps * totals.share,
        "steps_taken": totals.steps,
        "upload_bytes_planned": math.ceil(setting.upload_bits / 8 * totals.theta),
        "upload_bytes": math.ceil(uploads),
        "backhaul_bytes": math.ceil(backhaul),
        "backhaul_joules": setting.compute_backhaul_joules(global_round),
        "download_bytes": math.ceil(totals.downloads * setting.full_model_bits / 8),
    }


def make_plan_table(setting: Setting, edge_rounds: Sequence[EdgeRoundOutcome], number: int) -> PlanTable:
    """One row per edge round and device that took part."""
    present = [np.flatnonzero(each.conditions.available) for each in edge_rounds]

    def column(values: Callable[[EdgeRoundOutcome], np.ndarray]) -> np.ndarray:
        return np.concatenate([values(each)[who] for each, who in zip(edge_rounds, present, strict=True)])

    return PlanTable(
        round=number,
        edge_round=np.repeat(np.arange(len(edge_rounds)), [len(who) for who in present]),
        device=np.concatenate(present),
        cluster=column(lambda _: setting.fleet.cluster),
        rho=column(lambda each: each.plan.rho),
        theta=column(lambda each: each.plan.theta),
        mu=column(lambda each: each.conditions.mu),
        alpha=column(lambda each: each.conditions.alpha),
        nu=column(lambda each: each.conditions.nu),
        power=column(lambda each: each.conditions.power),
        speed=column(_list_clocks),
        steps=column(lambda each: each.steps),
        seconds=column(lambda each: each.seconds),
        joules=column(lambda each: each.joules),
    )


def _list_clocks(outcome: EdgeRoundOutcome) -> np.ndarray:
    clock = outcome.plan.speed
    return np.ones_like(outcome.plan.rho) if clock is None else clock


def _find_gap(plans: Sequence[RoundPlan | Decision]) -> float | None:
    """The worst of the edge rounds: a record must not claim more than each of its plans can prove."""
    gaps = [plan.gap for plan in plans]
    return None if any(map(math.isnan, gaps)) else max(gaps)


def measure_each(world: World, devices: Sequence[int], values: Sequence[FloatArray]) -> FloatArray:
    """A metric of some devices, on test samples like their own; NaN where there are none.

    `values` are, per device, the metric of its model for each evaluated sample.
    """
    data, samples = world.task.data, world.evaluation.samples or None
    places = choose_test_samples(len(data.test_targets), samples, world.setting.seed).numpy()
    return measure_devices(data, [world.data[n] for n in devices], places, values)


def mean_metric(setting: Setting, metrics: Sequence[float], clusters: Collection[int] | None = None) -> float:
    """The edge models' metrics, in cluster order, averaged over the devices of all or some clusters.

    Clusters that have no devices count alike if no others are given.
    """
    sizes = setting.fleet.sizes
    if clusters:
        there = np.isin(np.arange(len(sizes)), list(clusters))
        sizes = np.where(there, sizes if sizes[there].any() else 1, 0)
    shares = sizes / sizes.sum()
    parts = [float(share) * metric for share, metric in zip(shares, metrics, strict=True)]
    # `fsum` raises an error where parts are infinite in both directions.
    return math.fsum(parts) if all(map(math.isfinite, parts)) else sum(parts)


def take_means(evaluation: Evaluation) -> dict[str, float]:
    """The mean of each of the task's further metrics over the evaluated samples."""
    return {name: float(values.mean()) for name, values in evaluation.metrics.items()}


def average_metrics(
    setting: Setting, metrics: Mapping[int, Mapping[str, float]], names: Collection[str]
) -> dict[str, float]:
    """The task's further metrics by cluster, some of which may be missing, averaged over devices."""
    if not metrics:
        return {}
    by_cluster = [metrics.get(i) for i in range(setting.fleet.clusters)]
    return {
        name: mean_metric(setting, [0.0 if each is None else each[name] for each in by_cluster], metrics)
        for name in names
    }
