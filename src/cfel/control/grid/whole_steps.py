"""A round solved in whole steps: as much progress as its time and energy are worth, within both caps.

The caps say what a round may use, not what it should use. Slow clocks that fill a slack time cap, or uploads
that hardly help but fit the energy budget, buy little. So with a time weight a between 0 and 1 the plan
maximises

    log progress − a·log makespan − (1 − a)·log energy

among the plans within the caps: one percent more time is spent only where it brings at least a percent of a
in progress. For a given makespan this sets the price of energy, λ = (1 − a)·progress / energy, and the
response to a price is exact. The makespan is searched on a grid. Without a time weight the caps are used up.

The bound says: no plan on the list with this makespan and this energy has a smaller objective.
"""

import math
from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray, IndexArray
from cfel.control.grid.step_grid import StepGrid
from cfel.control.grid.step_table import StepTable
from cfel.control.problem import RoundProblem
from cfel.control.solution import reject_excess
from cfel.control.solver.dual_search import search_energy_price
from cfel.control.solver.feasible_limits import Limits, find_feasible_limits
from cfel.system.clock import clock_energy

# Makespans that are tried, evenly spaced in the logarithm; twice, the second time around the best.
MAKESPANS = 12
# Progress per joule rises with its price, so the fixed point is reached from below in a few steps.
PRICE_STEPS = 12
# Energy left over after the search is offered to all devices this many times.
FILLS = 4
# A larger fleet chooses its makespan by a sample of about this size.
SAMPLE = 2048


@dataclass(frozen=True, slots=True, eq=False)
class StepSolution:
    """Who takes how many steps and sends how much, at what clock, and how good that is.

    Attributes:
        rho, theta, speed: per device; ρ is k/τ, speed the share of the clock.
        objective: the sum over devices.
        lower_bound: no plan on the list with this makespan and energy has a smaller objective.
        feasible, violations: as in `Solution`.
        device_seconds, device_joules: cost of every device.
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


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Every device's pair, and a lower bound on the objective at the same makespan and energy."""

    pair: IndexArray
    objective: float
    joules: float
    lower_bound: float

    def score(self, makespan: float, time_weight: float) -> float:
        """What is maximised; −inf for a plan that makes no progress."""
        if self.objective >= 0 or self.joules <= 0:
            return -math.inf
        cost = time_weight * math.log(makespan) + (1 - time_weight) * math.log(self.joules)
        return math.log(-self.objective) - cost


def solve_whole_steps(
    problem: RoundProblem, table: StepTable, time_weight: float | None = None
) -> StepSolution:
    """Decides the steps, θ and the clock of every device.

    Args:
        problem: what is known and what may be spent; its own objective plays no part. ρ_min and θ_min must
            be those of the table's first pair.
        table: the pairs to choose from and what each is worth.
        time_weight: a in (0, 1); None to use the caps up.
    """
    limits = find_feasible_limits(problem)
    grid = StepGrid.from_problem(problem, table, limits.seconds, limits.battery)
    if limits.forced:
        least = grid.spend_least()
        plan = _Plan(least.choice, least.objective, least.joules, least.objective)
    elif time_weight is None:
        plan = _fill_cap(grid, limits.joules)
    else:
        grid = grid.within(_choose_makespan(grid, limits.joules, time_weight))
        plan = _plan_within(grid, limits.joules, time_weight)
    return _prove(problem, limits, grid, plan)


def _choose_makespan(grid: StepGrid, energy_cap: float, time_weight: float) -> float:
    """The makespan of the best score, among a grid of them, and then among a finer grid around the best."""
    stride = max(1, grid.size // SAMPLE)
    sample, shortest = grid.sample(stride), grid.least_makespan()
    cap = energy_cap * sample.size / grid.size
    longest = max(shortest, min(float(grid.seconds.max()), grid.longest_makespan()))

    def score(makespan: float) -> float:
        plan = _plan_within(sample.within(makespan), cap, time_weight)
        return plan.score(makespan, time_weight)

    low, high = shortest, longest
    for _ in range(2):
        tried = np.geomspace(low, high, MAKESPANS).tolist() if high > low else [low]
        best = max(range(len(tried)), key=lambda i: (score(tried[i]), -i))
        low, high = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
    return float(tried[best])


def _plan_within(grid: StepGrid, energy_cap: float, time_weight: float) -> _Plan:
    """The best plan within the makespan: at the price that the score sets, or within the cap if it binds."""
    response = grid.respond(0.0)
    for _ in range(PRICE_STEPS):
        if response.objective >= 0 or response.joules <= 0:
            break
        price = (1 - time_weight) * -response.objective / response.joules
        # At the fixed point the response repeats itself.
        if price <= response.price * (1 + 1e-9):
            break
        response = grid.respond(price)
    if response.joules > energy_cap:
        return _fill_cap(grid, energy_cap)
    return _Plan(response.choice, response.objective, response.joules, response.objective)


def _fill_cap(grid: StepGrid, energy_cap: float) -> _Plan:
    """The least objective within the energy cap, nearly: the dual search, and what is left over spent."""
    bracket = search_energy_price(grid, energy_cap)
    pair = bracket.under.choice.copy()
    left = energy_cap - bracket.under.joules
    for _ in range(FILLS):
        better, gain, extra = grid.upgrade(pair, left)
        worth = np.flatnonzero(gain > 0)
        if not worth.size:
            break
        order = worth[np.argsort(-gain[worth] / np.maximum(extra[worth], 1e-300), kind="stable")]
        paid = order[np.cumsum(np.maximum(extra[order], 0.0)) <= left]
        # One that does not fit ends the sum; the first always fits by itself.
        paid = paid if paid.size else order[:1]
        pair[paid] = better[paid]
        left = energy_cap - float(grid.joules(pair).sum())
    objective = float(grid.costs(pair).sum())
    return _Plan(pair, objective, float(grid.joules(pair).sum()), min(bracket.lower_bound, objective))


def _prove(problem: RoundProblem, limits: Limits, grid: StepGrid, plan: _Plan) -> StepSolution:
    """The solution, its costs computed again and checked against every limit."""
    steps, theta = grid.table.steps[plan.pair], grid.table.theta[plan.pair]
    speed = grid.speed(plan.pair)
    seconds = steps * problem.mu / speed + theta * problem.nu
    share = clock_energy(speed, problem.clock_static, problem.clock_exponent)
    joules = steps * problem.alpha * share + theta * problem.power * problem.nu
    reject_excess("seconds", seconds, limits.seconds)
    reject_excess("joules", np.array([joules.sum()]), np.array([limits.joules]))
    if limits.battery is not None:
        reject_excess("battery", joules, limits.battery)
    return StepSolution(
        steps / problem.tau,
        theta,
        speed,
        plan.objective,
        plan.lower_bound,
        not limits.violations,
        limits.violations,
        seconds,
        joules,
    )
