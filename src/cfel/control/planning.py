"""From an observation to a plan: by asking any scheme, and by way of P2, as the schemes of the paper do.

HCEF and its ablations solve the same problem and differ only in the bounds they pin. So a scheme is a choice
of bounds, and the work is done here once. How the problem is solved is in `solver/`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control.grid.step_table import StepTable, list_steps, list_theta, pair_up
from cfel.control.grid.whole_steps import StepSolution, solve_whole_steps
from cfel.control.horizon import limit_to_budget
from cfel.control.problem import RoundProblem
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters, State, make_empty_plan
from cfel.control.solution import Solution
from cfel.control.solver.solve import solve
from cfel.errors import InputError

Bound = float | FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Lower and upper bounds of ρ and θ, numbers or one entry per device of the fleet."""

    rho: tuple[Bound, Bound]
    theta: tuple[Bound, Bound]


def plan_by_scheme(scheme: Scheme, state: State, observation: Observation) -> tuple[RoundPlan, State]:
    """The scheme's plan, for the rounds that the budget allows, and its next state.

    What the scheme does not state is added: the estimates of σ² and G², and the weights of sampled devices.
    """
    plan, state = scheme.plan(state, limit_to_budget(observation))
    if math.isnan(plan.sigma2) or math.isnan(plan.g2):
        sigma2, g2 = observation.estimates()
        plan = replace(plan, sigma2=sigma2, g2=g2)
    if plan.weight is None:
        plan = replace(plan, weight=observation.conditions.weight)
    if observation.small_batches is not None:
        # Every scheme is charged for whole samples, in both accounts.
        whole = np.where(plan.rho > 0, observation.small_batches.round_down(plan.rho), 0.0)
        plan = replace(plan, rho=whole)
    return plan, state


def plan_round(
    observation: Observation, parameters: SchemeParameters, bounds: Bounds, *, within_budget: bool = True
) -> RoundPlan:
    """Solves P2 for the devices that take part.

    Args:
        observation: what the coordinator knows.
        parameters: the scheme's parameters.
        bounds: bounds of ρ and θ; equal ones pin a variable.
        within_budget: whether the scheme keeps to the budgets; if not, the round has no caps.
    """
    present = observation.conditions.available
    if not present.any():
        return make_empty_plan(len(present))
    whole = parameters.steps == "whole"
    if whole:
        bounds = _round_bounds(bounds, observation.rounds.local_steps)
    problem = build_problem(observation, parameters, bounds, within_budget=within_budget)
    # With ρ pinned there is nothing to round, and the exact solver also chooses θ between the entries of a
    # list.
    if whole and (problem.rho_min < problem.rho_max).any():
        return make_plan(problem, _solve_in_whole_steps(problem), present)
    # Without caps the joint solver is done after one response; Algorithm 3 would only take longer.
    solution = solve(problem, parameters.solver if within_budget else "joint")
    return make_plan(problem, solution, present)


def _round_bounds(bounds: Bounds, tau: int) -> Bounds:
    """The same bounds with ρ in whole steps: at least what the lower bound asks for, and one step."""
    low = np.maximum(1.0, np.ceil(np.multiply(bounds.rho[0], tau) - 1e-9))
    high = np.maximum(low, np.floor(np.multiply(bounds.rho[1], tau) + 1e-9))
    return Bounds(rho=(low / tau, high / tau), theta=bounds.theta)


def _solve_in_whole_steps(problem: RoundProblem) -> StepSolution:
    """P2 on a list of pairs (k, θ), at full clocks."""
    limits = (problem.rho_min, problem.rho_max, problem.theta_min, problem.theta_max)
    if any(np.ptp(bound) > 0 for bound in limits):
        raise InputError('scheme.steps = "whole": needs the same bounds of ρ and θ for all devices')
    rho_min, rho_max, theta_min, theta_max = (float(bound[0]) for bound in limits)
    steps = list_steps(rho_min, problem.tau)
    shares = list_theta(theta_min, theta_max)
    count, share = pair_up(steps[steps <= rho_max * problem.tau + 1e-9], shares)
    rho, theta = count / problem.tau, shares[share]
    noise = problem.noise_weight * (2.0 - theta) * rho * (problem.sigma2 + problem.g2)
    table = StepTable(count, theta, noise + 3.0 * (1.0 - rho) ** 2 * problem.g2)
    return solve_whole_steps(problem, table)


def make_plan(
    problem: RoundProblem,
    solution: Solution | StepSolution,
    present: BoolArray,
    *,
    speed: FloatArray | None = None,
) -> RoundPlan:
    """Turns a solution for the devices that take part into a plan for the whole fleet.

    Args:
        problem: the problem that was solved.
        solution: its solution, one entry per device that takes part.
        present: whether each device of the fleet takes part.
        speed: share of the clock of each device that takes part; `None` for full clocks.
    """
    return RoundPlan(
        rho=_expand_to_fleet(solution.rho, present, absent=0.0),
        theta=_expand_to_fleet(solution.theta, present, absent=0.0),
        sigma2=problem.sigma2,
        g2=problem.g2,
        objective=solution.objective,
        lower_bound=solution.lower_bound,
        gap=solution.gap,
        feasible=solution.feasible,
        violations=solution.violations,
        speed=None if speed is None else _expand_to_fleet(speed, present, absent=1.0),
    )


def _expand_to_fleet(values: FloatArray, present: BoolArray, absent: float) -> FloatArray:
    spread = np.full(len(present), absent)
    spread[present] = values
    return spread


def build_problem(
    observation: Observation, parameters: SchemeParameters, bounds: Bounds, *, within_budget: bool = True
) -> RoundProblem:
    """Builds P2 for the devices that take part, with the caps of this edge round."""
    conditions, present = observation.conditions, observation.conditions.available
    sigma2, g2 = observation.estimates()
    seconds, joules = np.full(observation.clusters, np.inf), np.inf
    if within_budget:
        seconds, joules = observation.caps()
    if observation.small_batches is not None:
        least = observation.small_batches.least
        low, high = (np.maximum(bound, least) for bound in bounds.rho)
        bounds = Bounds(rho=(low, high), theta=bounds.theta)
    return RoundProblem(
        tau=observation.rounds.local_steps,
        sigma2=sigma2,
        g2=g2,
        mu=conditions.mu[present],
        alpha=conditions.alpha[present],
        nu=conditions.nu[present],
        power=conditions.power[present],
        cluster=observation.cluster[present],
        time_cap=seconds,
        energy_cap=joules,
        rho_min=_select_present(bounds.rho[0], present),
        rho_max=_select_present(bounds.rho[1], present),
        theta_min=_select_present(bounds.theta[0], present),
        theta_max=_select_present(bounds.theta[1], present),
        noise_weight=parameters.noise_weight,
        on_unreachable=parameters.on_unreachable,
        battery=_share_battery(observation) if within_budget else None,
        # The solver sees only devices that take part; messages must still name them by their number in the
        # fleet.
        device=np.flatnonzero(present),
        clock_static=conditions.clock_static[present],
        clock_exponent=conditions.clock_exponent[present],
    )


def _share_battery(observation: Observation) -> FloatArray | None:
    """What each present device may use of its battery now, so that it lasts to the end of the run."""
    if observation.battery is None:
        return None
    # Evenly over the rest of the run, as the budgets are: a device must not be empty before the last round.
    left = observation.rounds.edge_rounds_left(observation.global_round, observation.edge_round)
    return np.asarray(observation.battery[observation.conditions.available] / left)


def _select_present(bound: Bound, present: np.ndarray) -> FloatArray:
    return np.asarray(np.broadcast_to(bound, present.shape)[present], dtype=np.float64)
