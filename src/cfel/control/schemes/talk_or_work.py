"""To talk or to work: the least energy per progress, by each device's compression and common local steps.

Reference: Li, Shi, Hou, Li, Pan, Han, "To Talk or To Work: Flexible Communication Compression for Energy
Efficient Federated Learning over Heterogeneous Mobile Edge Devices", INFOCOM 2021 (arXiv 2012.11804).

Kept: every device has its own compression, all take the same number of local steps, and both minimise the
energy of computing and sending over the whole run, given what a convergence bound makes of them; what
compression leaves out is kept and sent later. Not kept: the paper's constants. A device with k of τ steps
brings

    1 / (1/ρ + drift · ρ/κ(θ)²),    ρ = k/τ

the inverse of the rounds that it asks for: more steps save rounds and let models drift apart, the more so
the less is sent. κ is what devices measure. Progress per joule of all devices together is maximised within
the seconds that the budget leaves the round, for each k, and the best k is taken.
"""

from dataclasses import dataclass

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.control.list_solver import PairTable, Weighing, list_steps, list_theta, solve_on_list
from cfel.control.planning import Bounds, build_problem, compute_costs, estimate_contraction, make_plan
from cfel.control.scheme import (
    DeviceOverrides,
    Observation,
    RoundPlan,
    Scheme,
    SchemeParameters,
    make_empty_plan,
    read_options,
)


@dataclass(frozen=True, slots=True)
class Options:
    """`[scheme.options]`: how much drift counts, ≥ 0."""

    drift: float = 0.05

    def __post_init__(self) -> None:
        validation.check_number("scheme.options.drift", self.drift, least=0)


def talk_or_work(parameters: SchemeParameters) -> Scheme:
    """Chooses one number of steps for all devices, and each device's θ."""
    options = read_options(Options, parameters.options)
    theta = list_theta(parameters.theta_min)

    def plan(seen: Observation) -> RoundPlan:
        present = seen.conditions.available
        if not present.any():
            return make_empty_plan(len(present))
        tau, kept = seen.rounds.local_steps, estimate_contraction(theta, seen.kept_energy)
        plans = [
            _plan_steps(seen, parameters, count, -1 / (tau / count + options.drift * count / tau / kept**2))
            for count in list_steps(parameters.rho_min, tau).tolist()
        ]
        # Plans that keep to the caps first; of equal ones that with the fewest steps.
        return max(plans, key=lambda made: (made.feasible, _rate(seen, made)))

    return Scheme(
        init=dict,
        plan=lambda state, seen: (plan(seen), state),
        device_overrides=DeviceOverrides(
            steps="whole", error_feedback=True, kept_energy_at=tuple(theta.tolist())
        ),
        chooses_theta=parameters.theta_min < 1,
        keeps_budgets=True,
    )


def _rate(seen: Observation, made: RoundPlan) -> float:
    """Progress per joule of all devices; progress itself where nothing costs energy."""
    _, joules = compute_costs(seen, made.rho, made.theta)
    spent = float(joules[seen.conditions.available].sum())
    return -made.objective / spent if spent > 0 else -made.objective


def _plan_steps(seen: Observation, parameters: SchemeParameters, count: float, cost: FloatArray) -> RoundPlan:
    """The plan of most progress per joule with so many steps; `cost` is the progress at each θ, negative."""
    rho, theta = count / seen.rounds.local_steps, list_theta(parameters.theta_min)
    problem = build_problem(seen, parameters, Bounds((rho, rho), (float(theta[0]), 1.0)))
    # Time has no weight: only its cap counts.
    solution = solve_on_list(problem, PairTable(np.full(theta.size, count), theta, cost), Weighing(0.0))
    return make_plan(problem, solution, seen.conditions.available)
