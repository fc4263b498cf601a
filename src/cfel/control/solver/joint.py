"""P2 solved as it stands, ρ and θ together, with a proof of how good the answer is.

The energy cap is the only thing that couples devices. `hull.search` prices it and returns two neighbouring
answers, one over the cap and one under it, and a lower bound. They differ in a few devices that jump from
one line to another; a jump cannot be split, and that is all that stands between the plan and the bound. A
plan is made from the two answers in steps of growing cost, until its proven gap is small enough:

1. `_mixed`: as many jumps as the energy pays for, the rest spent by moving along lines;
2. `_split`: what is left takes the next jump part of the way;
3. `exchange.spend_left_over`: or it goes to the device that makes most of it;
4. `_settled`: the jumps decided, the convex problem that remains is solved anew;
5. `fraction.one_off_line`: the same with one jumping device anywhere in its dent;
6. `exchange.exchange`: the jumping devices divide their energy anew with any other device, from the two best
   plans so far, one in which the next jump is paid for by another device's saving among them.

If the gap is still not small, the fault may lie with the bound, and `branch.sharper_bound` tries to raise it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray, IndexArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.bound_by_cases import sharper_bound
from cfel.control.solver.dual_search import Bracket, search
from cfel.control.solver.energy_exchange import exchange, save_excess, spend_left_over
from cfel.control.solver.feasible_limits import Limits
from cfel.control.solver.free_device_search import one_off_line
from cfel.control.solver.priced_fleet import Assignment, Candidate, Crew

# Proven gaps above which the next kind of effort is made.
SPLIT_ABOVE = 1e-6
SETTLE_ABOVE = 2e-4
EXCHANGE_ABOVE = 3e-4
SHARPEN_ABOVE = 8e-4
# More than a few devices jump at once only where they are twins.
MOST_GIVERS = 4
# In a small fleet a dent weighs more, so the effort starts sooner.
SMALL = 48
SMALL_ABOVE = 2e-5


@dataclass(frozen=True, slots=True, eq=False)
class JointResult:
    """A plan and the proof that goes with it.

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
    """The best plan found within the limits, and a bound on every other."""
    crew = Crew.of_problem(problem, limits)
    bracket = search(crew, limits.joules)
    best = _best_plan(crew, bracket, limits.joules)
    bound = bracket.lower_bound
    if best.gap(bound) > SHARPEN_ABOVE:
        bound = max(bound, sharper_bound(crew, limits.joules, bracket.price, _jumping(bracket)))
    scale = problem.sigma2 + problem.g2
    return JointResult(best.rho, best.theta, scale * min(bound, best.objective), scale * bracket.price)


def _best_plan(crew: Crew, bracket: Bracket, energy_cap: float) -> Candidate:
    """Works on a plan until its gap is small or nothing helps any more."""
    bound = bracket.lower_bound
    piece, rho = _mixed(crew, bracket, energy_cap)
    whole = crew.candidate(rho, crew.theta(piece, rho))
    if bracket.over is bracket.under or whole.gap(bound) <= SPLIT_ABOVE:
        return whole
    small = crew.size <= SMALL
    enough = SMALL_ABOVE if small else SETTLE_ABOVE
    best = min(whole, _split(crew, bracket, piece, whole, energy_cap))
    if best.gap(bound) <= enough:
        return best
    best = min(best, spend_left_over(crew, energy_cap, whole))
    if best.gap(bound) <= enough:
        return best
    plans = sorted([best, *_settled(crew, piece, bracket, energy_cap)])
    if plans[0].gap(bound) <= (SMALL_ABOVE if small else EXCHANGE_ABOVE):
        return plans[0]
    jumping = _jumping(bracket)[:MOST_GIVERS]
    plans.extend(_off_line(crew, bracket, energy_cap, piece, jumping))
    plans.extend(_saved(crew, bracket, piece, rho, energy_cap))
    return min(exchange(crew, energy_cap, plan, jumping) for plan in sorted(plans)[:2])


def _split(crew: Crew, bracket: Bracket, piece: Assignment, whole: Candidate, energy_cap: float) -> Candidate:
    """The plan with the next jump made part of the way, straight across, as far as the energy goes."""
    over = bracket.over
    waiting = np.flatnonzero(piece != over.piece)[:1]
    left = energy_cap - float(crew.plan_joules(whole.rho, whole.theta).sum())
    rho, theta = whole.rho.copy(), whole.theta.copy()
    rho_step = over.rho[waiting] - rho[waiting]
    theta_step = crew.theta(over.piece, over.rho)[waiting] - theta[waiting]
    terms = crew.terms
    joules = rho_step * terms.step_joules[waiting] + theta_step * terms.upload_joules[waiting]
    share = np.full_like(joules, left >= 0)
    np.divide(left, joules, out=share, where=joules > max(left, 0.0))
    share = np.clip(share, 0.0, 1.0)
    rho[waiting] += share * rho_step
    theta[waiting] += share * theta_step
    return crew.candidate(rho, theta)


def _off_line(
    crew: Crew, bracket: Bracket, energy_cap: float, piece: Assignment, jumping: IndexArray
) -> Iterator[Candidate]:
    """Each jumping device in its dent, the others at their best beside it."""
    for device in jumping.tolist() if crew.size > 1 else ():
        found = one_off_line(crew, energy_cap, bracket.price, piece, device)
        if found is not None:
            yield found


def _jumping(bracket: Bracket) -> IndexArray:
    """Devices on different lines in the two answers."""
    return np.flatnonzero(bracket.over.piece != bracket.under.piece)


def _saved(
    crew: Crew, bracket: Bracket, piece: Assignment, rho: FloatArray, energy_cap: float
) -> Iterator[Candidate]:
    """The next jump made and the energy for it saved by another device, if one can."""
    waiting = np.flatnonzero(piece != bracket.over.piece)[:1]
    if not waiting.size:
        return
    piece, rho = piece.copy(), rho.copy()
    piece[waiting], rho[waiting] = bracket.over.piece[waiting], bracket.over.rho[waiting]
    found = save_excess(crew, energy_cap, crew.candidate(rho, crew.theta(piece, rho)))
    if found is not None:
        yield found


def _mixed(crew: Crew, bracket: Bracket, energy_cap: float) -> tuple[Assignment, FloatArray]:
    """From the answer under the cap towards the one over it, as far as the energy goes.

    Devices that jump to another line do so whole, best value per joule first; the others share what is left
    by moving part of the way along their line.
    """
    over, under = bracket.over, bracket.under
    if over is under:
        return over.piece, over.rho
    start = crew.joules(under.piece, under.rho)
    extra = crew.joules(over.piece, over.rho) - start
    left = energy_cap - float(start.sum())
    jumps = over.piece != under.piece
    taken = _affordable(crew, bracket, extra, np.flatnonzero(jumps), left)
    left -= float(extra[taken].sum())
    moving = float(extra[~jumps].sum())
    share = min(1.0, max(0.0, left) / moving) if moving > 0 else 0.0
    piece, rho = under.piece.copy(), under.rho + share * (over.rho - under.rho)
    rho[jumps] = under.rho[jumps]
    piece[taken], rho[taken] = over.piece[taken], over.rho[taken]
    return piece, rho


def _affordable(
    crew: Crew, bracket: Bracket, extra: FloatArray, jumping: IndexArray, left: float
) -> IndexArray:
    """The jumping devices that can be paid for, best value per joule first."""
    over, under = bracket.over, bracket.under
    if not jumping.size:
        return jumping
    saved = crew.costs(under.piece, under.rho) - crew.costs(over.piece, over.rho)
    with np.errstate(over="ignore"):  # what costs next to nothing is worth infinitely much
        worth = saved[jumping] / np.maximum(extra[jumping], 1e-300)
    ranked = jumping[np.argsort(-worth, kind="stable")]
    return ranked[np.cumsum(extra[ranked]) <= left]


def _settled(crew: Crew, piece: Assignment, bracket: Bracket, energy_cap: float) -> Iterator[Candidate]:
    """Every device kept on its line, ρ chosen anew: once as given, once with the next jump made as well."""
    yield from _on_lines(crew, piece, energy_cap, bracket.price)
    waiting = np.flatnonzero(piece != bracket.over.piece)
    if waiting.size:
        other = piece.copy()
        other[waiting[0]] = bracket.over.piece[waiting[0]]
        yield from _on_lines(crew, other, energy_cap, bracket.price)


def _on_lines(crew: Crew, piece: Assignment, energy_cap: float, price: float) -> Iterator[Candidate]:
    """The exact optimum with every device held on its line, if the cap allows any; `price` is a guess."""
    held = crew.held(piece)
    bracket = search(held, energy_cap, price)
    if bracket.under.joules <= energy_cap:
        rho = _mixed(held, bracket, energy_cap)[1]
        yield crew.candidate(rho, crew.theta(piece, rho))
