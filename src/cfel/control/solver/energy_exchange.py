"""Energy moved from device to device: what is left to gain after the price of energy is found.

With its energy fixed, a device's best (ρ, θ) is known exactly (`PricedFleet.plan_alone`), so a plan is
nothing but a division of the energy cap. A device's value as a function of its energy is not convex. Where
the price search replaces it by its convex envelope, the plan made from the search leaves energy unused or
badly used. Three moves repair that:

* `spend_left_over`: unused energy goes to the device that gains most from it;
* `save_excess`: the device that loses least saves what a plan uses too much;
* `exchange_energy`: two devices divide the energy they have together, over a grid that closes in on its best.
"""

import numpy as np

from cfel.arrays import BoolArray, FloatArray, IndexArray
from cfel.control.solver.priced_fleet import Candidate, PricedFleet

# How far an exchange goes: grid points and refinements of a division, sweeps over the pairs.
GRID = 9
REFINEMENTS = 4
SWEEPS = 8
# A move must gain this share of the objective, or no other is tried.
WORTHWHILE = 1e-6
# Unused energy below this share of the cap is not worth spending.
NOTHING = 1e-7


def spend_left_over(fleet: PricedFleet, energy_cap: float, start: Candidate) -> Candidate:
    """Gives unused energy to the one device that gains most from it, until no device gains."""
    best = start
    everyone = np.arange(len(start.rho))
    for _ in range(SWEEPS):
        spent = fleet.joules_of(best.rho, best.theta)
        left = energy_cap - float(spent.sum())
        if left <= NOTHING * energy_cap:
            break
        other = fleet.plan_alone(everyone, spent + left)
        better = _replace_device(fleet, best, other, _find_best_device(fleet, best, other, everyone >= 0))
        if best.objective - better.objective <= WORTHWHILE * abs(best.objective):
            break
        best = better
    return best


def save_excess(fleet: PricedFleet, energy_cap: float, start: Candidate) -> Candidate | None:
    """Makes the one device that loses least save what the plan uses too much; `None` if no device can."""
    everyone = np.arange(len(start.rho))
    spent, least = fleet.joules_of(start.rho, start.theta), _least_joules(fleet, everyone)
    allowed = spent - max(0.0, float(spent.sum()) - energy_cap)
    able = allowed >= least
    if not able.any():
        return None
    other = fleet.plan_alone(everyone, np.maximum(allowed, least))
    return _replace_device(fleet, start, other, _find_best_device(fleet, start, other, able))


def _find_best_device(fleet: PricedFleet, best: Candidate, other: Candidate, able: BoolArray) -> int:
    """The device whose change from one plan to the other lowers the objective most."""
    change = fleet.costs_of(other.rho, other.theta) - fleet.costs_of(best.rho, best.theta)
    return int(np.argmin(np.where(able, change, np.inf)))


def _replace_device(fleet: PricedFleet, best: Candidate, other: Candidate, chosen: int) -> Candidate:
    """`best` with one device taken from `other`."""
    rho, theta = best.rho.copy(), best.theta.copy()
    rho[chosen], theta[chosen] = other.rho[chosen], other.theta[chosen]
    return fleet.evaluate(rho, theta)


def exchange_energy(fleet: PricedFleet, energy_cap: float, start: Candidate, givers: IndexArray) -> Candidate:
    """Lets pairs of devices divide their energy again while that gains.

    Args:
        fleet: the devices.
        energy_cap: joules for all.
        start: a plan within the cap.
        givers: devices of which at least one is in every pair.
    """
    first, second = _list_pairs(fleet.size, givers)
    best = start
    for _ in range(SWEEPS if first.size else 0):
        better = _divide_energy(fleet, energy_cap, best, first, second)
        if best.objective - better.objective <= WORTHWHILE * abs(best.objective):
            break
        best = better
    return best


def _list_pairs(size: int, givers: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Lists every pair with a giver in it, once."""
    chosen = np.zeros(size, dtype=bool)
    chosen[givers] = True
    first, second = np.repeat(givers, size), np.tile(np.arange(size), givers.size)
    wanted = ~chosen[second] | (second > first)
    return first[wanted], second[wanted]


def _divide_energy(
    fleet: PricedFleet, energy_cap: float, plan: Candidate, first: IndexArray, second: IndexArray
) -> Candidate:
    """The plan after the exchanges that gain most.

    Each pair's division is searched over the whole range, which finds other local minima, and close to the
    present one, which a coarse grid may miss. Unused energy can go to one pair only; without any, all pairs
    that have no device in common make their exchange.
    """
    spent = fleet.joules_of(plan.rho, plan.theta)
    left = max(0.0, energy_cap - float(spent.sum()))
    together = spent[first] + spent[second] + left
    low = _least_joules(fleet, first)
    high = np.maximum(low, together - _least_joules(fleet, second))
    near = (high - low) / GRID
    costs = fleet.costs_of(plan.rho, plan.theta)
    best_gain, best_pair = np.zeros(first.size), np.zeros((4, first.size))
    for floor, ceiling in ((low, high), (spent[first] - near, spent[first] + near)):
        floor, ceiling = np.clip(floor, low, high), np.clip(ceiling, low, high)
        shares = _search_shares(fleet, first, second, together, floor, ceiling)
        rho, theta, cost = _plan_pairs(fleet, first, second, together, shares)
        gain = costs[first] + costs[second] - cost
        better = gain > best_gain
        best_gain[better] = gain[better]
        best_pair[:, better] = np.concatenate([rho, theta])[:, better]
    alone = left > NOTHING * energy_cap
    return _apply_exchanges(fleet, plan, first, second, best_gain, best_pair, most=1 if alone else first.size)


def _apply_exchanges(
    fleet: PricedFleet,
    plan: Candidate,
    first: IndexArray,
    second: IndexArray,
    gain: FloatArray,
    pair: FloatArray,
    most: int,
) -> Candidate:
    """Makes the exchanges that gain, largest first, each device at most once."""
    # A second exchange of the same device would start from an energy that it no longer has.
    rho, theta = plan.rho.copy(), plan.theta.copy()
    free = np.ones(fleet.size, dtype=bool)
    for chosen in np.argsort(-gain, kind="stable"):
        i, j = first[chosen], second[chosen]
        if gain[chosen] <= 0 or most == 0:
            break
        if free[i] and free[j]:
            free[i] = free[j] = False
            rho[i], rho[j], theta[i], theta[j] = pair[:, chosen]
            most -= 1
    return fleet.evaluate(rho, theta)


def _search_shares(
    fleet: PricedFleet,
    first: IndexArray,
    second: IndexArray,
    together: FloatArray,
    floor: FloatArray,
    ceiling: FloatArray,
) -> FloatArray:
    """Searches the first device's energy in each pair, by a grid that closes in on its best point."""
    low, high = floor, ceiling
    grid = np.linspace(0.0, 1.0, GRID)[:, np.newaxis]
    wide = (np.tile(first, GRID), np.tile(second, GRID), np.tile(together, GRID))
    for _ in range(REFINEMENTS):
        shares = low + grid * (high - low)
        _, _, cost = _plan_pairs(fleet, *wide, shares.ravel())
        best: FloatArray = shares[cost.reshape(shares.shape).argmin(axis=0), np.arange(first.size)]
        step = (high - low) / (GRID - 1)
        low, high = np.maximum(floor, best - step), np.minimum(ceiling, best + step)
    return best


def _plan_pairs(
    fleet: PricedFleet,
    first: IndexArray,
    second: IndexArray,
    together: FloatArray,
    shares: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ρ and θ (first device, second device) and the pair's cost, for each division."""
    pairs = fleet.plan_alone(np.concatenate([first, second]), np.concatenate([shares, together - shares]))
    rho, theta = pairs.rho.reshape(2, -1), pairs.theta.reshape(2, -1)
    return rho, theta, fleet.costs_of(rho, theta).sum(axis=0)


def _least_joules(fleet: PricedFleet, devices: IndexArray) -> FloatArray:
    terms = fleet.terms
    steps = terms.rho_min[devices] * terms.step_joules[devices]
    return steps + terms.theta_min[devices] * terms.upload_joules[devices]
