"""A sharper lower bound by cases: what if this device's θ lay in this interval?

The hull bridges the dents of every device's value; a device that jumps is one whose dent matters. Cutting its
range of θ into intervals and bounding each case on its own fills in most of the dent: the least of the cases
bounds the whole.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from cfel.arrays import IndexArray
from cfel.control.solver.dual_search import search
from cfel.control.solver.priced_fleet import Crew

# Intervals of θ tried per device, and devices tried, one at a time.
CASES = 8
MOST_DEVICES = 2


def sharper_bound(crew: Crew, energy_cap: float, price: float, devices: IndexArray) -> float:
    """The best bound from cutting up the θ of one of the devices; −inf where there is none to cut.

    Args:
        crew: the devices.
        energy_cap: joules for all.
        price: what a joule is about worth.
        devices: those worth cutting up, the first few of which are tried.
    """
    bounds = [_by_cases(crew, energy_cap, price, int(device)) for device in devices[:MOST_DEVICES]]
    return max(bounds, default=-np.inf)


def _by_cases(crew: Crew, energy_cap: float, price: float, device: int) -> float:
    ends = np.linspace(crew.terms.theta_min[device], crew.terms.theta_max[device], CASES + 1)
    return min(_case(crew, energy_cap, price, device, low, high) for low, high in pairwise(ends.tolist()))


def _case(crew: Crew, energy_cap: float, price: float, device: int, low: float, high: float) -> float:
    """The bound with the device's θ within [low, high]; +inf if no plan is."""
    terms = crew.terms
    theta_min, theta_max = terms.theta_min.copy(), terms.theta_max.copy()
    theta_min[device], theta_max[device] = low, high
    least_seconds = terms.rho_min[device] * terms.step_seconds[device] + low * terms.upload_seconds[device]
    least_joules = terms.rho_min * terms.step_joules + theta_min * terms.upload_joules
    too_slow = least_seconds > terms.seconds[device]
    too_much = least_joules[device] > terms.joules[device] or float(least_joules.sum()) > energy_cap
    if too_slow or too_much:
        return np.inf
    case = Crew.of(replace(terms, theta_min=theta_min, theta_max=theta_max), crew.noise, crew.gradient)
    return search(case, energy_cap, price).lower_bound
