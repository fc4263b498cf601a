"""What edge rounds come to: sums over clusters, from which ledgers and records are made.

Where a fleet is planned by clusters, nobody adds up the numbers of all devices: every cluster adds up its own
(`count_clusters`), in the order of devices, and the sums are added in the order of clusters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control.clusters import Decision
from cfel.control.scheme import RoundPlan
from cfel.control.setting import Setting
from cfel.cost import NO_DEVICE, EdgeRoundCost, GlobalRoundCost, global_round_cost
from cfel.rounds.kernel import EdgeRoundOutcome


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
        orders: how many devices took part, those of all edge rounds added.
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
    orders: int
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
        orders=sum(int(who.sum()) for who in present),
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
        orders=int(orders),
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
