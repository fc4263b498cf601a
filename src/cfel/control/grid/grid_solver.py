"""The problem of HCEF+, solved over a `ThetaGrid`: θ from a list, clocks that may slow down, a proven gap.

`search_energy_price` finds the price of energy, as for P2. Its two responses differ in the θ of a few
devices. As many of those take the dearer θ as the energy pays for, and with every θ decided, the convex rest
is solved once more. The lower bound holds for every plan on the list of θ, so the gap is a proof for that
list.
"""

from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.grid.theta_grid import Objective, ThetaGrid
from cfel.control.problem import RoundProblem
from cfel.control.solution import reject_excess
from cfel.control.solver.dual_search import Bracket, search_energy_price
from cfel.control.solver.feasible_limits import Limits, find_feasible_limits
from cfel.control.solver.priced_fleet import Choices


@dataclass(frozen=True, slots=True, eq=False)
class GridSolution:
    """How much every device computes and sends, at what clock, and how good that is.

    Attributes:
        rho, theta, speed: per device; speed is the share of the clock.
        objective: the sum over devices.
        lower_bound: no plan on the list within the caps has a smaller objective.
        feasible, violations: as in `Solution`.
        device_seconds, device_joules: expected cost of every device.
    """

    rho: FloatArray
    theta: FloatArray
    speed: FloatArray
    objective: float
    lower_bound: float
    feasible: bool
    violations: tuple[str, ...]
    device_seconds: FloatArray
    device_joules: FloatArray

    @property
    def gap(self) -> float:
        """(objective − lower bound) / |lower bound|."""
        distance = self.objective - self.lower_bound
        return distance / abs(self.lower_bound) if self.lower_bound else (np.inf if distance else 0.0)


def solve_on_grid(problem: RoundProblem, objective: Objective) -> GridSolution:
    """Decides ρ, θ and the clock of every device.

    Args:
        problem: what is known and what may be spent. Its own objective is ignored, and θ is bounded by the
            list.
        objective: what to minimise, with the list of θ; the smallest must be the problem's θ_min.
    """
    limits = find_feasible_limits(problem)
    grid = ThetaGrid.from_problem(problem, limits, objective)
    bracket = search_energy_price(grid, limits.joules)
    if limits.forced:
        least = grid.spend_least()
        choice, rho = least.choice, least.rho
    else:
        choice, rho = _choose_plan(grid, bracket, limits.joules)
    return _prove(problem, limits, grid, choice, rho, bracket.lower_bound)


def _choose_plan(grid: ThetaGrid, bracket: Bracket, cap: float) -> tuple[Choices, FloatArray]:
    """The best of: the response under the cap, and two plans with every θ fixed and ρ solved again."""
    if bracket.over is bracket.under:
        return bracket.under.choice, bracket.under.rho
    plans = [(bracket.under.choice, bracket.under.rho)]
    for choice in (bracket.under.choice, _take_affordable_changes(grid, bracket, cap)):
        held = search_energy_price(grid.hold(choice), cap, bracket.price).under
        if held.joules <= cap:
            plans.append((held.choice, held.rho))
    return min(plans, key=lambda plan: float(grid.objective.costs(*plan).sum()))


def _take_affordable_changes(grid: ThetaGrid, bracket: Bracket, cap: float) -> Choices:
    """The θ under the cap, changed to those over it where the energy allows, best value per joule first."""
    over, under = bracket.over, bracket.under
    jumping = np.flatnonzero(over.choice != under.choice)
    dearer = (grid.joules(over.choice, over.rho) - grid.joules(under.choice, under.rho))[jumping]
    costs = grid.objective.costs
    better = (costs(under.choice, under.rho) - costs(over.choice, over.rho))[jumping]
    with np.errstate(over="ignore"):  # what costs next to nothing is worth infinitely much
        order = np.argsort(-better / np.maximum(dearer, 1e-300), kind="stable")
    paid = np.cumsum(np.maximum(dearer[order], 0.0)) <= cap - under.joules
    choice = under.choice.copy()
    chosen = jumping[order[paid]]
    choice[chosen] = over.choice[chosen]
    return choice


def _prove(
    problem: RoundProblem, limits: Limits, grid: ThetaGrid, choice: Choices, rho: FloatArray, bound: float
) -> GridSolution:
    """Builds the solution; computes its costs from the problem and checks them against every limit."""
    theta, speed = grid.objective.theta[choice], grid.speed(choice, rho)
    seconds = rho * problem.tau * problem.mu / speed + theta * problem.nu
    joules = rho * problem.tau * problem.alpha * speed**2 + theta * problem.power * problem.nu
    reject_excess("seconds", seconds, limits.seconds)
    reject_excess("joules", np.array([joules.sum()]), np.array([limits.joules]))
    if limits.battery is not None:
        reject_excess("battery", joules, limits.battery)
    objective = float(grid.objective.costs(choice, rho).sum())
    return GridSolution(
        rho,
        theta,
        speed,
        objective,
        min(bound, objective),
        not limits.violations,
        limits.violations,
        seconds,
        joules,
    )
