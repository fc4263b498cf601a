"""One device off its lines, everybody else at the optimum beside it.

At the critical price a device jumps because its value as a function of its energy has a dent. Somewhere in
the dent may still be the best place for it, given what is left of the energy. With all other devices held
on their lines their part is convex and solved exactly for any remainder, so that only one number has to be
searched: the energy of the device in question.
"""

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.solver.dual_search import search
from cfel.control.solver.priced_fleet import Assignment, Candidate, Crew

GRID = 9
REFINEMENTS = 3


def one_off_line(
    crew: Crew, energy_cap: float, price: float, piece: Assignment, device: int
) -> Candidate | None:
    """The best plan found with one device anywhere and the others on the given lines, if there is any.

    Args:
        crew: the devices, two at least.
        energy_cap: joules for all.
        price: what a joule is about worth.
        piece: the line of every other device.
        device: the one that is free.
    """
    others = np.delete(np.arange(crew.size), device)
    held = crew.held_without(device, piece)
    terms = crew.terms
    least = (
        terms.rho_min[device] * terms.step_joules[device]
        + terms.theta_min[device] * terms.upload_joules[device]
    )
    most = (
        terms.rho_max[device] * terms.step_joules[device]
        + terms.theta_max[device] * terms.upload_joules[device]
    )
    low, high = float(least), float(min(most, terms.joules[device], energy_cap - held.least().joules))
    if not low <= high:
        return None
    floor, ceiling, best = low, high, None
    for _ in range(REFINEMENTS):
        shares = np.linspace(low, high, GRID)
        plans = [_plan(crew, held, others, device, energy_cap, price, share) for share in shares]
        chosen = min(range(GRID), key=lambda number: plans[number].objective)
        best = plans[chosen] if best is None else min(best, plans[chosen])
        step = (high - low) / (GRID - 1)
        low, high = max(floor, shares[chosen] - step), min(ceiling, shares[chosen] + step)
    return best


def _plan(
    crew: Crew,
    held: Crew,
    others: np.ndarray,
    device: int,
    energy_cap: float,
    price: float,
    share: float,
) -> Candidate:
    """The plan in which the free device has a given share of the energy."""
    rho, theta = np.empty(crew.size), np.empty(crew.size)
    own = crew.alone(np.array([device]), np.array([share]))
    rho[device], theta[device] = own.rho[0], own.theta[0]
    bracket = search(held, energy_cap - share, price)
    over, under = bracket.over, bracket.under
    rho[others] = _between(under.rho, over.rho, under.joules, over.joules, energy_cap - share)
    line = np.zeros(len(others), dtype=np.int8)
    theta[others] = held.theta(line, rho[others])
    return crew.candidate(rho, theta)


def _between(
    under: FloatArray, over: FloatArray, under_joules: float, over_joules: float, cap: float
) -> FloatArray:
    """From the answer under the cap towards the one over it, as far as the energy goes."""
    span = over_joules - under_joules
    share = min(1.0, max(0.0, (cap - under_joules) / span)) if span > 0 else 0.0
    return under + share * (over - under)
