"""`solve`: from a `RoundProblem` to a `Solution`, by either method, with the same proof for both.

`solve_joint` finds the optimum: the energy cap is the only thing that couples devices, so the round is
planned by adding curves (`curves`), with a sharper bound where few devices leave a gap. The paper's
Algorithm 3 is here for comparison. Plans from a list of pairs
(`list_solver.solve_on_list`) get the same kind of solution.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from cfel.arrays import FloatArray, IndexArray
from cfel.control.curves import measure_gap, respond_at
from cfel.control.prices import meet_cap, search_price
from cfel.control.problem import (
    Limits,
    Proposal,
    RoundProblem,
    Solution,
    find_feasible_limits,
    prove,
    solve_without_too_costly,
)
from cfel.control.segments import DeviceTerms, PricedFleet
from cfel.errors import InputError, unknown_name

Method = Literal["joint", "alternating"]
METHODS = ("joint", "alternating")
# An excess below this share of a limit is left alone.
ROUNDING = 1e-10
# Proven gap above which the bound is sharpened.
SHARPEN_ABOVE = 3e-4
# Intervals of θ tried per device, and devices tried, one at a time.
CASES = 8
MOST_CASE_DEVICES = 2


@dataclass(frozen=True, slots=True)
class Stopping:
    """When Algorithm 3 ends: the step ‖z_e − z_{e−1}‖ falls to `tolerance`, or after `most_iterations`."""

    tolerance: float = 1e-6
    most_iterations: int = 100


def solve(
    problem: RoundProblem,
    method: Method = "joint",
    start: tuple[ArrayLike, ArrayLike] | None = None,
    stopping: Stopping | None = None,
) -> Solution:
    """Decides how much every device computes and sends.

    Args:
        problem: what is known and what may be spent.
        method: "joint" finds the optimum up to a proven gap; "alternating" is the paper's Algorithm 3.
        start: ρ₀ and θ₀ of Algorithm 3, numbers or arrays; by default the upper bounds.
        stopping: when Algorithm 3 ends.

    Returns:
        A plan with its proof. Caps that cannot be met do not raise an error: see `Solution.violations`.
    """
    if method not in METHODS:
        raise InputError(unknown_name("method", method, METHODS))
    if method == "joint" and (start is not None or stopping is not None):
        raise InputError("start, stopping: only method='alternating' takes them")
    if method == "joint":
        return solve_without_too_costly(problem, lambda rest, _: _solve(rest, None))
    rho, theta = _read_start(problem, start)
    return solve_without_too_costly(
        problem, lambda rest, kept: _solve(rest, ((rho[kept], theta[kept]), stopping or Stopping()))
    )


def _solve(
    problem: RoundProblem, alternating: tuple[tuple[FloatArray, FloatArray], Stopping] | None
) -> Solution:
    """By Algorithm 3 if it is told where to start and when to stop."""
    limits = find_feasible_limits(problem)
    # Algorithm 3 has no bound of its own; the joint solver's holds for every plan within the limits.
    found = replace(solve_joint(problem, limits), method="alternating" if alternating else "joint")
    if limits.forced:
        # The limits allow the energy of the lower bounds, so the bound is over plans that use no more.
        found = replace(found, rho=problem.rho_min, theta=problem.theta_min, multiplier=np.inf)
    elif alternating:
        rho, theta, passes = solve_alternating(problem, limits, *alternating)
        found = replace(found, rho=rho, theta=theta, iterations=passes)
    rho, theta = project_feasible(problem, limits, found.rho, found.theta)
    return prove(problem, limits, replace(found, rho=rho, theta=theta))


def _read_start(
    problem: RoundProblem, start: tuple[ArrayLike, ArrayLike] | None
) -> tuple[FloatArray, FloatArray]:
    if start is None:
        return problem.rho_max, problem.theta_max
    rho, theta = (
        _check_start(name, values, problem.devices)
        for name, values in zip(("rho", "theta"), start, strict=True)
    )
    return rho, theta


def _check_start(name: str, values: ArrayLike, devices: int) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        array = np.full(devices, array)
    if array.shape != (devices,) or not np.isfinite(array).all():
        raise InputError(f"start: {name}₀ must be a finite number or {devices} of them, got {values!r}")
    outside = np.flatnonzero((array < 0) | (array > 1))
    if outside.size:
        first = outside[0]
        raise InputError(f"start: {name}₀[{first}] = {array[first]}: must lie in [0, 1]")
    return array


# Algorithm 3 of the paper: θ with ρ fixed (P2.1), then ρ with θ fixed (P2.2), until nothing moves. Its
# result depends on where it starts: a device whose time cap is used up (ρτμ + θν = cap) is a fixed point
# for *every* split between ρ and θ. The two sub-problems need no general solver. P2.1 is a fractional
# knapsack and P2.2 is water-filling; both are solved exactly here.


def solve_alternating(
    problem: RoundProblem, limits: Limits, start: tuple[FloatArray, FloatArray], stopping: Stopping
) -> tuple[FloatArray, FloatArray, int]:
    """Runs Algorithm 3 (lines 4–10) and returns ρ, θ and the number of passes.

    A start that breaks the limits is first brought within them (`make_start_feasible`).
    """
    rho, theta = make_start_feasible(problem, limits, start)
    for iteration in range(1, stopping.most_iterations + 1):  # noqa: B007 — counted, and returned
        new_theta = solve_theta(problem, limits, rho)
        new_rho = solve_rho(problem, limits, new_theta)
        moved = np.sqrt(np.sum((new_rho - rho) ** 2) + np.sum((new_theta - theta) ** 2))
        rho, theta = new_rho, new_theta
        if moved <= stopping.tolerance:
            break
    return rho, theta, iteration


def make_start_feasible(
    problem: RoundProblem, limits: Limits, start: tuple[FloatArray, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Clips a start to its bounds and moves it towards the lower bounds until every limit holds.

    P2.1 keeps ρ, so ρ must leave room for θ_min. First ρ is cut to what each device's own time and battery
    allow beside θ_min; then all ρ move towards ρ_min by one common factor until the energy suffices.
    """
    terms = DeviceTerms.from_problem(problem, limits)
    rho = np.clip(start[0], problem.rho_min, problem.rho_max)
    theta = np.clip(start[1], problem.theta_min, problem.theta_max)
    seconds_left = limits.seconds - problem.theta_min * problem.nu
    joules_left = terms.joules - problem.theta_min * terms.upload_joules
    rho = np.minimum(rho, seconds_left / terms.step_seconds)
    rho = np.minimum(
        rho, np.divide(joules_left, terms.step_joules, out=np.ones_like(rho), where=terms.step_joules > 0)
    )
    rho = np.maximum(rho, problem.rho_min)
    least = float(problem.joules(problem.rho_min, problem.theta_min).sum())
    wanted = float(problem.joules(rho, problem.theta_min).sum())
    share = min(1.0, (limits.joules - least) / (wanted - least)) if wanted > least else 1.0
    return problem.rho_min + share * (rho - problem.rho_min), theta


def solve_theta(problem: RoundProblem, limits: Limits, rho: FloatArray) -> FloatArray:
    """Solves P2.1: the best θ for a given ρ.

    Maximise Σ ρθ where each θ costs pν joules and is limited by what ρ leaves of the device's time and
    battery: a fractional knapsack, filled in the order of ρ/(pν).
    """
    terms = DeviceTerms.from_problem(problem, limits)
    most = _largest_theta(terms, rho)
    room = most - problem.theta_min
    joules = room * terms.upload_joules
    left = limits.joules - float(problem.joules(rho, problem.theta_min).sum())
    worth = np.divide(rho, terms.upload_joules, out=np.full_like(rho, np.inf), where=terms.upload_joules > 0)
    ranked = np.argsort(-worth, kind="stable")
    before = np.cumsum(joules[ranked]) - joules[ranked]
    share = np.ones_like(rho)
    needed = joules[ranked]
    share[ranked] = np.clip(
        np.divide(left - before, needed, out=np.ones_like(rho), where=needed > 0), 0.0, 1.0
    )
    return problem.theta_min + share * room


def solve_rho(problem: RoundProblem, limits: Limits, theta: FloatArray) -> FloatArray:
    """Solves P2.2: the best ρ for a given θ.

    Minimise Σ 3G²ρ² + Cρ with C = (2−θ)σ² − (4+θ)G²: water-filling over the price of energy λ. The price
    search of the joint solver does that if every device has the one segment "θ as given". That problem is
    convex, so the two responses it returns may be mixed to use the energy exactly.
    """
    return interpolate_rho(PricedFleet.from_problem(problem, limits, theta), limits.joules)


def _largest_theta(terms: DeviceTerms, rho: FloatArray) -> FloatArray:
    """The largest θ that time and battery leave beside ρ."""
    most = terms.theta_max
    for budget, step, upload in (
        (terms.seconds, terms.step_seconds, terms.upload_seconds),
        (terms.joules, terms.step_joules, terms.upload_joules),
    ):
        room = np.divide(budget - rho * step, upload, out=np.full_like(rho, np.inf), where=upload > 0)
        most = np.minimum(most, room)
    return np.maximum(most, terms.theta_min)


# Takes back what rounding put over a limit. A solver computes θ as what a limit leaves beside ρ. Where that
# is a small difference of large numbers, the plan can exceed the limit by more than the limit's own
# rounding. Such a plan is moved towards the lower bounds, which keep every limit, just as far as needed.


def project_feasible(
    problem: RoundProblem, limits: Limits, rho: FloatArray, theta: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Moves a plan within its bounds and limits: first device by device, then all together for the energy."""
    rho = np.clip(rho, problem.rho_min, problem.rho_max)
    theta = np.clip(theta, problem.theta_min, problem.theta_max)
    if _fits(problem, limits, rho, theta):
        return rho, theta
    rho, theta = keep_own_limits(problem, limits, rho, theta)
    total = float(problem.joules(problem.rho_min, problem.theta_min).sum())
    spent = float(problem.joules(rho, theta).sum())
    return shrink(
        problem, rho, theta, share_to_keep(np.array(spent), np.array(total), np.array(limits.joules))
    )


def keep_own_limits(
    problem: RoundProblem, limits: Limits, rho: FloatArray, theta: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Moves every device within its own limits of seconds and joules."""
    low = problem.rho_min, problem.theta_min
    kept = share_to_keep(problem.seconds(rho, theta), problem.seconds(*low), limits.seconds)
    if limits.battery is not None:
        within = share_to_keep(problem.joules(rho, theta), problem.joules(*low), limits.battery)
        kept = np.minimum(kept, within)
    return shrink(problem, rho, theta, kept)


def _fits(problem: RoundProblem, limits: Limits, rho: FloatArray, theta: FloatArray) -> bool:
    joules, wider = problem.joules(rho, theta), 1.0 + ROUNDING
    return bool(
        joules.sum() <= limits.joules * wider
        and (problem.seconds(rho, theta) <= limits.seconds * wider).all()
        and (limits.battery is None or (joules <= limits.battery * wider).all())
    )


def share_to_keep(used: FloatArray, least: FloatArray, allowed: FloatArray) -> FloatArray:
    """How much of what exceeds the least use may stay, 0 … 1."""
    over = (used > allowed * (1.0 + ROUNDING)) & (used > least)
    room = np.divide(allowed - least, used - least, out=np.ones_like(used), where=over)
    return np.asarray(np.clip(room, 0.0, 1.0))


def shrink(
    problem: RoundProblem, rho: FloatArray, theta: FloatArray, kept: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Moves a plan towards the lower bounds; costs are linear in ρ and θ and shrink by the same share."""
    rho_min, theta_min = problem.rho_min, problem.theta_min
    rho, theta = rho_min + kept * (rho - rho_min), theta_min + kept * (theta - theta_min)
    # Rounding may leave a variable outside its bounds by a last bit.
    return np.clip(rho, rho_min, problem.rho_max), np.clip(theta, theta_min, problem.theta_max)


def solve_joint(problem: RoundProblem, limits: Limits) -> Proposal:
    """Finds a plan within the limits, and a lower bound on every other."""
    fleet = PricedFleet.from_problem(problem, limits)
    bracket, plan = meet_cap(fleet, limits.joules)
    bound = bracket.lower_bound
    if measure_gap(plan, bound) > SHARPEN_ABOVE:
        over, under = (respond_at(fleet, end.point.price) for end in (bracket.over, bracket.under))
        jumping = np.flatnonzero(over.choice != under.choice)
        bound = max(bound, _bound_by_cases(fleet, limits.joules, jumping))
    scale = problem.sigma2 + problem.g2
    return Proposal(
        plan.rho,
        fleet.theta(plan),
        lower_bound=scale * min(bound, float(plan.cost.sum())),
        multiplier=scale * bracket.price,
        method="joint",
    )


def interpolate_rho(fleet: PricedFleet, energy_cap: float) -> FloatArray:
    """Moves from the response under the cap towards the one over it, as far as the energy goes."""
    bracket = search_price(fleet, energy_cap)
    over, under = bracket.over.point, bracket.under.point
    span = over.joules - under.joules
    share = min(1.0, max(0.0, (energy_cap - under.joules) / span)) if span > 0 else 0.0
    most, least = (respond_at(fleet, point.price).rho for point in (over, under))
    return least + share * (most - least)


# A sharper lower bound by cases: what if this device's θ lay in this interval? The dual bound replaces
# every device's value, as a function of its energy, by its convex envelope. For a device that jumps, the
# two differ, and that makes the bound too low. Cutting the device's range of θ into intervals and bounding
# each case on its own closes most of the difference. The least of the cases bounds the whole: this is one
# level of branch and bound.


def _bound_by_cases(fleet: PricedFleet, energy_cap: float, devices: IndexArray) -> float:
    """The best bound from cutting up the θ of one of the first devices; −inf where there is none to cut."""
    bounds = [_bound_device(fleet, energy_cap, int(device)) for device in devices[:MOST_CASE_DEVICES]]
    return max(bounds, default=-np.inf)


def _bound_device(fleet: PricedFleet, energy_cap: float, device: int) -> float:
    ends = np.linspace(fleet.terms.theta_min[device], fleet.terms.theta_max[device], CASES + 1)
    cases = pairwise(ends.tolist())
    return min(_bound_case(fleet, energy_cap, device, low, high) for low, high in cases)


def _bound_case(fleet: PricedFleet, energy_cap: float, device: int, low: float, high: float) -> float:
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
    return search_price(fleet.change(narrower), energy_cap).lower_bound
