"""One setting for all devices, adapted in the course of the run: Wang et al. (τ) and Han et al. (k)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cfel import validation
from cfel.control.list_solver import list_steps
from cfel.control.planning import compute_costs
from cfel.control.scheme import (
    DeviceOverrides,
    Observation,
    RoundPlan,
    Scheme,
    SchemeParameters,
    State,
    make_empty_plan,
    read_options,
)
from cfel.cost import cluster_seconds


def plan_alike(seen: Observation, rho: float, theta: float) -> RoundPlan:
    """The same plan for everybody who is there."""
    present = seen.conditions.available.astype(np.float64)
    return RoundPlan(rho * present, theta * present)


def count_seconds(seen: Observation, rho: float, theta: float) -> float:
    """Seconds of an edge round with the same plan for all, its share of the exchange included."""
    seconds, _ = compute_costs(seen, rho, theta)
    waited = cluster_seconds(np.where(seen.conditions.available, seconds, 0.0), seen.cluster, seen.clusters)
    exchange = seen.gossip_seconds_left / (seen.rounds.edge_rounds - seen.edge_round)
    return float((waited + exchange).max())


@dataclass(frozen=True, slots=True)
class TauOptions:
    """`[scheme.options]` of adaptive τ.

    Attributes:
        rate: η > 0, the learning rate that the bound assumes.
        smoothness: ηβ > 0: how fast gradients change along local steps.
        phi: φ > 0, the paper's control parameter.
    """

    rate: float = 0.05
    smoothness: float = 0.1
    phi: float = 0.025

    def __post_init__(self) -> None:
        for name in ("rate", "smoothness", "phi"):
            validation.check_number(f"scheme.options.{name}", getattr(self, name), above=0)


def adaptive_tau(parameters: SchemeParameters) -> Scheme:
    """One number of local steps for all devices, the best by a bound for what the budgets leave.

    Reference: Wang, Tuor, Salonidis, Leung, Makaya, He, Chan, "Adaptive Federated Learning in Resource
    Constrained Edge Computing Systems", IEEE Journal on Selected Areas in Communications 2019 (arXiv
    1804.05271).

    Kept: full models; before every aggregation τ minimises

        G(τ) = 1/(2ηφK) + √(1/(4η²φ²K²) + ρh(τ)/(ηφτ)) + ρh(τ),    h(τ) = ηδ·(((1 + ηβ)^τ − 1)/(ηβ) − τ)

    where K = min over resources of budget left · τ / cost of τ steps and an aggregation: the iterations that
    the scarcer of time and energy allows. Not kept: devices estimate β, δ and ρ in the paper. They report G²
    here, so ρδ is taken to be G², as gradients differ from their mean by at most about their norm; ηβ and η
    are options. With neither budget, one step per aggregation is best.
    """
    options = read_options(TauOptions, parameters.options)

    def plan(seen: Observation) -> RoundPlan:
        present = seen.conditions.available
        if not present.any():
            return make_empty_plan(len(present))
        tau = seen.rounds.local_steps
        counts = list_steps(parameters.rho_min, tau).tolist()
        _, g2 = seen.estimates()
        best = min(counts, key=lambda count: bound_loss(options, count, count_iterations(seen, count), g2))
        return plan_alike(seen, best / tau, 1.0)

    return Scheme(
        init=dict,
        plan=lambda state, seen: (plan(seen), state),
        device_overrides=DeviceOverrides(steps="whole"),
    )


def count_iterations(seen: Observation, steps: float) -> float:
    """How many local iterations the budgets left allow, with so many per edge round."""
    rho = steps / seen.rounds.local_steps
    _, joules = compute_costs(seen, rho, 1.0)
    spent_seconds = seen.ledger.seconds + max(seen.ledger.elapsed_seconds)
    left = (seen.budget.seconds - spent_seconds, seen.budget.joules - seen.ledger.total_joules)
    costs = (count_seconds(seen, rho, 1.0), float(joules[seen.conditions.available].sum()))
    rounds = min(each / cost if cost > 0 else math.inf for each, cost in zip(left, costs, strict=True))
    # Of a budget that is overspent, the next round is still the last.
    return steps * max(rounds, 1.0)


def bound_loss(options: TauOptions, steps: float, iterations: float, g2: float) -> float:
    """G(τ); see `adaptive_tau`."""
    growth = (math.pow(1 + options.smoothness, steps) - 1) / options.smoothness - steps
    drift, scale = options.rate * g2 * growth, options.rate * options.phi
    half = 0.5 / (scale * iterations)
    return half + math.sqrt(half**2 + drift / (scale * steps)) + drift


@dataclass(frozen=True, slots=True)
class SparsityOptions:
    """`[scheme.options]` of adaptive k: the share of entries that the search starts with, in (0, 1]."""

    start: float = 0.1

    def __post_init__(self) -> None:
        validation.check_number("scheme.options.start", self.start, above=0, most=1)


HISTORY = 4
"""Plans whose effects are needed: of two that are compared, and of the two that are made meanwhile."""


def adaptive_k(parameters: SchemeParameters) -> Scheme:
    """One share of entries to send for all devices, found by trying what brings the loss down faster.

    Reference: Han, Wang, Leung, "Adaptive Gradient Sparsification for Efficient Federated Learning: An Online
    Learning Approach", ICDCS 2020 (arXiv 2001.04756).

    Kept: one k for all, top-k with what is left out kept on devices, and online learning by the sign of a
    derivative alone: k and a smaller k′ are compared by the time they take per decrease of the loss, and k
    moves by δ_m = width/√(2m) to the better side. Not kept: the paper sends k entries each way, chosen fairly
    among devices, and computes the loss at both models in the same round. Here k and k′ take turns, by edge
    round, and are compared by the training losses that devices report one round later; log θ is searched
    instead of k, as it spans two orders of magnitude. Every step is taken; budgets are ignored.
    """
    options = read_options(SparsityOptions, parameters.options)
    low = math.log(parameters.theta_min)

    def init() -> dict[str, Any]:
        start = max(low, math.log(options.start))
        return {"place": start, "comparisons": 0, "plans": 0, "losses": [], "seconds": []}

    def plan(state: State, seen: Observation) -> tuple[RoundPlan, State]:
        if not seen.conditions.available.any():
            return make_empty_plan(len(seen.cluster)), state
        after = {**state, "losses": [*state["losses"], seen.mean_loss()][-HISTORY:]}
        number = state["plans"]
        # Every second plan, once the effect of both of the pair before the last is known.
        if number >= HISTORY and number % 2 == 0:
            after |= compare_pair(after, low)
        # A step of δ/2 aside, as in the paper.
        aside = 0.0 if number % 2 == 0 else find_step(after["comparisons"], low) / 2
        theta = math.exp(max(low, after["place"] - aside))
        seconds = [*state["seconds"], count_seconds(seen, 1.0, theta)][-HISTORY:]
        return plan_alike(seen, 1.0, theta), {**after, "plans": number + 1, "seconds": seconds}

    return Scheme(
        init=init,
        plan=plan,
        device_overrides=DeviceOverrides(error_feedback=True),
        chooses_theta=parameters.theta_min < 1,
    )


def find_step(comparisons: int, low: float) -> float:
    """δ of the next comparison: a share of the width of log θ that falls with their number."""
    return -low / math.sqrt(2 * (comparisons + 1))


def compare_pair(state: Mapping[str, Any], low: float) -> dict[str, Any]:
    """The place and the number of comparisons after comparing the pair of plans before the last pair.

    Losses are of the models that plans start from: the first of the four is the pair's first plan's, so what
    that plan brought is the first loss less the second.
    """
    first, second, third = state["losses"][:3]
    if first is None or second is None or third is None:
        return {}
    # Gain per second instead of its inverse: it orders plans that bring nothing, too.
    pairs = zip((first - second, second - third), state["seconds"][:2], strict=True)
    here, aside = (gain / used if used > 0 else gain for gain, used in pairs)
    step = find_step(state["comparisons"], low)
    place = state["place"] - step if aside > here else state["place"] + step
    return {"place": min(0.0, max(low, place)), "comparisons": state["comparisons"] + 1}
