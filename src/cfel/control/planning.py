"""From an observation to a plan by way of P2: what the schemes of the paper have in common.

HCEF and its ablations solve the same problem; they differ in the bounds they pin. So a scheme is a choice of
bounds, and the work is done here once.
"""

from dataclasses import dataclass

import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control.caps import round_caps
from cfel.control.problem import RoundProblem
from cfel.control.scheme import Observation, RoundPlan, SchemeParameters, nobody
from cfel.control.solution import Solution
from cfel.control.solver.grid_solver import GridSolution
from cfel.control.solver.solve import solve

Bound = float | FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Lower and upper bounds of ρ and θ, numbers or one entry per device of the fleet."""

    rho: tuple[Bound, Bound]
    theta: tuple[Bound, Bound]


def plan_round(
    observation: Observation, parameters: SchemeParameters, bounds: Bounds, *, within_budget: bool = True
) -> RoundPlan:
    """Solves P2 for the devices that take part.

    Args:
        observation: what the coordinator knows.
        parameters: of the scheme.
        bounds: of ρ and θ; equal ones pin a variable.
        within_budget: whether the scheme minds the budgets at all; one that does not has no caps.
    """
    present = observation.conditions.available
    if not present.any():
        return nobody(len(present))
    problem = round_problem(observation, parameters, bounds, within_budget=within_budget)
    solution = solve(problem, parameters.solver if within_budget else "joint")
    return plan_of_solution(problem, solution, present)


def plan_of_solution(
    problem: RoundProblem,
    solution: Solution | GridSolution,
    present: BoolArray,
    *,
    speed: FloatArray | None = None,
) -> RoundPlan:
    """A solution for the devices that take part, as a plan for the whole fleet.

    Args:
        problem: what was solved.
        solution: one entry per device that takes part.
        present: who takes part, one entry per device of the fleet.
        speed: share of its clock per device that takes part; `None` for full clocks.
    """
    return RoundPlan(
        rho=_of_fleet(solution.rho, present, absent=0.0),
        theta=_of_fleet(solution.theta, present, absent=0.0),
        sigma2=problem.sigma2,
        g2=problem.g2,
        objective=solution.objective,
        lower_bound=solution.lower_bound,
        gap=solution.gap,
        feasible=solution.feasible,
        violations=solution.violations,
        speed=None if speed is None else _of_fleet(speed, present, absent=1.0),
    )


def _of_fleet(values: FloatArray, present: BoolArray, absent: float) -> FloatArray:
    spread = np.full(len(present), absent)
    spread[present] = values
    return spread


def round_problem(
    observation: Observation, parameters: SchemeParameters, bounds: Bounds, *, within_budget: bool = True
) -> RoundProblem:
    """P2 of the devices that take part, with the caps of this edge round."""
    conditions, present = observation.conditions, observation.conditions.available
    sigma2, g2 = observation.estimates()
    seconds, joules = np.full(observation.clusters, np.inf), np.inf
    if within_budget:
        seconds, joules = round_caps(
            observation.budget,
            observation.ledger,
            observation.rounds,
            observation.global_round,
            observation.edge_round,
            observation.backhaul_seconds,
        )
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
        rho_min=_of_present(bounds.rho[0], present),
        rho_max=_of_present(bounds.rho[1], present),
        theta_min=_of_present(bounds.theta[0], present),
        theta_max=_of_present(bounds.theta[1], present),
        noise_weight=parameters.noise_weight,
        on_unreachable=parameters.on_unreachable,
        battery=_battery_share(observation) if within_budget else None,
        device=np.flatnonzero(present),
    )


def _battery_share(observation: Observation) -> FloatArray | None:
    """What each present device may take from its battery now, so that it lasts to the end of the run."""
    if observation.battery is None:
        return None
    left = observation.rounds.edge_rounds_left(observation.global_round, observation.edge_round)
    return np.asarray(observation.battery[observation.conditions.available] / left)


def _of_present(bound: Bound, present: np.ndarray) -> FloatArray:
    return np.asarray(np.broadcast_to(bound, present.shape)[present], dtype=np.float64)
