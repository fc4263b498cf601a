"""FedLuck and FedLamp: steps and compression of every device together, for the least time per progress.

References: Song, Luo, Lu, Xie, Chen, Wang, "A Joint Approach to Local Updating and Gradient Compression for
Efficient Asynchronous Federated Learning", Euro-Par 2024 (arXiv 2407.05125), FedLuck; Xu, Liao, Xu, Ma,
Wang, Liu, "Adaptive Control of Local Updating and Model Compression for Efficient Federated Learning", IEEE
Transactions on Mobile Computing 2022, FedLamp.

Kept of FedLuck: steps and θ of a device are chosen jointly from its seconds per step and per upload, to
progress fast per unit of time. Kept of FedLamp: rounds are synchronous, and devices of different speed end
together, so that nobody waits. Not kept: FedLuck aggregates asynchronously and minimises a factor of its
convergence bound, FedLamp constrains its own bound; here the objective is stated directly. For every cluster,
over common deadlines D, this minimises

    (D + its share of the exchange) / mean over devices of max ρ·κ(θ) within D

with the κ that devices measure. D keeps to the seconds that the time budget leaves the round, where the
slowest device can. `fedluck` does not limit energy, as in its paper. `fedlamp` limits resources, as in its
paper: every device keeps to an equal share of the joules of the round, where it can.
"""

from dataclasses import replace

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.planning import choose_best, choose_from_pairs, compute_costs, list_pairs
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters, make_empty_plan
from cfel.cost import cluster_seconds

DEADLINES = 17
"""Deadlines to compare, from the least work to all of it."""


def fedluck(parameters: SchemeParameters) -> Scheme:
    """Chooses a deadline per cluster, and what each device does until then."""
    return _build(parameters, limits_energy=False)


def fedlamp(parameters: SchemeParameters) -> Scheme:
    """Chooses a deadline per cluster, and what each device does until then with its share of the energy."""
    return _build(parameters, limits_energy=True)


def _build(parameters: SchemeParameters, *, limits_energy: bool) -> Scheme:
    def plan(seen: Observation) -> RoundPlan:
        present = seen.conditions.available
        if not present.any():
            return make_empty_plan(len(present))
        pairs = list_pairs(parameters, seen)
        gain = pairs.rho * pairs.kept
        joules = np.full(len(present), seen.caps()[1] / present.sum() if limits_energy else np.inf)
        least, most = _list_bounds(seen, pairs.rho[0], pairs.theta[0])
        best = np.zeros(len(present), dtype=np.intp)
        lowest = np.full(seen.clusters, np.inf)
        for share in np.linspace(0.0, 1.0, DEADLINES):
            until = least + share * (most - least)
            found, _ = choose_best(seen, pairs, gain, until[seen.cluster], joules)
            score = _rate(seen, pairs.rho[found], pairs.theta[found], gain[found])
            better = score < lowest
            lowest = np.where(better, score, lowest)
            best = np.where(better[seen.cluster], found, best)
        return RoundPlan(
            rho=np.where(present, pairs.rho[best], 0.0), theta=np.where(present, pairs.theta[best], 0.0)
        )

    made = choose_from_pairs(parameters, dict, lambda state, seen: (plan(seen), state))
    # It keeps to the seconds only, so what a round takes in joules is no reason not to begin it.
    return replace(made, keeps_budgets=False)


def _list_bounds(seen: Observation, rho: float, theta: float) -> tuple[FloatArray, FloatArray]:
    """Per cluster, the earliest deadline its slowest device can meet, and the latest worth comparing."""
    present = seen.conditions.available
    least, most = (
        cluster_seconds(np.where(present, compute_costs(seen, *pair)[0], 0.0), seen.cluster, seen.clusters)
        for pair in ((rho, theta), (1.0, 1.0))
    )
    return least, np.maximum(least, np.minimum(most, seen.caps()[0]))


def _rate(seen: Observation, rho: FloatArray, theta: FloatArray, gain: FloatArray) -> FloatArray:
    """Seconds per progress of every cluster; infinite without devices."""
    present = seen.conditions.available
    seconds, _ = compute_costs(seen, rho, theta)
    waited = cluster_seconds(np.where(present, seconds, 0.0), seen.cluster, seen.clusters)
    exchange = seen.gossip_seconds_left / (seen.rounds.edge_rounds - seen.edge_round)
    gained = np.bincount(seen.cluster, np.where(present, gain, 0.0), minlength=seen.clusters)
    there = np.bincount(seen.cluster, present, minlength=seen.clusters)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gained > 0, (waited + exchange) * there / gained, np.inf)
