"""A round solved over a `Menu`: θ from a list, the clock free to go slower, with a proven gap.

The price of energy comes from `hull.search`, as for P2. Its two answers differ in the θ of a few devices; of
those as many take the dearer answer as the energy pays for, and with every θ decided the convex rest is
solved once more. The bound holds for every plan on the list, so the gap is a proof for that list.
"""

from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.problem import RoundProblem
from cfel.control.solution import refuse_excess
from cfel.control.solver.dual_search import Bracket, search
from cfel.control.solver.feasible_limits import Limits, reachable
from cfel.control.solver.priced_fleet import Assignment
from cfel.control.solver.theta_grid import Menu, Worth


@dataclass(frozen=True, slots=True, eq=False)
class ProgressSolution:
    """Who computes and sends how much, at what clock, and how good that is.

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


def solve_progress(problem: RoundProblem, worth: Worth) -> ProgressSolution:
    """Decides ρ, θ and the clock of every device.

    Args:
        problem: what is known and what may be spent; its own objective plays no part, and the bounds of θ
            are those of the list.
        worth: the objective and the list of θ; the shortest must be the problem's θ_min.
    """
    limits = reachable(problem)
    menu = Menu.of(problem, limits, worth)
    bracket = search(menu, limits.joules)
    if limits.forced:
        least = menu.least()
        piece, rho = least.piece, least.rho
    else:
        piece, rho = _best(menu, bracket, limits.joules)
    return _proven(problem, limits, menu, piece, rho, bracket.lower_bound)


def _best(menu: Menu, bracket: Bracket, cap: float) -> tuple[Assignment, FloatArray]:
    """The better of: the answer under the cap, and as many of the dearer answers as the energy pays for."""
    if bracket.over is bracket.under:
        return bracket.under.piece, bracket.under.rho
    plans = [(bracket.under.piece, bracket.under.rho)]
    for piece in (bracket.under.piece, _mixed(menu, bracket, cap)):
        held = search(menu.held(piece), cap, bracket.price).under
        if held.joules <= cap:
            plans.append((held.piece, held.rho))
    return min(plans, key=lambda plan: float(menu.worth.costs(*plan).sum()))


def _mixed(menu: Menu, bracket: Bracket, cap: float) -> Assignment:
    """The answer under the cap, with the changes of θ that are worth most for their energy made first."""
    over, under = bracket.over, bracket.under
    jumping = np.flatnonzero(over.piece != under.piece)
    dearer = (menu.joules(over.piece, over.rho) - menu.joules(under.piece, under.rho))[jumping]
    better = (menu.worth.costs(under.piece, under.rho) - menu.worth.costs(over.piece, over.rho))[jumping]
    with np.errstate(over="ignore"):  # what costs next to nothing is worth infinitely much
        order = np.argsort(-better / np.maximum(dearer, 1e-300), kind="stable")
    paid = np.cumsum(np.maximum(dearer[order], 0.0)) <= cap - under.joules
    piece = under.piece.copy()
    chosen = jumping[order[paid]]
    piece[chosen] = over.piece[chosen]
    return piece


def _proven(
    problem: RoundProblem, limits: Limits, menu: Menu, piece: Assignment, rho: FloatArray, bound: float
) -> ProgressSolution:
    """The solution, its costs computed anew and checked against every limit."""
    theta, speed = menu.worth.theta[piece], menu.speed(piece, rho)
    seconds = rho * problem.tau * problem.mu / speed + theta * problem.nu
    joules = rho * problem.tau * problem.alpha * speed**2 + theta * problem.power * problem.nu
    refuse_excess("seconds", seconds, limits.seconds)
    refuse_excess("joules", np.array([joules.sum()]), np.array([limits.joules]))
    if limits.battery is not None:
        refuse_excess("battery", joules, limits.battery)
    objective = float(menu.worth.costs(piece, rho).sum())
    return ProgressSolution(
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
