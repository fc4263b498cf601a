"""The best energy for one device that is free to leave its segments, with all others at the optimum.

A device jumps at the critical price because its value, as a function of its energy, is not convex there. The
best place for it, given the energy that is left, may still lie between the two ends of the jump. With all
other devices kept on their segments, their part is convex and solved exactly for any remainder. So only one
number has to be searched: the energy of the free device.
"""

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.solver.dual_search import search_energy_price
from cfel.control.solver.priced_fleet import Candidate, Choices, PricedFleet

# Grid points of the search over energy, and how often the grid closes in on its best point.
GRID = 9
REFINEMENTS = 3


def search_free_device(
    fleet: PricedFleet, energy_cap: float, price: float, choice: Choices, device: int
) -> Candidate | None:
    """Searches the best plan with one device free and the others on given segments; `None` if there is none.

    Args:
        fleet: the devices, two at least.
        energy_cap: joules for all.
        price: a guess at the price of energy.
        choice: the segment of every other device.
        device: the one that is free.
    """
    others = np.delete(np.arange(fleet.size), device)
    held = fleet.hold_without(device, choice)
    terms = fleet.terms
    least = (
        terms.rho_min[device] * terms.step_joules[device]
        + terms.theta_min[device] * terms.upload_joules[device]
    )
    most = (
        terms.rho_max[device] * terms.step_joules[device]
        + terms.theta_max[device] * terms.upload_joules[device]
    )
    low, high = float(least), float(min(most, terms.joules[device], energy_cap - held.spend_least().joules))
    if not low <= high:
        return None
    floor, ceiling, best = low, high, None
    for _ in range(REFINEMENTS):
        shares = np.linspace(low, high, GRID)
        plans = [_plan_with_share(fleet, held, others, device, energy_cap, price, share) for share in shares]
        chosen = min(range(GRID), key=lambda number: plans[number].objective)
        best = plans[chosen] if best is None else min(best, plans[chosen])
        step = (high - low) / (GRID - 1)
        low, high = max(floor, shares[chosen] - step), min(ceiling, shares[chosen] + step)
    return best


def _plan_with_share(
    fleet: PricedFleet,
    held: PricedFleet,
    others: np.ndarray,
    device: int,
    energy_cap: float,
    price: float,
    share: float,
) -> Candidate:
    """The plan in which the free device has `share` joules of the energy."""
    rho, theta = np.empty(fleet.size), np.empty(fleet.size)
    alone = fleet.plan_alone(np.array([device]), np.array([share]))
    rho[device], theta[device] = alone.rho[0], alone.theta[0]
    bracket = search_energy_price(held, energy_cap - share, price)
    over, under = bracket.over, bracket.under
    rho[others] = _interpolate(under.rho, over.rho, under.joules, over.joules, energy_cap - share)
    # A held fleet has one segment per device, number 0.
    only = np.zeros(len(others), dtype=np.int8)
    theta[others] = held.theta(only, rho[others])
    return fleet.evaluate(rho, theta)


def _interpolate(
    under: FloatArray, over: FloatArray, under_joules: float, over_joules: float, cap: float
) -> FloatArray:
    """Moves from the response under the cap towards the one over it, as far as the energy goes."""
    span = over_joules - under_joules
    share = min(1.0, max(0.0, (cap - under_joules) / span)) if span > 0 else 0.0
    return under + share * (over - under)
