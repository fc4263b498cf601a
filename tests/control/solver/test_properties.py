"""What must hold for every round, whatever its numbers: defined, within limits, honestly bounded."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cfel.control import RoundProblem, Solution, solve
from cfel.control.problem import Limits, find_feasible_limits, find_too_costly
from cfel.control.solve import Method
from tests.control import reference
from tests.control.instances import FEMNIST, PAPER, SEEDS, WILD, paper_problem, wild_problem

ANY = st.one_of(WILD, PAPER)
ROUNDING = 1e-8
"""Relative excess that counts as rounding, for limits and for bounds."""
SEARCHED = 1e-7
"""How exactly a lower bound is known: the search for it ends at a relative 1e-8."""


def assert_proven(problem: RoundProblem, solution: Solution) -> None:
    """Bounds, limits, objective, gap and words, recomputed from the problem alone."""
    too_costly = find_too_costly(problem)
    if too_costly.any():
        assert not np.any(
            [solution.rho[too_costly], solution.theta[too_costly], solution.device_joules[too_costly]]
        )
        assert not solution.feasible
    problem, rho, theta = problem.take(~too_costly), solution.rho[~too_costly], solution.theta[~too_costly]
    assert (rho >= problem.rho_min).all()
    assert (rho <= problem.rho_max).all()
    assert (theta >= problem.theta_min).all()
    assert (theta <= problem.theta_max).all()
    assert_limits(problem, find_feasible_limits(problem), rho, theta)
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
@settings(max_examples=200)
def test_every_round_has_a_proven_answer(problem: RoundProblem, method: Method) -> None:
    assert_proven(problem, solve(problem, method))


@given(PAPER, SEEDS, st.sampled_from(["joint", "alternating"]))
@settings(max_examples=60)
def test_a_device_that_alone_exceeds_the_energy_cap_changes_nothing_for_the_others(
    problem: RoundProblem, seed: int, method: Method
) -> None:
    """Its least upload needs more joules than all devices may use; the others are planned as without it."""
    assume(problem.devices > 1)
    faded = int(np.random.default_rng(seed).integers(problem.devices))
    others = np.arange(problem.devices) != faded
    nu = np.where(others, problem.nu, 2 * problem.energy_cap / (problem.theta_min * problem.power))
    whole, rest = solve(replace(problem, nu=nu), method), solve(problem.take(others), method)
    assume(not find_feasible_limits(problem.take(others)).forced)
    assert np.array_equal(whole.rho[others], rest.rho)
    assert np.array_equal(whole.theta[others], rest.theta)
    assert (whole.rho[faded], whole.theta[faded], whole.device_joules[faded]) == (0, 0, 0)
    assert (whole.objective, whole.lower_bound) == (rest.objective, rest.lower_bound)
    assert whole.violations[0].startswith(f"device {faded}: its lower bounds need")


@given(ANY, SEEDS)
@settings(max_examples=120)
def test_no_feasible_plan_beats_the_lower_bound(problem: RoundProblem, seed: int) -> None:
    """An energy cap out of reach leaves one plan only, so nothing else is tried there."""
    limits = find_feasible_limits(problem)
    assume(not limits.forced)
    bound = solve(problem).lower_bound
    plans = reference.feasible_plans(problem, limits.seconds, limits.joules, np.random.default_rng(seed), 20)
    for rho, theta in plans:
        assert_limits(problem, limits, rho, theta)
        assert bound <= reference.objective(problem, rho, theta) * (1 + ROUNDING)


@given(PAPER, st.sampled_from([1.05, 1.5, 10.0, np.inf]), st.booleans())
@settings(max_examples=60)
def test_more_budget_is_never_worse(problem: RoundProblem, factor: float, more_time: bool) -> None:
    """Without stretching: the bound stays below the old plan; the new one is worse by at most its gap."""
    tight = solve(problem)
    assume(tight.feasible)
    if more_time:
        wide = solve(replace(problem, time_cap=problem.time_cap * factor))
    else:
        wide = solve(replace(problem, energy_cap=problem.energy_cap * factor))
    assert wide.lower_bound <= tight.objective * (1 + SEARCHED)
    assert wide.objective <= tight.objective * (1 + wide.gap + SEARCHED)


@pytest.mark.parametrize("seed", range(8))
def test_the_objective_does_not_rise_with_the_time_cap(seed: int) -> None:
    """Up to what the search leaves: a plan is repaired from a gap of 4e-6 on."""
    problem = paper_problem(seed, FEMNIST, 40 + 10 * seed, 8, 1.0, 0.6)
    wider = [replace(problem, time_cap=problem.time_cap * factor) for factor in np.linspace(1.0, 1.6, 13)]
    found = np.array([solve(each).objective for each in wider])
    assert (np.diff(found) / found[:-1]).max() <= 6e-6


@given(PAPER, st.sampled_from([1e-12, 1e-3, 7.0, 1e12]))
@settings(max_examples=40)
def test_scaling_both_estimates_scales_the_objective(problem: RoundProblem, factor: float) -> None:
    """P2 is linear in (σ², G²) taken together, so the plan stays and the numbers scale."""
    plain = solve(problem)
    scaled = solve(replace(problem, sigma2=problem.sigma2 * factor, g2=problem.g2 * factor))
    assert_one_problem(
        plain, replace(scaled, objective=scaled.objective / factor, lower_bound=scaled.lower_bound / factor)
    )


@given(PAPER, st.sampled_from([1e-9, 1e-3, 60.0, 1e9]), st.sampled_from([1e-9, 1e-3, 60.0, 1e9]))
@example(paper_problem(2, FEMNIST, 29, 2, 0.01, 0.4), 1e-9, 1e9)
@example(paper_problem(10, FEMNIST, 10, 6, 1.0, 0.2), 60.0, 1e-9)
@settings(max_examples=40)
def test_units_of_time_and_energy_do_not_matter(problem: RoundProblem, seconds: float, joules: float) -> None:
    """Hours for seconds and kilojoules for joules, consistently: the same problem."""
    other = replace(
        problem,
        mu=problem.mu * seconds,
        nu=problem.nu * seconds,
        alpha=problem.alpha * joules,
        power=problem.power * (joules / seconds),
        time_cap=problem.time_cap * seconds,
        energy_cap=problem.energy_cap * joules,
    )
    assert_one_problem(solve(problem), solve(other))


def assert_one_problem(one: Solution, other: Solution) -> None:
    """Plans and bounds may differ by as much as is not prove, as rounding decides which cases are tried."""
    gap = SEARCHED + max(one.gap, other.gap)
    assert other.objective == pytest.approx(one.objective, rel=gap)
    assert other.lower_bound == pytest.approx(one.lower_bound, rel=gap)
    assert other.lower_bound <= one.objective * (1 + SEARCHED)
    assert one.lower_bound <= other.objective * (1 + SEARCHED)


def one_device(**fields: Any) -> RoundProblem:
    """One device without limits: τ = μ = α = ν = p = 1, σ² = 0, G² = 1."""
    one = np.ones(1)
    given: dict[str, Any] = {
        "tau": 1,
        "sigma2": 0.0,
        "g2": 1.0,
        **dict.fromkeys(("mu", "alpha", "nu", "power"), one),
        "cluster": np.zeros(1, dtype=int),
        "time_cap": np.inf,
        "energy_cap": np.inf,
    }
    return RoundProblem(**(given | fields))


def test_one_device_without_limits() -> None:
    """θ = 1, and ρ + 3(1−ρ)² is least where 1 = 6(1−ρ): ρ = 5/6, objective 5/6 + 3/36 = 11/12."""
    solution = solve(one_device())
    assert (solution.rho[0], solution.theta[0]) == pytest.approx((5 / 6, 1.0))
    assert solution.objective == pytest.approx(11 / 12)
    assert solution.gap == pytest.approx(0.0, abs=1e-12)
    assert solution.multiplier == 0


def test_one_device_on_its_time_limit() -> None:
    """ρ + θ ≤ 1: along θ = 1 − ρ the objective is (1 + ρ)ρ + 3(1−ρ)² = 4ρ² − 5ρ + 3, least at ρ = 5/8."""
    solution = solve(one_device(time_cap=1.0))
    assert (solution.rho[0], solution.theta[0]) == pytest.approx((5 / 8, 3 / 8))
    assert solution.objective == pytest.approx(23 / 16)


def test_energy_binds_where_time_does_not() -> None:
    """The same limit in joules: one device's energy cap is as good as a battery, so the gap is 0."""
    for limited in (one_device(energy_cap=1.0), one_device(battery=np.ones(1))):
        solution = solve(limited)
        assert (solution.rho[0], solution.theta[0]) == pytest.approx((5 / 8, 3 / 8))
        assert solution.gap == pytest.approx(0.0, abs=1e-9)


def test_noise_drives_the_update_frequency_to_its_lower_bound() -> None:
    """σ² ≥ 5G²: even at θ = 1 the slope A − 6G² at ρ = 0 is not negative."""
    assert solve(one_device(sigma2=5.0)).rho[0] == pytest.approx(0.1)
    assert solve(one_device(sigma2=4.0)).rho[0] == pytest.approx(1 / 6)


def test_free_uploads_are_full_even_beside_an_empty_battery() -> None:
    """ν = 0: sending costs neither time nor energy, so θ = 1 although the battery allows ρ_min only."""
    solution = solve(one_device(nu=np.zeros(1), alpha=np.full(1, 0.3), battery=np.zeros(1)))
    assert (solution.rho[0], solution.theta[0]) == pytest.approx((0.1, 1.0))


def test_free_steps_beside_a_tight_energy_cap() -> None:
    """α = 0, two devices: energy limits θ only, here to a total of 1.2; ρ is then free to be best."""
    two = np.ones(2)
    free = one_device(
        mu=two, alpha=0 * two, nu=two, power=two, cluster=np.zeros(2, dtype=int), energy_cap=1.2
    )
    solution = solve(free)
    assert solution.joules == pytest.approx(1.2)
    assert_proven(free, solution)


def test_twins_may_be_treated_differently_but_not_badly() -> None:
    """64 identical devices: jumps come in identical steps, and the gap stays small."""
    problem = paper_problem(5, devices=64, ratio=1.0)
    mu, alpha, nu, power = (
        np.full(64, values[0]) for values in (problem.mu, problem.alpha, problem.nu, problem.power)
    )
    assert solve(replace(problem, mu=mu, alpha=alpha, nu=nu, power=power)).gap <= 1e-3


AWKWARD: dict[str, dict[str, Any]] = {
    "a line's end at infinity": {"spreads": ("paper", "zero", "paper", "paper"), "energy_share": 0.6},
    "tiny θ as a difference of large numbers": {
        "seed": 533755328,
        "clusters": 4,
        "spreads": ("paper", "some zero", "same", "same"),
        "scales": (1e3, 1e3),
        "learning": (1e12, 1e12),
        "time_shares": (0.05, 0.6),
        "energy_share": 1e-9,
        "bounds": "whole",
        "battery": "mixed",
    },
    "battery over by a rounding": {
        "seed": 875688928,
        "devices": 64,
        "clusters": 5,
        "spreads": ("some zero", "some zero", "wide", "same"),
        "scales": (1e-12, 1e-12),
        "learning": (0.0, 1.0),
        "time_shares": (1.2, 0.05),
        "energy_share": 1e-9,
        "bounds": "whole",
        "battery": "almost empty",
    },
    "24 decades between devices, energy without limit": {
        "seed": 756870148,
        "devices": 8,
        "clusters": 6,
        "spreads": ("extreme", "paper", "extreme", "zero"),
        "scales": (1e-12, 1e-12),
        "learning": (1.0, 0.0),
        "time_shares": (1.2, 0.6),
        "energy_share": np.inf,
        "battery": "mixed",
        "noise_weight": 0.1,
        "on_unreachable": "minimum",
    },
    "energies too close to tell apart": {
        "seed": 662525142,
        "devices": 64,
        "clusters": 4,
        "spreads": ("extreme", "some zero", "same", "extreme"),
        "scales": (1.0, 1e3),
        "learning": (1e-12, 2e-12),
        "time_shares": (0.6, 1e-9),
        "energy_share": 0.3,
        "battery": "half",
        "noise_weight": 3.0,
        "on_unreachable": "minimum",
    },
    "one ρ left, uploads free": {
        "seed": 313643975,
        "devices": 64,
        "clusters": 4,
        "spreads": ("same", "same", "zero", "some zero"),
        "scales": (1.0, 1e-6),
        "time_shares": (0.05, -1.0),
        "energy_share": 1.2,
        "battery": "mixed",
        "noise_weight": 3.0,
        "on_unreachable": "minimum",
    },
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_rounds(name: str) -> None:
    """Rounds in which rounding once decided the answer."""
    plain: dict[str, Any] = {
        "seed": 0,
        "devices": 2,
        "clusters": 1,
        "spreads": ("paper",) * 4,
        "scales": (1.0, 1.0),
        "learning": (0.2, 1.0),
        "time_shares": (0.6,),
        "energy_share": 0.6,
        "bounds": "default",
        "battery": "none",
        "noise_weight": 1.0,
        "on_unreachable": "stretch",
    }
    problem = wild_problem(**(plain | AWKWARD[name]))
    solution, limits = solve(problem), find_feasible_limits(problem)
    assert_proven(problem, solution)
    assert_proven(problem, solve(problem, "alternating"))
    draw = np.random.default_rng(1)
    for rho, theta in reference.feasible_plans(problem, limits.seconds, limits.joules, draw, 50):
        assert solution.lower_bound <= reference.objective(problem, rho, theta) * (1 + ROUNDING)


def copies(problem: RoundProblem, count: int, order: np.ndarray) -> RoundProblem:
    """Many copies of a fleet under as many times its energy, the devices in a given order."""
    many = {
        field: np.tile(getattr(problem, field), count)[order]
        for field in ("mu", "alpha", "nu", "power", "cluster", "rho_min", "rho_max", "theta_min", "theta_max")
    }
    changes: dict[str, Any] = {**many, "energy_cap": problem.energy_cap * count}
    return replace(problem, **changes)


@pytest.mark.parametrize("order", ["shuffled", "sorted", "interleaved"])
def test_large_fleet_is_as_many_small_ones(order: str) -> None:
    """200 copies of 100 devices: bound and objective are 200 times those of one copy.

    Such a fleet is worked on in blocks and first priced by every other device. Interleaved, those are the
    upper half by energy only, so that the guess is wrong and the search must fall back on prices 0 and ∞.
    """
    one = paper_problem(9, devices=100, ratio=0.2)
    joules = np.tile(one.joules(np.ones(100), np.ones(100)), 200)
    ranked = np.argsort(-joules, kind="stable")
    orders = {
        "shuffled": np.random.default_rng(2).permutation(20_000),
        "sorted": ranked,
        "interleaved": ranked.reshape(2, -1).T.ravel(),
    }
    small, large = solve(one), solve(copies(one, 200, orders[order]))
    assert large.lower_bound == pytest.approx(200 * small.lower_bound, rel=1e-6)
    assert large.objective <= 200 * small.objective * (1 + 1e-6)
    assert large.gap <= 1e-4
