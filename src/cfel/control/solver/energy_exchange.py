"""Energy handed from device to device: what is left to gain when the easy part of P2 is done.

With its energy fixed, a device's best (ρ, θ) is known exactly (`Crew.alone`), so a plan is
nothing but a division of the energy cap. The value of a device as a function of its energy is not convex, and
where the hull bridges such a dent the plan made from it leaves energy unused or badly used. Three moves mend
that:

* `spend_left_over`: unused energy goes to the device that gains most from it;
* `save_excess`: what a plan uses too much is saved by the device that loses least by it;
* `exchange`: two devices divide what they have together anew, over a grid that is refined where it is best.
"""

import numpy as np

from cfel.arrays import BoolArray, FloatArray, IndexArray
from cfel.control.solver.priced_fleet import Candidate, Crew

# How far an exchange goes: grid points and refinements of a division, sweeps over the pairs.
GRID = 9
REFINEMENTS = 4
SWEEPS = 8
# A move must gain this share of the objective for another to be tried.
WORTHWHILE = 1e-6
# Energy below this share of the cap is not worth handing out.
NOTHING = 1e-7


def spend_left_over(crew: Crew, energy_cap: float, start: Candidate) -> Candidate:
    """Gives what is left of the energy to the one device that makes most of it, until nobody gains."""
    best = start
    everyone = np.arange(len(start.rho))
    for _ in range(SWEEPS):
        spent = crew.plan_joules(best.rho, best.theta)
        left = energy_cap - float(spent.sum())
        if left <= NOTHING * energy_cap:
            break
        other = crew.alone(everyone, spent + left)
        better = _changed(crew, best, other, _gains_most(crew, best, other, everyone >= 0))
        if best.objective - better.objective <= WORTHWHILE * abs(best.objective):
            break
        best = better
    return best


def save_excess(crew: Crew, energy_cap: float, start: Candidate) -> Candidate | None:
    """Makes the one device that loses least save what the plan uses too much; `None` if nobody can."""
    everyone = np.arange(len(start.rho))
    spent, least = crew.plan_joules(start.rho, start.theta), _least(crew, everyone)
    allowed = spent - max(0.0, float(spent.sum()) - energy_cap)
    able = allowed >= least
    if not able.any():
        return None
    other = crew.alone(everyone, np.maximum(allowed, least))
    return _changed(crew, start, other, _gains_most(crew, start, other, able))


def _gains_most(crew: Crew, best: Candidate, other: Candidate, able: BoolArray) -> int:
    """The device whose change from one plan to the other lowers the objective most."""
    change = crew.plan_costs(other.rho, other.theta) - crew.plan_costs(best.rho, best.theta)
    return int(np.argmin(np.where(able, change, np.inf)))


def _changed(crew: Crew, best: Candidate, other: Candidate, chosen: int) -> Candidate:
    """`best` with one device taken from `other`."""
    rho, theta = best.rho.copy(), best.theta.copy()
    rho[chosen], theta[chosen] = other.rho[chosen], other.theta[chosen]
    return crew.candidate(rho, theta)


def exchange(crew: Crew, energy_cap: float, start: Candidate, givers: IndexArray) -> Candidate:
    """Lets pairs of devices divide their energy anew while that gains.

    Args:
        crew: the devices.
        energy_cap: joules for all.
        start: a plan within the cap.
        givers: devices of which at least one is in every pair.
    """
    first, second = _pairs(crew.size, givers)
    best = start
    for _ in range(SWEEPS if first.size else 0):
        better = _divided(crew, energy_cap, best, first, second)
        if best.objective - better.objective <= WORTHWHILE * abs(best.objective):
            break
        best = better
    return best


def _pairs(size: int, givers: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Every pair with a giver in it, once."""
    chosen = np.zeros(size, dtype=bool)
    chosen[givers] = True
    first, second = np.repeat(givers, size), np.tile(np.arange(size), givers.size)
    wanted = ~chosen[second] | (second > first)
    return first[wanted], second[wanted]


def _divided(
    crew: Crew, energy_cap: float, plan: Candidate, first: IndexArray, second: IndexArray
) -> Candidate:
    """The plan after the exchanges that gain most.

    Each pair's division is sought over the whole range, which finds other dents, and close to the present
    one, which a coarse grid may pass over. Energy left over can be used by one pair only; without any, all
    pairs that share no device make their exchange.
    """
    spent = crew.plan_joules(plan.rho, plan.theta)
    left = max(0.0, energy_cap - float(spent.sum()))
    together = spent[first] + spent[second] + left
    low = _least(crew, first)
    high = np.maximum(low, together - _least(crew, second))
    near = (high - low) / GRID
    costs = crew.plan_costs(plan.rho, plan.theta)
    best_gain, best_pair = np.zeros(first.size), np.zeros((4, first.size))
    for floor, ceiling in ((low, high), (spent[first] - near, spent[first] + near)):
        floor, ceiling = np.clip(floor, low, high), np.clip(ceiling, low, high)
        shares = _best_shares(crew, first, second, together, floor, ceiling)
        rho, theta, cost = _both(crew, first, second, together, shares)
        gain = costs[first] + costs[second] - cost
        better = gain > best_gain
        best_gain[better] = gain[better]
        best_pair[:, better] = np.concatenate([rho, theta])[:, better]
    alone = left > NOTHING * energy_cap
    return _applied(crew, plan, first, second, best_gain, best_pair, most=1 if alone else first.size)


def _applied(
    crew: Crew,
    plan: Candidate,
    first: IndexArray,
    second: IndexArray,
    gain: FloatArray,
    pair: FloatArray,
    most: int,
) -> Candidate:
    """Makes the exchanges that gain, largest first, none with a device that has made one already."""
    rho, theta = plan.rho.copy(), plan.theta.copy()
    free = np.ones(crew.size, dtype=bool)
    for chosen in np.argsort(-gain, kind="stable"):
        i, j = first[chosen], second[chosen]
        if gain[chosen] <= 0 or most == 0:
            break
        if free[i] and free[j]:
            free[i] = free[j] = False
            rho[i], rho[j], theta[i], theta[j] = pair[:, chosen]
            most -= 1
    return crew.candidate(rho, theta)


def _best_shares(
    crew: Crew,
    first: IndexArray,
    second: IndexArray,
    together: FloatArray,
    floor: FloatArray,
    ceiling: FloatArray,
) -> FloatArray:
    """The first device's energy in each pair, by a grid that closes in on its best point."""
    low, high = floor, ceiling
    grid = np.linspace(0.0, 1.0, GRID)[:, np.newaxis]
    wide = (np.tile(first, GRID), np.tile(second, GRID), np.tile(together, GRID))
    for _ in range(REFINEMENTS):
        shares = low + grid * (high - low)
        _, _, cost = _both(crew, *wide, shares.ravel())
        best: FloatArray = shares[cost.reshape(shares.shape).argmin(axis=0), np.arange(first.size)]
        step = (high - low) / (GRID - 1)
        low, high = np.maximum(floor, best - step), np.minimum(ceiling, best + step)
    return best


def _both(
    crew: Crew,
    first: IndexArray,
    second: IndexArray,
    together: FloatArray,
    shares: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ρ and θ (first device, second device) and the pair's cost, for each division."""
    pairs = crew.alone(np.concatenate([first, second]), np.concatenate([shares, together - shares]))
    rho, theta = pairs.rho.reshape(2, -1), pairs.theta.reshape(2, -1)
    return rho, theta, crew.plan_costs(rho, theta).sum(axis=0)


def _least(crew: Crew, devices: IndexArray) -> FloatArray:
    terms = crew.terms
    steps = terms.rho_min[devices] * terms.step_joules[devices]
    return steps + terms.theta_min[devices] * terms.upload_joules[devices]
