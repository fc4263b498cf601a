"""What must hold for every round, whatever its numbers: defined, within limits, honestly bounded."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cfel.control import RoundProblem, Solution, solve
from cfel.control.reach import Limits, reachable
from cfel.control.solver import Method

from . import reference
from .instances import PAPER, SEEDS, WILD

ANY = st.one_of(WILD, PAPER)
ROUNDING = 1e-8
"""Relative excess that counts as rounding, for limits and for bounds."""


def assert_proven(problem: RoundProblem, solution: Solution) -> None:
    """Bounds, limits, objective, gap and words, recomputed from the problem alone."""
    rho, theta = solution.rho, solution.theta
    assert (rho >= problem.rho_min).all()
    assert (rho <= problem.rho_max).all()
    assert (theta >= problem.theta_min).all()
    assert (theta <= problem.theta_max).all()
    assert_limits(problem, reachable(problem), rho, theta)
    assert solution.objective == pytest.approx(reference.objective(problem, rho, theta), rel=1e-12)
    assert solution.lower_bound <= solution.objective
    assert solution.gap >= 0
    assert bool(solution.violations) == (not solution.feasible)
    if solution.feasible:
        asked = problem.time_cap[problem.cluster]
        assert reference.worst_excess(reference.seconds(problem, rho, theta), asked) <= ROUNDING
        spent = np.array([reference.joules(problem, rho, theta).sum()])
        assert reference.worst_excess(spent, np.array([problem.energy_cap])) <= ROUNDING


def assert_limits(problem: RoundProblem, limits: Limits, rho: np.ndarray, theta: np.ndarray) -> None:
    """Time, energy and batteries, raised where the lower bounds already break them and nowhere else."""
    used, spent = reference.seconds(problem, rho, theta), reference.joules(problem, rho, theta)
    assert reference.worst_excess(used, limits.seconds) <= ROUNDING
    assert reference.worst_excess(np.array([spent.sum()]), np.array([limits.joules])) <= ROUNDING
    if problem.battery is not None:
        least = reference.joules(problem, problem.rho_min, problem.theta_min)
        assert reference.worst_excess(spent, np.maximum(problem.battery, least)) <= ROUNDING


@given(ANY, st.sampled_from(["joint", "alternating"]))
@settings(max_examples=1500)
def test_every_round_has_a_proven_answer(problem: RoundProblem, method: Method) -> None:
    assert_proven(problem, solve(problem, method))


@given(ANY, SEEDS)
@settings(max_examples=1000)
def test_no_feasible_plan_beats_the_lower_bound(problem: RoundProblem, seed: int) -> None:
    """An energy cap out of reach leaves one plan only, so nothing else is tried there."""
    limits = reachable(problem)
    assume(not limits.forced)
    bound = solve(problem).lower_bound
    plans = reference.feasible_plans(problem, limits.seconds, limits.joules, np.random.default_rng(seed), 20)
    for rho, theta in plans:
        assert_limits(problem, limits, rho, theta)
        assert bound <= reference.objective(problem, rho, theta) * (1 + ROUNDING)
