"""From the edge rounds of a global round to its line of the log and its table of plans."""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.scheme import RoundPlan
from cfel.control.setting import Setting
from cfel.cost.rounds import NO_DEVICE, global_round_cost
from cfel.rounds.kernel import ControlState, EdgeRoundOutcome
from cfel.rounds.parameters import SimulationParameters
from cfel.runlog import PlanTable, RoundRecord


def make_record(
    setting: Setting,
    parameters: SimulationParameters,
    control: ControlState,
    edge_rounds: Sequence[EdgeRoundOutcome],
    *,
    accuracy: float | None,
    model_sha256: str,
    wall_seconds: float,
    peak_memory_bytes: int | None = None,
) -> RoundRecord:
    """The log's line for a global round that has just ended.

    Args:
        setting: the controlled system.
        parameters: which account counts.
        control: what has been spent, this round included.
        edge_rounds: of this global round.
        accuracy: the task's metric, or None when this round was not evaluated.
        model_sha256: of the edge models.
        wall_seconds: real time the round took.
        peak_memory_bytes: most memory used so far, if known.
    """
    ledger = control.ledger(parameters)
    # Plans make devices finish together, up to rounding; who was waited for shows in the steps really taken.
    total = global_round_cost(
        [each.realised for each in edge_rounds],
        setting.exchange_seconds,
        every_edge_round=setting.scheme.gossip.every_edge_round,
    )
    plans = [each.plan for each in edge_rounds]
    present = [each.conditions.available for each in edge_rounds]
    uploads = _upload_bytes(edge_rounds)
    backhaul = setting.count_backhaul_bits(control.rounds_done - 1) / 8
    losses = [loss for each in edge_rounds for loss in each.losses.values()]
    return RoundRecord(
        round=control.rounds_done,
        seconds=ledger.seconds,
        joules=ledger.joules,
        seconds_expected=control.expected.seconds,
        joules_expected=control.expected.joules,
        seconds_realised=control.realised.seconds,
        joules_realised=control.realised.joules,
        accuracy=accuracy,
        loss=math.fsum(losses) / len(losses) if losses else None,
        rho_mean=_mean([plan.rho[who] for plan, who in zip(plans, present, strict=True)]),
        theta_mean=_mean([plan.theta[who] for plan, who in zip(plans, present, strict=True)]),
        # Those of the last edge round: the next plan starts from them.
        sigma2=plans[-1].sigma2,
        g2=plans[-1].g2,
        gap=_find_gap(plans),
        feasible=all(plan.feasible for plan in plans),
        # Each sentence once, however many edge rounds report it.
        violations=tuple(dict.fromkeys(words for plan in plans for words in plan.violations)),
        wire_bytes=math.ceil(uploads + backhaul),
        wall_seconds=wall_seconds,
        model_sha256=model_sha256,
        straggler=None if total.straggler == NO_DEVICE else total.straggler,
        slowest_cluster=total.slowest_cluster,
        devices_taking_part=int(np.logical_or.reduce(present).sum()),
        steps_planned=setting.rounds.local_steps * _sum_present(edge_rounds, setting.share_steps),
        steps_taken=int(sum(each.steps.sum() for each in edge_rounds)),
        upload_bytes_planned=math.ceil(
            setting.model_bits / 8 * _sum_present(edge_rounds, lambda plan: plan.theta)
        ),
        upload_bytes=math.ceil(uploads),
        backhaul_bytes=math.ceil(backhaul),
        peak_memory_bytes=peak_memory_bytes,
    )


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
        speed=column(_speeds),
        steps=column(lambda each: each.steps),
        seconds=column(lambda each: each.seconds),
        joules=column(lambda each: each.joules),
    )


def _speeds(outcome: EdgeRoundOutcome) -> np.ndarray:
    speed = outcome.plan.speed
    return np.ones_like(outcome.plan.rho) if speed is None else speed


def mean_metric(setting: Setting, metrics: Sequence[float], clusters: Collection[int] | None = None) -> float:
    """The edge models' metrics, averaged over devices.

    Args:
        setting: the clusters' sizes.
        metrics: in cluster order.
        clusters: those whose edge server is there; None, or none of them, for all.
    """
    sizes = setting.fleet.sizes
    if clusters:
        there = np.isin(np.arange(len(sizes)), list(clusters))
        sizes = np.where(there, sizes, 0)
    shares = sizes / sizes.sum()
    parts = [float(share) * metric for share, metric in zip(shares, metrics, strict=True)]
    # `fsum` raises an error where parts are infinite in both directions.
    return math.fsum(parts) if all(map(math.isfinite, parts)) else sum(parts)


def _mean(parts: list[np.ndarray]) -> float:
    joined = np.concatenate(parts)
    return float(joined.mean()) if len(joined) else 0.0


def _find_gap(plans: Sequence[RoundPlan]) -> float | None:
    """The worst of the edge rounds: a record must not claim more than each of its plans can prove."""
    gaps = [plan.gap for plan in plans]
    return None if any(map(math.isnan, gaps)) else max(gaps)


def _sum_present(edge_rounds: Sequence[EdgeRoundOutcome], values: Callable[[RoundPlan], FloatArray]) -> float:
    """The sum of a plan's column over the devices that took part, in all edge rounds."""
    return math.fsum(float(values(each.plan)[each.conditions.available].sum()) for each in edge_rounds)


def _upload_bytes(edge_rounds: Sequence[EdgeRoundOutcome]) -> float:
    return sum(float(each.wire_bits.sum()) for each in edge_rounds) / 8
