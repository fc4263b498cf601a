"""MLL-SGD: a device's update frequency follows its speed, the full model is sent, budgets are ignored.

The fastest device always steps, ρ = min μ / μ_n. The paper prints ρ_n = (1/α_n) / Σ (1/α_n), which sums to
one over all devices, so that with 64 of them next to nothing is learned; `options = {literal = true}` is
that formula. `docs/paper-map.md` lists it among the differences from the print.
"""

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters, stateless


def mll_sgd(parameters: SchemeParameters) -> Scheme:
    """HCEF's problem with θ = 1, ρ given by the device's speed, and no caps."""
    literal = parameters.option("literal", default=False)

    def plan(observation: Observation) -> RoundPlan:
        rho = _literal_share(observation) if literal else _relative_speed(observation)
        bounds = Bounds(rho=(rho, rho), theta=(1.0, 1.0))
        return plan_round(observation, parameters, bounds, within_budget=False)

    return stateless(plan)


def _relative_speed(observation: Observation) -> FloatArray:
    mu, present = observation.conditions.mu, observation.conditions.available
    # Absent devices may be faster than all that are present.
    return np.asarray(np.minimum(1.0, mu[present].min(initial=np.inf) / mu))


def _literal_share(observation: Observation) -> FloatArray:
    """The printed formula; a device whose steps cost no energy gets the round's least positive α."""
    alpha, present = observation.conditions.alpha, observation.conditions.available
    positive = alpha[present & (alpha > 0)]
    least = float(positive.min()) if positive.size else 1.0
    worth = least / np.maximum(alpha, least)
    return np.asarray(np.minimum(1.0, worth / worth[present].sum()))
