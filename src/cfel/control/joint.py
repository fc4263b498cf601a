"""P2 solved for ρ and θ together, with a proof of how good the plan is.

The energy cap is the only thing that couples devices, so the round is planned by adding curves (`curves`).
What is particular to P2 is here: a sharper bound where few devices leave a gap.
"""

from dataclasses import replace

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.curves import Bracket, measure_gap, search_price, settle_within
from cfel.control.problem import Limits, RoundProblem
from cfel.control.segments import PricedFleet
from cfel.control.solution import Proposal

# Proven gap above which the bound is sharpened.
SHARPEN_ABOVE = 3e-4
# Intervals of θ tried per device, and devices tried, one at a time.
CASES = 8
MOST_CASE_DEVICES = 2
# Prices at which each case is bounded, relative to the price of energy.
CASE_PRICES = np.array(
    [0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 5.0]
)


def solve_joint(problem: RoundProblem, limits: Limits) -> Proposal:
    """Finds a plan within the limits, and a lower bound on every other."""
    fleet = PricedFleet.from_problem(problem, limits)
    bracket = search_price(fleet, limits.joules)
    plan = settle_within(fleet, bracket, limits.joules)
    bound = bracket.lower_bound
    if measure_gap(plan, bound) > SHARPEN_ABOVE:
        bound = max(bound, _bound_by_cases(fleet, bracket, limits.joules))
    scale = problem.sigma2 + problem.g2
    return Proposal(
        plan.rho,
        fleet.theta(plan),
        lower_bound=scale * min(bound, float(plan.cost.sum())),
        multiplier=scale * bracket.price,
        method="joint",
    )


def interpolate_rho(bracket: Bracket, energy_cap: float) -> FloatArray:
    """Moves from the response under the cap towards the one over it, as far as the energy goes."""
    over, under = bracket.over, bracket.under
    span = over.point.joules - under.point.joules
    share = min(1.0, max(0.0, (energy_cap - under.point.joules) / span)) if span > 0 else 0.0
    return under.response.rho + share * (over.response.rho - under.response.rho)


# A sharper lower bound by cases: what if this device's θ lay in this interval? The dual bound replaces
# every device's value, as a function of its energy, by its convex envelope. For a device that jumps, the
# two differ, and that makes the bound too low. Cutting the device's range of θ into intervals and bounding
# each case on its own closes most of the difference. The least of the cases bounds the whole: this is one
# level of branch and bound.


def _bound_by_cases(fleet: PricedFleet, bracket: Bracket, energy_cap: float) -> float:
    """The best bound from cutting up the θ of one of the first devices; −inf where there is none to cut."""
    jumping = np.flatnonzero(bracket.over.response.choice != bracket.under.response.choice)
    cases = [_Cases(fleet, int(device), energy_cap) for device in jumping[:MOST_CASE_DEVICES]]
    return max((each.bound(bracket.price) for each in cases), default=-np.inf)


class _Cases:
    """A device with its range of θ cut into intervals, beside the others as they are.

    At any price, only this device's response differs from case to case, and every price gives a bound.
    """

    def __init__(self, fleet: PricedFleet, device: int, energy_cap: float) -> None:
        self._fleet, self._device, self._energy_cap = fleet, device, energy_cap
        ends = np.linspace(fleet.terms.theta_min[device], fleet.terms.theta_max[device], CASES + 1)
        terms = replace(fleet.terms.take(np.full(CASES, device)), theta_min=ends[:-1], theta_max=ends[1:])
        self._alone = replace(fleet, cluster=np.zeros(CASES, dtype=np.intp), clusters=1).change(terms)
        least = terms.least_joules
        others = float(fleet.terms.least_joules.sum()) - fleet.terms.least_joules[device]
        seconds = terms.rho_min * terms.step_seconds + terms.theta_min * terms.upload_seconds
        too_much = (least > terms.joules) | (others + least > energy_cap)
        self._possible = ~(too_much | (seconds > terms.seconds))

    def bound(self, price: float) -> float:
        """The least of the cases' bounds: prices around the given one, then between the best of these."""
        prices = price * CASE_PRICES
        found = self._bound_at(prices)
        best = np.clip(found.argmax(axis=0), 1, len(prices) - 2)
        closer = np.linspace(prices[best - 1], prices[best + 1], CASES + 1)
        found = np.vstack([found, self._bound_at(np.unique(closer))]).max(axis=0)
        return float(np.where(self._possible, found, np.inf).min())

    def _bound_at(self, prices: FloatArray) -> FloatArray:
        """Every case's bound at every price, prices × cases."""
        column = prices[:, np.newaxis]
        whole = self._value(self._fleet, column)
        others = whole.sum(axis=1) - whole[:, self._device] - prices * self._energy_cap
        return np.asarray(others[:, np.newaxis] + self._value(self._alone, column))

    def _value(self, fleet: PricedFleet, column: FloatArray) -> FloatArray:
        """Least cost + λ · joules of every device."""
        response = fleet.respond(np.repeat(column, fleet.size, axis=1))
        return np.asarray(response.cost + column * response.joules)
