"""P2 solved for ρ and θ together, with a proof of how good the plan is.

The energy cap is the only thing that couples devices. `search_energy_price` prices it and returns two
neighbouring responses, one over the cap and one under it, and a lower bound. They differ in a few devices
that jump from one segment to another at that price. A jump cannot be split without loss, and that is all that
stands between the plan and the bound. The plan is made in steps of growing cost, until its gap is small:

1. `_mix_responses`: as many jumps as the energy pays for, the rest spent by moving along segments;
2. `_split_next_jump`: the energy that is left takes the next jump part of the way;
3. `_spend_left_over`: or it goes to the device that gains most from it;
4. `_resolve_on_segments`: with the jumps decided, the convex problem that remains is solved again;
5. `_search_free_device`: the same, with one jumping device free to leave its segments;
6. `_exchange_energy`: the jumping devices trade energy with any other device, starting from the two best
   plans so far. One of them may be `_jump_and_save`: another device pays for the next jump.

If the gap is still not small, the bound may be too low, and `_bound_by_cases` tries to raise it.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from cfel.arrays import BoolArray, FloatArray, IndexArray
from cfel.control.prices import Bracket, search_energy_price
from cfel.control.problem import Limits, RoundProblem
from cfel.control.segments import Candidate, PricedFleet, SegmentNumbers
from cfel.control.solution import Proposal

# All of these were chosen by hand while the steps were written, for gaps below the 1e-3 that
# `tests/control/solver/test_joint.py` asserts from 64 devices on; `python -m benchmarks solver` shows gaps
# and times. No sweep over them is recorded.
#
# Proven gaps above which the next kind of effort is made.
SPLIT_ABOVE = 1e-6
RESOLVE_ABOVE = 2e-4
EXCHANGE_ABOVE = 3e-4
SHARPEN_ABOVE = 8e-4
# In a fleet of at most `SMALL` devices one jump weighs more, so the effort starts sooner.
SMALL = 48
SMALL_ABOVE = 2e-5
# More than a few devices jump at once only where they are twins.
MOST_GIVERS = 4
# A search over energy: points of a grid, which closes in on its best point a few times; for one free device
# and for every pair that exchanges energy, whose sweeps go on while they gain.
GRID = 9
REFINEMENTS = 3
EXCHANGE_REFINEMENTS = 4
SWEEPS = 8
# A move must gain this share of the objective, and unused energy is worth spending from this share of the
# cap.
WORTHWHILE = 1e-6
NOTHING = 1e-7
# The bound by cases: intervals of θ tried per device, and devices tried, one at a time.
CASES = 8
MOST_CASE_DEVICES = 2


def solve_joint(problem: RoundProblem, limits: Limits) -> Proposal:
    """Finds a plan within the limits, and a lower bound on every other."""
    fleet = PricedFleet.from_problem(problem, limits)
    bracket = search_energy_price(fleet, limits.joules)
    best = _improve_plan(fleet, bracket, limits.joules)
    bound = bracket.lower_bound
    if best.gap(bound) > SHARPEN_ABOVE:
        bound = max(bound, _bound_by_cases(fleet, limits.joules, bracket.price, _find_jumping(bracket)))
    scale = problem.sigma2 + problem.g2
    return Proposal(
        best.rho,
        best.theta,
        lower_bound=scale * min(bound, best.objective),
        multiplier=scale * bracket.price,
        method="joint",
    )


def _improve_plan(fleet: PricedFleet, bracket: Bracket, energy_cap: float) -> Candidate:
    """Improves a plan until its gap is small or nothing helps any more; the steps are the module's list."""
    bound = bracket.lower_bound
    choice, rho = _mix_responses(fleet, bracket, energy_cap)
    whole = fleet.evaluate(rho, fleet.theta(choice, rho))
    if bracket.over is bracket.under or whole.gap(bound) <= SPLIT_ABOVE:
        return whole
    small = fleet.size <= SMALL
    enough = SMALL_ABOVE if small else RESOLVE_ABOVE
    best = min(whole, _split_next_jump(fleet, bracket, choice, whole, energy_cap))
    if best.gap(bound) <= enough:
        return best
    best = min(best, _spend_left_over(fleet, energy_cap, whole))
    if best.gap(bound) <= enough:
        return best
    plans = sorted([best, *_resolve_on_segments(fleet, choice, bracket, energy_cap)])
    if plans[0].gap(bound) <= (SMALL_ABOVE if small else EXCHANGE_ABOVE):
        return plans[0]
    jumping = _find_jumping(bracket)[:MOST_GIVERS]
    plans.extend(_free_jumping_devices(fleet, bracket, energy_cap, choice, jumping))
    plans.extend(_jump_and_save(fleet, bracket, choice, rho, energy_cap))
    return min(_exchange_energy(fleet, energy_cap, plan, jumping) for plan in sorted(plans)[:2])


def _find_jumping(bracket: Bracket) -> IndexArray:
    """Devices on different segments in the two responses."""
    return np.flatnonzero(bracket.over.choice != bracket.under.choice)


def _mix_responses(
    fleet: PricedFleet, bracket: Bracket, energy_cap: float
) -> tuple[SegmentNumbers, FloatArray]:
    """Moves from the response under the cap towards the one over it, as far as the energy goes.

    Devices that jump to another segment do so whole, best value per joule first. The others share what is
    left by moving part of the way along their segment.
    """
    over, under = bracket.over, bracket.under
    if over is under:
        return over.choice, over.rho
    start = fleet.joules(under.choice, under.rho)
    extra = fleet.joules(over.choice, over.rho) - start
    left = energy_cap - float(start.sum())
    jumps = over.choice != under.choice
    taken = _select_affordable(fleet, bracket, extra, np.flatnonzero(jumps), left)
    left -= float(extra[taken].sum())
    moving = float(extra[~jumps].sum())
    share = min(1.0, max(0.0, left) / moving) if moving > 0 else 0.0
    choice, rho = under.choice.copy(), under.rho + share * (over.rho - under.rho)
    rho[jumps] = under.rho[jumps]
    choice[taken], rho[taken] = over.choice[taken], over.rho[taken]
    return choice, rho


def _select_affordable(
    fleet: PricedFleet, bracket: Bracket, extra: FloatArray, jumping: IndexArray, left: float
) -> IndexArray:
    """The jumping devices that can be paid for, best value per joule first."""
    over, under = bracket.over, bracket.under
    if not jumping.size:
        return jumping
    saved = fleet.costs(under.choice, under.rho) - fleet.costs(over.choice, over.rho)
    with np.errstate(over="ignore"):  # what costs next to nothing is worth infinitely much
        worth = saved[jumping] / np.maximum(extra[jumping], 1e-300)
    ranked = jumping[np.argsort(-worth, kind="stable")]
    return ranked[np.cumsum(extra[ranked]) <= left]


def _split_next_jump(
    fleet: PricedFleet, bracket: Bracket, choice: SegmentNumbers, whole: Candidate, energy_cap: float
) -> Candidate:
    """Makes the next jump part of the way, straight across, as far as the energy goes."""
    over = bracket.over
    waiting = np.flatnonzero(choice != over.choice)[:1]
    left = energy_cap - float(fleet.joules_of(whole.rho, whole.theta).sum())
    rho, theta = whole.rho.copy(), whole.theta.copy()
    rho_step = over.rho[waiting] - rho[waiting]
    theta_step = fleet.theta(over.choice, over.rho)[waiting] - theta[waiting]
    terms = fleet.terms
    joules = rho_step * terms.step_joules[waiting] + theta_step * terms.upload_joules[waiting]
    share = np.full_like(joules, left >= 0)
    np.divide(left, joules, out=share, where=joules > max(left, 0.0))
    share = np.clip(share, 0.0, 1.0)
    rho[waiting] += share * rho_step
    theta[waiting] += share * theta_step
    return fleet.evaluate(rho, theta)


def _resolve_on_segments(
    fleet: PricedFleet, choice: SegmentNumbers, bracket: Bracket, energy_cap: float
) -> Iterator[Candidate]:
    """Keeps every device on its segment and solves for ρ: as given, and with the next jump made as well."""
    yield from _solve_on_segments(fleet, choice, energy_cap, bracket.price)
    waiting = np.flatnonzero(choice != bracket.over.choice)
    if waiting.size:
        other = choice.copy()
        other[waiting[0]] = bracket.over.choice[waiting[0]]
        yield from _solve_on_segments(fleet, other, energy_cap, bracket.price)


def _solve_on_segments(
    fleet: PricedFleet, choice: SegmentNumbers, energy_cap: float, price: float
) -> Iterator[Candidate]:
    """The exact optimum with every device on its segment, if the cap allows any; `price` is a guess."""
    held = fleet.hold(choice)
    bracket = search_energy_price(held, energy_cap, price)
    if bracket.under.joules <= energy_cap:
        rho = _mix_responses(held, bracket, energy_cap)[1]
        yield fleet.evaluate(rho, fleet.theta(choice, rho))


def _free_jumping_devices(
    fleet: PricedFleet, bracket: Bracket, energy_cap: float, choice: SegmentNumbers, jumping: IndexArray
) -> Iterator[Candidate]:
    """Lets each jumping device leave its segments, the others at their best beside it."""
    for device in jumping.tolist() if fleet.size > 1 else ():
        found = _search_free_device(fleet, energy_cap, bracket.price, choice, device)
        if found is not None:
            yield found


def _jump_and_save(
    fleet: PricedFleet, bracket: Bracket, choice: SegmentNumbers, rho: FloatArray, energy_cap: float
) -> Iterator[Candidate]:
    """Makes the next jump and lets another device save the energy for it, if one can."""
    waiting = np.flatnonzero(choice != bracket.over.choice)[:1]
    if not waiting.size:
        return
    choice, rho = choice.copy(), rho.copy()
    choice[waiting], rho[waiting] = bracket.over.choice[waiting], bracket.over.rho[waiting]
    found = _save_excess(fleet, energy_cap, fleet.evaluate(rho, fleet.theta(choice, rho)))
    if found is not None:
        yield found


# A sharper lower bound by cases: what if this device's θ lay in this interval? The dual bound replaces
# every device's value, as a function of its energy, by its convex envelope. For a device that jumps, the
# two differ, and that makes the bound too low. Cutting the device's range of θ into intervals and bounding
# each case on its own closes most of the difference. The least of the cases bounds the whole: this is one
# level of branch and bound.


def _bound_by_cases(fleet: PricedFleet, energy_cap: float, price: float, devices: IndexArray) -> float:
    """The best bound from cutting up the θ of one of the first devices; −inf where there is none to cut."""
    bounds = [_bound_device(fleet, energy_cap, price, int(device)) for device in devices[:MOST_CASE_DEVICES]]
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
    narrower = replace(terms, theta_min=theta_min, theta_max=theta_max)
    least_joules = narrower.least_joules
    too_slow = least_seconds > terms.seconds[device]
    too_much = least_joules[device] > terms.joules[device] or float(least_joules.sum()) > energy_cap
    if too_slow or too_much:
        return np.inf
    case = PricedFleet.from_terms(narrower, fleet.noise, fleet.gradient)
    return search_energy_price(case, energy_cap, price).lower_bound


# The best energy for one device that is free to leave its segments. A device jumps at the critical price
# because its value, as a function of its energy, is not convex there. The best place for it, given the
# energy that is left, may still lie between the two ends of the jump. With all other devices kept on their
# segments, their part is convex and solved exactly for any remainder, so only the energy of the free device
# is searched.


def _search_free_device(
    fleet: PricedFleet, energy_cap: float, price: float, choice: SegmentNumbers, device: int
) -> Candidate | None:
    """The best plan with one device free and the others on given segments; `None` if there is none."""
    others = np.delete(np.arange(fleet.size), device)
    held = fleet.hold_without(device, choice)
    # A held fleet has one segment per device, number 0.
    only = np.zeros(len(others), dtype=np.int8)

    def plan_with(share: float) -> Candidate:
        """The plan in which the free device has `share` joules of the energy."""
        rho, theta = np.empty(fleet.size), np.empty(fleet.size)
        alone = fleet.plan_alone(np.array([device]), np.array([share]))
        rho[device], theta[device] = alone.rho[0], alone.theta[0]
        bracket = search_energy_price(held, energy_cap - share, price)
        rho[others] = interpolate_rho(bracket, energy_cap - share)
        theta[others] = held.theta(only, rho[others])
        return fleet.evaluate(rho, theta)

    terms = fleet.terms
    most = fleet.joules_of(terms.rho_max, terms.theta_max)[device]
    floor = float(terms.least_joules[device])
    ceiling = float(min(most, terms.joules[device], energy_cap - held.spend_least().joules))
    if not floor <= ceiling:
        return None
    low, high, best = floor, ceiling, None
    for _ in range(REFINEMENTS):
        shares = np.linspace(low, high, GRID)
        plans = [plan_with(share) for share in shares]
        chosen = min(range(GRID), key=lambda number: plans[number].objective)
        best = plans[chosen] if best is None else min(best, plans[chosen])
        step = (high - low) / (GRID - 1)
        low, high = max(floor, shares[chosen] - step), min(ceiling, shares[chosen] + step)
    return best


def interpolate_rho(bracket: Bracket, energy_cap: float) -> FloatArray:
    """Moves from the response under the cap towards the one over it, as far as the energy goes."""
    over, under = bracket.over, bracket.under
    span = over.joules - under.joules
    share = min(1.0, max(0.0, (energy_cap - under.joules) / span)) if span > 0 else 0.0
    return under.rho + share * (over.rho - under.rho)


# Energy moved from device to device: what is left to gain after the price of energy is found. With its
# energy fixed, a device's best (ρ, θ) is known exactly (`PricedFleet.plan_alone`), so a plan is nothing but
# a division of the energy cap. A device's value as a function of its energy is not convex. Where the price
# search replaces it by its convex envelope, the plan made from the search leaves energy unused or badly
# used.


def _spend_left_over(fleet: PricedFleet, energy_cap: float, start: Candidate) -> Candidate:
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


def _save_excess(fleet: PricedFleet, energy_cap: float, start: Candidate) -> Candidate | None:
    """Makes the one device that loses least save what the plan uses too much; `None` if no device can."""
    everyone = np.arange(len(start.rho))
    spent, least = fleet.joules_of(start.rho, start.theta), fleet.terms.least_joules
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


def _exchange_energy(
    fleet: PricedFleet, energy_cap: float, start: Candidate, givers: IndexArray
) -> Candidate:
    """Lets pairs of devices, with a giver in each, divide their energy again while that gains."""
    pairs = _list_pairs(fleet.size, givers)
    best = start
    for _ in range(SWEEPS if pairs.size else 0):
        better = _divide_energy(fleet, energy_cap, best, pairs)
        if best.objective - better.objective <= WORTHWHILE * abs(best.objective):
            break
        best = better
    return best


def _list_pairs(size: int, givers: IndexArray) -> IndexArray:
    """Lists every pair with a giver in it, once: the first devices, and the second ones."""
    chosen = np.zeros(size, dtype=bool)
    chosen[givers] = True
    first, second = np.repeat(givers, size), np.tile(np.arange(size), givers.size)
    wanted = ~chosen[second] | (second > first)
    return np.stack([first[wanted], second[wanted]])


def _divide_energy(fleet: PricedFleet, energy_cap: float, plan: Candidate, pairs: IndexArray) -> Candidate:
    """The plan after the exchanges that gain most.

    Each pair's division is searched over the whole range, which finds other local minima, and close to the
    present one, which a coarse grid may miss. Unused energy can go to one pair only; without any, all pairs
    that have no device in common make their exchange.
    """
    first, second = pairs
    spent, least = fleet.joules_of(plan.rho, plan.theta), fleet.terms.least_joules
    left = max(0.0, energy_cap - float(spent.sum()))
    together = spent[first] + spent[second] + left
    low = least[first]
    high = np.maximum(low, together - least[second])
    near = (high - low) / GRID
    costs = fleet.costs_of(plan.rho, plan.theta)
    best_gain, best_plans = np.zeros(first.size), np.zeros((4, first.size))
    for floor, ceiling in ((low, high), (spent[first] - near, spent[first] + near)):
        floor, ceiling = np.clip(floor, low, high), np.clip(ceiling, low, high)
        shares = _search_shares(fleet, pairs, together, floor, ceiling)
        rho, theta, cost = _plan_pairs(fleet, pairs, together, shares)
        gain = costs[first] + costs[second] - cost
        better = gain > best_gain
        best_gain[better] = gain[better]
        best_plans[:, better] = np.concatenate([rho, theta])[:, better]
    most = 1 if left > NOTHING * energy_cap else first.size
    return _apply_exchanges(fleet, plan, pairs, best_gain, best_plans, most)


def _apply_exchanges(
    fleet: PricedFleet, plan: Candidate, pairs: IndexArray, gain: FloatArray, plans: FloatArray, most: int
) -> Candidate:
    """Makes the exchanges that gain, largest first, each device at most once."""
    # A second exchange of the same device would start from an energy that it no longer has.
    rho, theta = plan.rho.copy(), plan.theta.copy()
    free = np.ones(fleet.size, dtype=bool)
    for chosen in np.argsort(-gain, kind="stable"):
        i, j = pairs[:, chosen]
        if gain[chosen] <= 0 or most == 0:
            break
        if free[i] and free[j]:
            free[i] = free[j] = False
            rho[i], rho[j], theta[i], theta[j] = plans[:, chosen]
            most -= 1
    return fleet.evaluate(rho, theta)


def _search_shares(
    fleet: PricedFleet, pairs: IndexArray, together: FloatArray, floor: FloatArray, ceiling: FloatArray
) -> FloatArray:
    """Searches the first device's energy in each pair, by a grid that closes in on its best point."""
    low, high = floor, ceiling
    grid = np.linspace(0.0, 1.0, GRID)[:, np.newaxis]
    every_pair, every_sum = np.tile(pairs, GRID), np.tile(together, GRID)
    for _ in range(EXCHANGE_REFINEMENTS):
        shares = low + grid * (high - low)
        _, _, cost = _plan_pairs(fleet, every_pair, every_sum, shares.ravel())
        best: FloatArray = shares[cost.reshape(shares.shape).argmin(axis=0), np.arange(together.size)]
        step = (high - low) / (GRID - 1)
        low, high = np.maximum(floor, best - step), np.minimum(ceiling, best + step)
    return best


def _plan_pairs(
    fleet: PricedFleet, pairs: IndexArray, together: FloatArray, shares: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ρ and θ (first device, second device) and the pair's cost, for each division."""
    plans = fleet.plan_alone(pairs.ravel(), np.concatenate([shares, together - shares]))
    rho, theta = plans.rho.reshape(2, -1), plans.theta.reshape(2, -1)
    return rho, theta, fleet.costs_of(rho, theta).sum(axis=0)
