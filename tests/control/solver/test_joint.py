"""The joint solver against brute force, against Algorithm 3, and its prove gap on the paper's fleets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfel.control import RoundProblem, Stopping, solve
from cfel.control.problem import find_feasible_limits
from cfel.control.solve import solve_alternating
from tests.control import reference
from tests.control.instances import CIFAR, FEMNIST, PRESETS, RATIOS, SEEDS, paper_problem

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)


def small_problem(seed: int, devices: int, ratio: float, share: float) -> RoundProblem:
    """One to three devices; every other one has a battery, the clusters are all different."""
    preset = (CIFAR, FEMNIST)[seed % 2]
    plain = paper_problem(seed, preset, devices, ratio=ratio, share=share)
    if seed % 3:
        return plain
    full = plain.joules(np.ones(devices), np.ones(devices))
    battery = np.where(np.arange(devices) % 2 == 0, 0.7 * full, np.inf)
    return paper_problem(seed, preset, devices, ratio=ratio, share=share, battery=battery)


@pytest.mark.parametrize("devices", [1, 2, 3])
@given(seed=SEEDS, ratio=st.sampled_from(RATIOS), share=st.sampled_from(SHARES))
@settings(max_examples=25, derandomize=True)
def test_joint_is_as_good_as_brute_force(devices: int, seed: int, ratio: float, share: float) -> None:
    """The bound always holds; a plan may, once in hundreds of rounds, be a little worse than the best."""
    problem = small_problem(seed, devices, ratio, share)
    solution = solve(problem)
    if solution.feasible:
        best = reference.brute_force(problem)
        assert solution.objective <= best * (1 + 1e-4)
        assert solution.lower_bound <= best * (1 + 1e-9)


def test_a_limit_that_binds_only_the_device_searched_for() -> None:
    """Only device 0's battery binds, so without device 0 the other one has one segment fewer."""
    problem = RoundProblem(
        tau=1,
        sigma2=2.0,
        g2=1.0,
        mu=[4.0, 8.0],
        alpha=[5.0, 2.0],
        nu=[6.0, 28.0],
        power=[4.0, 3.5],
        cluster=[0, 0],
        time_cap=35.0,
        energy_cap=29.0,
        battery=[23.0, np.inf],
    )
    solution, best = solve(problem), reference.brute_force(problem)
    assert solution.feasible
    assert solution.lower_bound <= best * (1 + 1e-9)
    assert solution.objective <= best * (1 + 1e-4)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_gap_of_a_paper_fleet_is_small(name: str, ratio: float) -> None:
    """From 64 devices on at most 0.1 %, whatever σ²/G² and the budgets."""
    for share in SHARES:
        for devices, seed in ((64, 1), (64, 2), (64, 3), (150, 4)):
            solution = solve(paper_problem(seed, PRESETS[name], devices, ratio=ratio, share=share))
            assert solution.gap <= 1e-3, (share, devices, seed)


@pytest.mark.parametrize("devices", [2, 5, 8, 16, 64])
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("ratio", "share"), [(0.01, 0.4), (0.2, 0.6), (1.0, 0.6), (1.0, 0.3), (5.0, 0.8)])
def test_joint_is_not_worse_than_the_best_of_20_random_starts(
    devices: int, name: str, ratio: float, share: float
) -> None:
    for seed in range(2):
        problem = paper_problem(seed, PRESETS[name], devices, ratio=ratio, share=share)
        assert solve(problem).objective <= best_of_random_starts(problem, seed) * (1 + 1e-4)


def best_of_random_starts(problem: RoundProblem, seed: int, starts: int = 20) -> float:
    """The least objective Algorithm 3 reaches from random starts."""
    draw, limits = np.random.default_rng(seed), find_feasible_limits(problem)
    stopping = Stopping(tolerance=1e-6, most_iterations=30)
    found = []
    for _ in range(starts):
        rho, theta = draw.random((2, problem.devices))
        rho, theta, _ = solve_alternating(problem, limits, (rho, theta), stopping)
        found.append(reference.objective(problem, rho, theta))
    return min(found)
