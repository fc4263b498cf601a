"""From what happened in a global round to its line of the log and its table of plans."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from cfel.cost import Ledger, global_round_cost
from cfel.cost.rounds import NOBODY
from cfel.learning.flat import FlatModel, model_sha256
from cfel.learning.roles import weighted_model
from cfel.runlog import PlanTable, RoundRecord
from cfel.simulation.executors import Executor
from cfel.simulation.outcome import EdgeRoundOutcome
from cfel.simulation.parameters import SimulationParameters
from cfel.simulation.state import RunState
from cfel.world import World


def round_record(
    world: World,
    executor: Executor,
    parameters: SimulationParameters,
    state: RunState,
    edge_rounds: Sequence[EdgeRoundOutcome],
    begin: float,
    now: Callable[[], float],
) -> RoundRecord:
    """The log's line for a round that gossip has just closed; evaluates the models where it is time to."""
    by_plan = parameters.accounting == "expected"
    ledger = state.expected if by_plan else state.realised
    costs = [each.expected if by_plan else each.realised for each in edge_rounds]
    every = world.scheme.gossip.every_edge_round
    total = global_round_cost(costs, world.exchange_seconds, every_edge_round=every)
    plans = [each.plan for each in edge_rounds]
    present = [each.conditions.available for each in edge_rounds]
    losses = [loss for each in edge_rounds for loss in each.losses]
    return RoundRecord(
        round=state.rounds_done,
        seconds=ledger.seconds,
        joules=ledger.joules,
        seconds_expected=state.expected.seconds,
        joules_expected=state.expected.joules,
        seconds_realised=state.realised.seconds,
        joules_realised=state.realised.joules,
        accuracy=_accuracy(world, executor, parameters, state, ledger),
        loss=math.fsum(losses) / len(losses) if losses else None,
        rho_mean=_mean([plan.rho[who] for plan, who in zip(plans, present, strict=True)]),
        theta_mean=_mean([plan.theta[who] for plan, who in zip(plans, present, strict=True)]),
        sigma2=plans[-1].sigma2,
        g2=plans[-1].g2,
        gap=max(plan.gap for plan in plans),
        feasible=all(plan.feasible for plan in plans),
        violations=tuple(dict.fromkeys(words for plan in plans for words in plan.violations)),
        wire_bytes=_wire_bytes(world, edge_rounds),
        wall_seconds=now() - begin,
        model_sha256=model_sha256(state.models),
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
        steps=column(lambda each: each.steps),
        seconds=column(lambda each: each.seconds),
        joules=column(lambda each: each.joules),
    )


def mean_model(world: World, models: Sequence[FlatModel]) -> FlatModel:
    """The averaged model u: every device counts alike, so every edge model counts N_i / N."""
    shares = world.fleet.sizes / world.fleet.devices
    return weighted_model(dict(enumerate(models)), {i: float(share) for i, share in enumerate(shares)})


def _accuracy(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState, ledger: Ledger
) -> float | None:
    """The task's metric, averaged over devices, or `None` when this round is not evaluated."""
    last = state.rounds_done >= world.rounds.global_rounds or _used_up(world, parameters, ledger)
    if state.rounds_done % parameters.evaluate_every and not last:
        return None
    if parameters.evaluate_on == "mean":
        return executor.evaluations([mean_model(world, state.models)], parameters.evaluate_samples)[0].metric
    results = executor.evaluations(state.models, parameters.evaluate_samples)
    shares = world.fleet.sizes / world.fleet.devices
    return math.fsum(float(share) * each.metric for share, each in zip(shares, results, strict=True))


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
