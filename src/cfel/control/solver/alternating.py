"""Algorithm 3 of the paper: θ with ρ fixed (P2.1), then ρ with θ fixed (P2.2), until nothing moves.

Kept as the paper has it, for comparison. Its result depends on where it starts: a device whose time cap is
used up (ρτμ + θν = cap) is a fixed point for *every* split between ρ and θ. The two sub-problems need no
general solver. P2.1 is a fractional knapsack and P2.2 is water-filling; both are solved exactly here.
"""

from dataclasses import dataclass, replace

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.dual_search import search_energy_price
from cfel.control.solver.feasible_limits import Limits
from cfel.control.solver.priced_fleet import PricedFleet
from cfel.control.solver.segment_limits import DeviceTerms


@dataclass(frozen=True, slots=True)
class Stopping:
    """When Algorithm 3 ends: the step ‖z_e − z_{e−1}‖ falls to `tolerance`, or after `most_iterations`."""

    tolerance: float = 1e-6
    most_iterations: int = 100


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
    scale = problem.sigma2 + problem.g2
    gradient = problem.g2 / scale if scale > 0 else 0.0
    terms = replace(DeviceTerms.from_problem(problem, limits), theta_min=theta, theta_max=theta)
    bracket = search_energy_price(
        PricedFleet.from_terms(terms, problem.noise_weight, gradient), limits.joules
    )
    over, under = bracket.over, bracket.under
    span = over.joules - under.joules
    share = (limits.joules - under.joules) / span if span > 0 else 0.0
    return under.rho + min(1.0, max(0.0, share)) * (over.rho - under.rho)


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
