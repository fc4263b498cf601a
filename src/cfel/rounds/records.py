"""From what happened in a global round to its line of the log and its table of plans."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cfel.cost import Ledger, global_round_cost
from cfel.cost.rounds import NOBODY
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import weighted_model
from cfel.rounds.outcome import EdgeRoundOutcome, Spent
from cfel.rounds.parameters import SimulationParameters
from cfel.runlog import PlanTable, RoundRecord
from cfel.world import World


def round_record(
    world: World,
    parameters: SimulationParameters,
    spent: Spent,
    edge_rounds: Sequence[EdgeRoundOutcome],
    *,
    accuracy: float | None,
    model_sha256: str,
    wall_seconds: float,
) -> RoundRecord:
    """The log's line for a round that gossip has just closed.

    Args:
        world: what is run.
        parameters: which account counts.
        spent: what the run has come to, this round included.
        edge_rounds: of this global round.
        accuracy: the task's metric, or None when this round was not evaluated.
        model_sha256: of the edge models.
        wall_seconds: real time the round took.
    """
    by_plan = parameters.accounting == "expected"
    ledger = _ledger(parameters, spent)
    costs = [each.expected if by_plan else each.realised for each in edge_rounds]
    every = world.scheme.gossip.every_edge_round
    total = global_round_cost(costs, world.exchange_seconds, every_edge_round=every)
    plans = [each.plan for each in edge_rounds]
    present = [each.conditions.available for each in edge_rounds]
    losses = [loss for each in edge_rounds for loss in each.losses]
    return RoundRecord(
        round=spent.rounds_done,
        seconds=ledger.seconds,
        joules=ledger.joules,
        seconds_expected=spent.expected.seconds,
        joules_expected=spent.expected.joules,
        seconds_realised=spent.realised.seconds,
        joules_realised=spent.realised.joules,
        accuracy=accuracy,
        loss=math.fsum(losses) / len(losses) if losses else None,
        rho_mean=_mean([plan.rho[who] for plan, who in zip(plans, present, strict=True)]),
        theta_mean=_mean([plan.theta[who] for plan, who in zip(plans, present, strict=True)]),
        sigma2=plans[-1].sigma2,
        g2=plans[-1].g2,
        gap=max(plan.gap for plan in plans),
        feasible=all(plan.feasible for plan in plans),
        violations=tuple(dict.fromkeys(words for plan in plans for words in plan.violations)),
        wire_bytes=_wire_bytes(world, edge_rounds),
        wall_seconds=wall_seconds,
        model_sha256=model_sha256,
        straggler=None if total.straggler == NOBODY else total.straggler,
        slowest_cluster=total.slowest_cluster,
        devices_taking_part=int(np.logical_or.reduce(present).sum()),
    )


def plan_table(world: World, edge_rounds: Sequence[EdgeRoundOutcome], number: int) -> PlanTable:
    """One row per edge round and device that took part."""
    present = [np.flatnonzero(each.conditions.available) for each in edge_rounds]

    def column(values: Callable[[EdgeRoundOutcome], np.ndarray]) -> np.ndarray:
        return np.concatenate([values(each)[who] for each, who in zip(edge_rounds, present, strict=True)])

    return PlanTable(
        round=number,
        edge_round=np.repeat(np.arange(len(edge_rounds)), [len(who) for who in present]),
        device=np.concatenate(present),
        cluster=column(lambda _: world.fleet.cluster),
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


def mean_model(world: World, models: Mapping[int, FlatModel]) -> FlatModel:
    """The averaged model u: every device counts alike, so every edge model counts N_i / N.

    Args:
        world: what is run.
        models: by cluster; N counts the devices of those that are there.
    """
    sizes = {i: int(world.fleet.sizes[i]) for i in models}
    devices = sum(sizes.values())
    return weighted_model(models, {i: size / devices for i, size in sizes.items()})


def is_evaluated(world: World, parameters: SimulationParameters, spent: Spent) -> bool:
    """Whether the round just closed is evaluated: every so often, and the last one always."""
    ledger = _ledger(parameters, spent)
    last = spent.rounds_done >= world.rounds.global_rounds or _used_up(world, parameters, ledger)
    return last or spent.rounds_done % parameters.evaluate_every == 0


def mean_metric(world: World, metrics: Sequence[float]) -> float:
    """The edge models' metrics, in cluster order, averaged over devices."""
    shares = world.fleet.sizes / world.fleet.devices
    return math.fsum(float(share) * metric for share, metric in zip(shares, metrics, strict=True))


def is_last(world: World, parameters: SimulationParameters, record: RoundRecord) -> bool:
    """Whether the run ends with this round: all rounds done, a budget used up, or the target reached."""
    if record.round >= world.rounds.global_rounds or _used_up(world, parameters, record):
        return True
    if parameters.stop != "target" or parameters.target is None or record.accuracy is None:
        return False
    return record.accuracy >= parameters.target


def _used_up(world: World, parameters: SimulationParameters, spent: Ledger | RoundRecord) -> bool:
    """Whether the run is to stop at its budgets and has come to one of them."""
    budget = world.budget
    return parameters.stop == "budget" and (spent.seconds >= budget.seconds or spent.joules >= budget.joules)


def _ledger(parameters: SimulationParameters, spent: Spent) -> Ledger:
    return spent.expected if parameters.accounting == "expected" else spent.realised


def _mean(parts: list[np.ndarray]) -> float:
    joined = np.concatenate(parts)
    return float(joined.mean()) if len(joined) else 0.0


def _wire_bytes(world: World, edge_rounds: Sequence[EdgeRoundOutcome]) -> int:
    """Uploads, and the full models that edge servers exchange."""
    uploads = sum(float(each.wire_bits.sum()) for each in edge_rounds)
    gossip = world.scheme.gossip
    exchanges = gossip.exchanges_from(0, len(edge_rounds))
    models = exchanges * gossip.models_sent(world.backhaul.clusters, len(world.backhaul.edges))
    return math.ceil((uploads + models * world.model_bits) / 8)
