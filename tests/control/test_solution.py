"""A solution proves itself: a plan over a limit is rejected, the rest is computed again."""

from dataclasses import replace

import numpy as np
import pytest

from cfel.control import Solution, SolverDefectError, solve
from cfel.control.problem import Proposal, RoundProblem, find_feasible_limits, prove
from cfel.control.solve import project_feasible
from tests.control.instances import CIFAR, paper_problem


def prove_uniform(problem: RoundProblem, rho: float, theta: float) -> Solution:
    """The same ρ and θ for all devices, offered as a solution."""
    rhos, thetas = np.full(problem.devices, rho), np.full(problem.devices, theta)
    found = Proposal(rhos, thetas, lower_bound=0.0, multiplier=0.0, method="joint")
    return prove(problem, find_feasible_limits(problem), found)


def test_plan_over_a_time_cap_is_rejected() -> None:
    problem = paper_problem(0, CIFAR, devices=4, energy_cap=np.inf)
    with pytest.raises(SolverDefectError, match="seconds"):
        prove_uniform(problem, 1.0, 1.0)


def test_plan_over_the_energy_cap_is_rejected() -> None:
    problem = paper_problem(0, CIFAR, devices=4, time_cap=np.inf)
    with pytest.raises(SolverDefectError, match="joules"):
        prove_uniform(problem, 1.0, 1.0)


def test_plan_over_a_battery_is_rejected() -> None:
    problem = paper_problem(0, CIFAR, devices=2, share=2.0, battery=np.array([np.inf, 1.0]))
    with pytest.raises(SolverDefectError, match=r"battery of .* at entry 1"):
        prove_uniform(problem, 1.0, 1.0)


def test_plan_that_is_not_a_number_is_rejected() -> None:
    with pytest.raises(SolverDefectError):
        prove_uniform(paper_problem(0, CIFAR, devices=2, share=2.0), np.nan, 1.0)


def test_plan_within_the_limits_is_accepted_and_costed() -> None:
    """At ρ = θ = 1 the objective is N(σ² + G²) = 2 · 2, and both caps of 200 % are half used."""
    problem = paper_problem(0, CIFAR, devices=2, share=2.0)
    solution = prove_uniform(problem, 1.0, 1.0)
    assert solution.objective == 4.0
    assert solution.joules == pytest.approx(problem.energy_cap / 2)
    assert solution.seconds == pytest.approx(problem.time_cap.max() / 2)
    assert solution.feasible


def test_gap_by_hand() -> None:
    """(5 − 4)/4; without a distance 0, over a bound of 0 infinite, below a negative bound (5 + 4)/4."""
    solution = solve(paper_problem(0, devices=2))
    assert replace(solution, objective=5.0, lower_bound=4.0).gap == 0.25
    assert replace(solution, objective=5.0, lower_bound=-4.0).gap == 2.25
    assert replace(solution, objective=0.0, lower_bound=0.0).gap == 0.0
    assert replace(solution, objective=1.0, lower_bound=0.0).gap == np.inf


def test_trimming_leaves_a_good_plan_alone() -> None:
    problem = paper_problem(3, devices=8)
    solution = solve(problem)
    rho, theta = project_feasible(problem, find_feasible_limits(problem), solution.rho, solution.theta)
    assert rho.tolist() == solution.rho.tolist()
    assert theta.tolist() == solution.theta.tolist()


def test_trimming_draws_a_plan_towards_the_lower_bounds_until_it_fits() -> None:
    """One device, μ = ν = τ = 1, lower bounds 0: ρ + θ = 2 s must become 1 s, so both halve.

    Its joules α·ρ + pθ = 1 + 3 are then 2; the cap of 1 J halves both once more.
    """
    one = np.ones(1)
    problem = RoundProblem(
        tau=1,
        sigma2=1,
        g2=1,
        mu=one,
        alpha=one,
        nu=one,
        power=3 * one,
        cluster=np.zeros(1, dtype=int),
        time_cap=one,
        energy_cap=1,
        rho_min=np.zeros(1),
        theta_min=np.zeros(1),
    )
    rho, theta = project_feasible(problem, find_feasible_limits(problem), one, one)
    assert (rho.tolist(), theta.tolist()) == ([0.25], [0.25])
