"""Fast FL: the same steps and compression for all devices, adapted as the loss falls.

Reference: Nori, Yun, Kim, "Fast Federated Learning by Balancing Communication Trade-Offs", IEEE Transactions
on Communications 2021 (arXiv 2105.11028).

Kept: one number of local steps and one sparsity budget for all devices, adjusted together over time by a
bound of the error in a given time: a part that falls with time, in proportion to the loss, and a floor that
grows with local steps and compression. While the loss is large, speed counts; later, precision. Not kept: the
paper's constants. With r the mean loss relative to the first one reported, and κ as devices measure it, this
minimises over pairs (k, θ)

    r · seconds per step / κ(θ)  +  floor · ((k − 1)/(τ − 1) + (1 − κ(θ))/κ(θ))

where seconds per step are those of the slowest device, relative to full work. Only pairs within the caps of
the budgets are compared, if there are any.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.control.planning import Pairs, choose_from_pairs, compute_costs, list_pairs
from cfel.control.scheme import (
    Observation,
    RoundPlan,
    Scheme,
    SchemeParameters,
    State,
    make_empty_plan,
    read_options,
)
from cfel.cost import cluster_seconds


@dataclass(frozen=True, slots=True)
class Options:
    """`[scheme.options]` of `nori`: the weight of the error floor, ≥ 0."""

    floor: float = 0.2

    def __post_init__(self) -> None:
        validation.check_number("scheme.options.floor", self.floor, least=0)


def nori(parameters: SchemeParameters) -> Scheme:
    """Chooses one pair for the fleet in every edge round."""
    options = read_options(Options, parameters.options)

    def init() -> dict[str, Any]:
        return {"first_loss": None}

    def plan(state: State, seen: Observation) -> tuple[RoundPlan, State]:
        present = seen.conditions.available
        loss = seen.mean_loss()
        first = state["first_loss"] if state["first_loss"] is not None else loss
        if not present.any():
            return make_empty_plan(len(present)), {"first_loss": first}
        ratio = 1.0 if loss is None or not first else loss / first
        pairs = list_pairs(parameters, seen)
        seconds, fits = _measure(seen, pairs)
        score = _score(pairs, seconds, seen.rounds.local_steps, ratio, options.floor)
        best = int(np.argmin(np.where(fits, score, np.inf))) if fits.any() else 0
        return RoundPlan(
            rho=np.where(present, pairs.rho[best], 0.0),
            theta=np.where(present, pairs.theta[best], 0.0),
            feasible=bool(fits.any()),
            violations=() if fits.any() else ("no pair (ρ, θ) for all devices keeps to the caps",),
        ), {"first_loss": first}

    return choose_from_pairs(parameters, init, plan)


def _measure(seen: Observation, pairs: Pairs) -> tuple[FloatArray, np.ndarray]:
    """Seconds of the slowest device with each pair, and whether the pair keeps to the caps."""
    present = seen.conditions.available
    cap_seconds, cap_joules = seen.caps()
    slowest, fits = np.zeros(pairs.rho.size), np.zeros(pairs.rho.size, dtype=bool)
    for pair, (rho, theta) in enumerate(zip(pairs.rho, pairs.theta, strict=True)):
        seconds, joules = compute_costs(seen, rho, theta)
        waited = cluster_seconds(np.where(present, seconds, 0.0), seen.cluster, seen.clusters)
        slowest[pair] = waited.max()
        fits[pair] = bool((waited <= cap_seconds).all()) and float(joules[present].sum()) <= cap_joules
    return slowest, fits


def _score(pairs: Pairs, seconds: FloatArray, tau: int, ratio: float, floor: float) -> FloatArray:
    """The bound of every pair; the last pair is full work."""
    per_step = seconds / pairs.rho / seconds[-1]
    drift = (pairs.rho * tau - 1) / max(1, tau - 1)
    return np.asarray(ratio * per_step / pairs.kept + floor * (drift + 1 / pairs.kept - 1))
