"""A sharper lower bound by cases: what if this device's θ lay in this interval?

The dual bound replaces every device's value, as a function of its energy, by its convex envelope. For a
device that jumps, the two differ, and that makes the bound too low. Cutting the device's range of θ into
intervals and bounding each case on its own closes most of the difference. The least of the cases bounds the
whole: this is one level of branch and bound.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from cfel.arrays import IndexArray
from cfel.control.solver.dual_search import search_energy_price
from cfel.control.solver.priced_fleet import PricedFleet

# Intervals of θ tried per device, and devices tried, one at a time.
CASES = 8
MOST_DEVICES = 2


def bound_by_cases(fleet: PricedFleet, energy_cap: float, price: float, devices: IndexArray) -> float:
    """Returns the best bound from cutting up the θ of one of the devices; −inf where there is none to cut.

    Args:
        fleet: the devices.
        energy_cap: joules for all.
        price: a guess at the price of energy.
        devices: those worth cutting up; the first few are tried.
    """
    bounds = [_bound_device(fleet, energy_cap, price, int(device)) for device in devices[:MOST_DEVICES]]
    return max(bounds, default=-np.inf)


def _bound_device(fleet: PricedFleet, energy_cap: float, price: float, device: int) -> float:
    ends = np.linspace(fleet.terms.theta_min[device], fleet.terms.theta_max[device], CASES + 1)
    cases = pairwise(ends.tolist())
    return min(_bound_case(fleet, energy_cap, price, device, low, high) for low, high in cases)


def _bound_case(
    fleet: PricedFleet, energy_cap: float, price: float, device: int, low: float, high: float
) -> float:
    """The bound with the device's θ within [low, high]; +inf if no such plan is within the limits."""
    terms = fleet.terms
    theta_min, theta_max = terms.theta_min.copy(), terms.theta_max.copy()
    theta_min[device], theta_max[device] = low, high
    least_seconds = terms.rho_min[device] * terms.step_seconds[device] + low * terms.upload_seconds[device]
    least_joules = terms.rho_min * terms.step_joules + theta_min * terms.upload_joules
    too_slow = least_seconds > terms.seconds[device]
    too_much = least_joules[device] > terms.joules[device] or float(least_joules.sum()) > energy_cap
    if too_slow or too_much:
        return np.inf
    narrower = replace(terms, theta_min=theta_min, theta_max=theta_max)
    case = PricedFleet.from_terms(narrower, fleet.noise, fleet.gradient)
    return search_energy_price(case, energy_cap, price).lower_bound
