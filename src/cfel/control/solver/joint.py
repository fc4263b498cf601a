"""P2 solved for ρ and θ together, with a proof of how good the plan is.

The energy cap is the only thing that couples devices. `search_energy_price` prices it and returns two
neighbouring responses, one over the cap and one under it, and a lower bound. They differ in a few devices
that jump from one segment to another at that price. A jump cannot be split without loss, and that is all that
stands between the plan and the bound. The plan is made in steps of growing cost, until its gap is small:

1. `_mix_responses`: as many jumps as the energy pays for, the rest spent by moving along segments;
2. `_split_next_jump`: the energy that is left takes the next jump part of the way;
3. `energy_exchange.spend_left_over`: or it goes to the device that gains most from it;
4. `_resolve_on_segments`: with the jumps decided, the convex problem that remains is solved again;
5. `free_device_search.search_free_device`: the same, with one jumping device free to leave its segments;
6. `energy_exchange.exchange_energy`: the jumping devices trade energy with any other device, starting from
   the two best plans so far. One of them may be `_jump_and_save`: another device pays for the next jump.

If the gap is still not small, the bound may be too low, and `bound_by_cases` tries to raise it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray, IndexArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.bound_by_cases import bound_by_cases
from cfel.control.solver.dual_search import Bracket, search_energy_price
from cfel.control.solver.energy_exchange import exchange_energy, save_excess, spend_left_over
from cfel.control.solver.feasible_limits import Limits
from cfel.control.solver.free_device_search import search_free_device
from cfel.control.solver.priced_fleet import Candidate, Choices, PricedFleet

# Proven gaps above which the next kind of effort is made. Chosen by hand while the
# steps were written, below the gap of 1e-3 that `tests/control/solver/test_joint.py` asserts from 64 devices
# on; `cfel bench solver` shows gaps and times. No sweep over them is recorded.
SPLIT_ABOVE = 1e-6
RESOLVE_ABOVE = 2e-4
EXCHANGE_ABOVE = 3e-4
SHARPEN_ABOVE = 8e-4
# More than a few devices jump at once only where they are twins; four was chosen by hand.
MOST_GIVERS = 4
# In a small fleet one jump weighs more, so the effort starts sooner. Both numbers were chosen by hand.
SMALL = 48
SMALL_ABOVE = 2e-5


@dataclass(frozen=True, slots=True, eq=False)
class JointResult:
    """A plan and the numbers that prove how good it is.

    Attributes:
        rho, theta: the plan.
        lower_bound: no plan within the limits has a smaller objective.
        multiplier: what one more joule would be worth, in units of the objective.
    """

    rho: FloatArray
    theta: FloatArray
    lower_bound: float
    multiplier: float


def solve_joint(problem: RoundProblem, limits: Limits) -> JointResult:
    """Finds a plan within the limits, and a lower bound on every other."""
    fleet = PricedFleet.from_problem(problem, limits)
    bracket = search_energy_price(fleet, limits.joules)
    best = _improve_plan(fleet, bracket, limits.joules)
    bound = bracket.lower_bound
    if best.gap(bound) > SHARPEN_ABOVE:
        bound = max(bound, bound_by_cases(fleet, limits.joules, bracket.price, _find_jumping(bracket)))
    scale = problem.sigma2 + problem.g2
    return JointResult(best.rho, best.theta, scale * min(bound, best.objective), scale * bracket.price)


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
    best = min(best, spend_left_over(fleet, energy_cap, whole))
    if best.gap(bound) <= enough:
        return best
    plans = sorted([best, *_resolve_on_segments(fleet, choice, bracket, energy_cap)])
    if plans[0].gap(bound) <= (SMALL_ABOVE if small else EXCHANGE_ABOVE):
        return plans[0]
    jumping = _find_jumping(bracket)[:MOST_GIVERS]
    plans.extend(_free_jumping_devices(fleet, bracket, energy_cap, choice, jumping))
    plans.extend(_jump_and_save(fleet, bracket, choice, rho, energy_cap))
    return min(exchange_energy(fleet, energy_cap, plan, jumping) for plan in sorted(plans)[:2])


def _find_jumping(bracket: Bracket) -> IndexArray:
    """Devices on different segments in the two responses."""
    return np.flatnonzero(bracket.over.choice != bracket.under.choice)


def _mix_responses(fleet: PricedFleet, bracket: Bracket, energy_cap: float) -> tuple[Choices, FloatArray]:
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
    fleet: PricedFleet, bracket: Bracket, choice: Choices, whole: Candidate, energy_cap: float
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
    fleet: PricedFleet, choice: Choices, bracket: Bracket, energy_cap: float
) -> Iterator[Candidate]:
    """Keeps every device on its segment and solves for ρ: as given, and with the next jump made as well."""
    yield from _solve_on_segments(fleet, choice, energy_cap, bracket.price)
    waiting = np.flatnonzero(choice != bracket.over.choice)
    if waiting.size:
        other = choice.copy()
        other[waiting[0]] = bracket.over.choice[waiting[0]]
        yield from _solve_on_segments(fleet, other, energy_cap, bracket.price)


def _solve_on_segments(
    fleet: PricedFleet, choice: Choices, energy_cap: float, price: float
) -> Iterator[Candidate]:
    """The exact optimum with every device on its segment, if the cap allows any; `price` is a guess."""
    held = fleet.hold(choice)
    bracket = search_energy_price(held, energy_cap, price)
    if bracket.under.joules <= energy_cap:
        rho = _mix_responses(held, bracket, energy_cap)[1]
        yield fleet.evaluate(rho, fleet.theta(choice, rho))


def _free_jumping_devices(
    fleet: PricedFleet, bracket: Bracket, energy_cap: float, choice: Choices, jumping: IndexArray
) -> Iterator[Candidate]:
    """Lets each jumping device leave its segments, the others at their best beside it."""
    for device in jumping.tolist() if fleet.size > 1 else ():
        found = search_free_device(fleet, energy_cap, bracket.price, choice, device)
        if found is not None:
            yield found


def _jump_and_save(
    fleet: PricedFleet, bracket: Bracket, choice: Choices, rho: FloatArray, energy_cap: float
) -> Iterator[Candidate]:
    """Makes the next jump and lets another device save the energy for it, if one can."""
    waiting = np.flatnonzero(choice != bracket.over.choice)[:1]
    if not waiting.size:
        return
    choice, rho = choice.copy(), rho.copy()
    choice[waiting], rho[waiting] = bracket.over.choice[waiting], bracket.over.rho[waiting]
    found = save_excess(fleet, energy_cap, fleet.evaluate(rho, fleet.theta(choice, rho)))
    if found is not None:
        yield found
