"""AnycostFL: every device does as much as its own share of time and energy allows, for the largest gain.

Reference: Li, Cheng, Huang, Kang, Yu, Wu, Pan, "AnycostFL: Efficient On-Demand Federated Learning over
Heterogeneous Edge Devices", INFOCOM 2023 (arXiv 2301.03062).

Kept: elastic computation and elastic compression per device, chosen together to gain most within that
device's own limits of latency and energy; devices do not trade with each other. Not kept: computation is
elastic in the number of steps, where the paper shrinks the model; updates are averaged alike, where the paper
aggregates by element; clocks are fixed; the gain is ρ·κ(θ) with the κ that devices measure, where the paper
derives one from its bound. Limits come from the budgets: the cluster's seconds of the round, and an equal
share of its joules for every device, or what its battery allows.
"""

import numpy as np

from cfel.control.planning import choose_best, choose_from_pairs, list_pairs
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters, make_empty_plan
from cfel.wording import plural


def anycost(parameters: SchemeParameters) -> Scheme:
    """Chooses each device's steps and θ by itself."""

    def plan(seen: Observation) -> RoundPlan:
        present = seen.conditions.available
        if not present.any():
            return make_empty_plan(len(present))
        cluster_seconds, joules = seen.caps()
        own_joules = np.full(len(present), joules / present.sum())
        if seen.battery is not None:
            left = seen.rounds.edge_rounds_left(seen.global_round, seen.edge_round)
            own_joules = np.minimum(own_joules, seen.battery / left)
        pairs = list_pairs(parameters, seen)
        gain = pairs.rho * pairs.kept
        best, fits = choose_best(seen, pairs, gain, cluster_seconds[seen.cluster], own_joules)
        short = int((present & ~fits).sum())
        return RoundPlan(
            rho=np.where(present, pairs.rho[best], 0.0),
            theta=np.where(present, pairs.theta[best], 0.0),
            feasible=not short,
            violations=(f"{plural(short, 'device')} cannot keep to their own limits",) if short else (),
        )

    return choose_from_pairs(parameters, dict, lambda state, seen: (plan(seen), state))
