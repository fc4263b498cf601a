"""P2 solved for ρ and θ together, with a proof of how good the plan is.

The energy cap is the only thing that couples devices, so the round is planned by adding curves (`curves`).
What is particular to P2 is here: a sharper bound where few devices leave a gap.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from cfel.arrays import FloatArray, IndexArray
from cfel.control.curves import measure_gap, respond_at, settle_within
from cfel.control.prices import bound_objective, search_price
from cfel.control.problem import Limits, RoundProblem
from cfel.control.segments import PricedFleet
from cfel.control.solution import Proposal

# Proven gap above which the bound is sharpened.
SHARPEN_ABOVE = 3e-4
# Intervals of θ tried per device, and devices tried, one at a time.
CASES = 8
MOST_CASE_DEVICES = 2


def solve_joint(problem: RoundProblem, limits: Limits) -> Proposal:
    """Finds a plan within the limits, and a lower bound on every other."""
    fleet = PricedFleet.from_problem(problem, limits)
    bracket = search_price(fleet, limits.joules)
    plan = settle_within(fleet, bracket, limits.joules)
    bound = bracket.lower_bound
    if measure_gap(plan, bound) > SHARPEN_ABOVE:
        over, under = (respond_at(fleet, end.point.price) for end in (bracket.over, bracket.under))
        jumping = np.flatnonzero(over.choice != under.choice)
        bound = max(bound, _bound_by_cases(fleet, limits.joules, jumping))
    scale = problem.sigma2 + problem.g2
    return Proposal(
        plan.rho,
        fleet.theta(plan),
        lower_bound=scale * min(bound, float(plan.cost.sum())),
        multiplier=scale * bracket.price,
        method="joint",
    )


def interpolate_rho(fleet: PricedFleet, energy_cap: float) -> FloatArray:
    """Moves from the response under the cap towards the one over it, as far as the energy goes."""
    bracket = search_price(fleet, energy_cap)
    over, under = bracket.over.point, bracket.under.point
    span = over.joules - under.joules
    share = min(1.0, max(0.0, (energy_cap - under.joules) / span)) if span > 0 else 0.0
    most, least = (respond_at(fleet, point.price).rho for point in (over, under))
    return least + share * (most - least)


# A sharper lower bound by cases: what if this device's θ lay in this interval? The dual bound replaces
# every device's value, as a function of its energy, by its convex envelope. For a device that jumps, the
# two differ, and that makes the bound too low. Cutting the device's range of θ into intervals and bounding
# each case on its own closes most of the difference. The least of the cases bounds the whole: this is one
# level of branch and bound.


def _bound_by_cases(fleet: PricedFleet, energy_cap: float, devices: IndexArray) -> float:
    """The best bound from cutting up the θ of one of the first devices; −inf where there is none to cut."""
    bounds = [_bound_device(fleet, energy_cap, int(device)) for device in devices[:MOST_CASE_DEVICES]]
    return max(bounds, default=-np.inf)


def _bound_device(fleet: PricedFleet, energy_cap: float, device: int) -> float:
    ends = np.linspace(fleet.terms.theta_min[device], fleet.terms.theta_max[device], CASES + 1)
    cases = pairwise(ends.tolist())
    return min(_bound_case(fleet, energy_cap, device, low, high) for low, high in cases)


def _bound_case(fleet: PricedFleet, energy_cap: float, device: int, low: float, high: float) -> float:
    """The bound with the device's θ within [low, high]; +inf if no such plan is within the limits."""
    terms = fleet.terms
    theta_min, theta_max = terms.theta_min.copy(), terms.theta_max.copy()
    theta_min[device], theta_max[device] = low, high
    least_seconds = terms.rho_min[device] * terms.step_seconds[device] + low * terms.upload_seconds[device]
    narrower = replace(terms, theta_min=theta_min, theta_max=theta_max)
    least_joules = narrower.least_joules
    too_slow = least_seconds > terms.seconds[device]
    too_much = least_joules[device] > terms.joules[device] or float(least_joules.sum()) > energy_cap
    if too_slow or too_much:
        return np.inf
    return bound_objective(fleet.change(narrower), energy_cap)
