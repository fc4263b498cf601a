"""Whole steps: against brute force on small fleets, certified on large ones, within every limit on all."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfel.control import RoundProblem, Solution
from cfel.control.list_solver import MOST_READY, PairTable, Weighing, solve_on_list
from cfel.control.problem import count_least_joules
from cfel.system.conditions import clock_energy

TAU = 3
SHARES = (0.01, 0.1, 1.0)


def table(least_clock: float = 0.5, tau: int = TAU) -> PairTable:
    """Progress of √√θ a step, less for uneven shares of work."""
    steps = np.repeat(np.arange(1.0, tau + 1), len(SHARES))
    theta = np.tile(np.array(SHARES), tau)
    cost = 0.25 * (1 - steps / tau) ** 2 - steps / tau * theta**0.25
    return PairTable(steps, theta, cost, least_clock)


def problem(devices: int, seed: int, share: float = 0.6, **changes: Any) -> RoundProblem:
    """Devices of the paper's FEMNIST setting, with caps at a share of what everything at full clock takes."""
    draw = np.random.default_rng(seed)
    clock, power = draw.uniform(1, 2, devices), draw.uniform(0.1, 1, devices)
    nu = 2.1e8 / (draw.uniform(1e6, 5e6, devices) * np.log2(1 + 100 * power * draw.exponential(size=devices)))
    mu, alpha = 150 / clock, 1.5 * clock**2
    full = TAU * mu + nu, TAU * alpha + power * nu
    given_caps = {"time_cap": share * full[0].max(), "energy_cap": share * full[1].sum()}
    values = {"mu": mu, "alpha": alpha, "nu": nu, "power": power, **given_caps, **changes}
    cluster = np.zeros(devices, dtype=int)
    return RoundProblem(TAU, 1.0, 1.0, cluster=cluster, rho_min=1 / TAU, theta_min=SHARES[0], **values)


def cost_of(case: RoundProblem, pairs: PairTable, chosen: np.ndarray, makespan: float) -> tuple[float, float]:
    """Objective and joules of a choice, each device at the slowest clock within the makespan; inf if late."""
    steps, theta = pairs.steps[chosen], pairs.theta[chosen]
    left = makespan - theta * case.nu
    if (steps * case.mu > left * (1 + 1e-9)).any():
        return np.inf, np.inf
    clock = np.clip(steps * case.mu / left, pairs.slowest, 1)
    spent = steps * case.alpha * clock_energy(clock, case.clock_static, case.clock_exponent)
    return float(pairs.cost[chosen].sum()), float((spent + theta * case.power * case.nu).sum())


def brute_force(case: RoundProblem, pairs: PairTable) -> float:
    """The least objective within both caps, by trying every choice of every device."""
    every = itertools.product(range(len(pairs.steps)), repeat=case.devices)
    cap = float(case.time_cap[0])
    tried = (cost_of(case, pairs, np.array(chosen), cap) for chosen in every)
    return min(cost for cost, joules in tried if joules <= case.energy_cap)


@pytest.mark.parametrize("seed", range(12))
def test_near_the_best_of_all_choices_and_never_above_its_bound(seed: int) -> None:
    case = problem(3, seed, share=0.5 + 0.04 * seed)
    best, solution = brute_force(case, table()), solve_on_list(case, table())
    if solution.feasible:
        assert solution.lower_bound <= best + 1e-9
        assert best - 1e-9 <= solution.objective <= best + 0.15


def test_many_devices_leave_a_tiny_gap() -> None:
    gaps = [solve_on_list(problem(512, seed), table()).gap for seed in range(5)]
    assert max(gaps) < 1e-3
    assert solve_on_list(problem(20_000, 0), table()).gap < 1e-4


def test_steps_are_whole_and_theta_is_on_the_list() -> None:
    solution = solve_on_list(problem(64, 3), table(), Weighing(0.7))
    assert np.array_equal(solution.rho * TAU, np.round(solution.rho * TAU))
    assert np.isin(solution.theta, SHARES).all()


def within_limits(case: RoundProblem, solution: Solution) -> bool:
    """Whether every device is in time and all together keep to the energy cap."""
    in_time = (solution.device_seconds <= case.time_cap[case.cluster] * (1 + 1e-8)).all()
    return bool(in_time and solution.device_joules.sum() <= case.energy_cap * (1 + 1e-8))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 10_000),
    st.floats(0.05, 1.5),
    st.one_of(st.none(), st.floats(0.05, 0.95)),
    st.floats(0.3, 1.0),
)
def test_a_feasible_plan_keeps_to_every_cap(
    devices: int, seed: int, share: float, time_weight: float | None, least_clock: float
) -> None:
    case = problem(devices, seed, share)
    solution = solve_on_list(case, table(least_clock), None if time_weight is None else Weighing(time_weight))
    assert solution.lower_bound <= solution.objective + 1e-9
    assert solution.clock is not None
    assert (solution.clock >= least_clock).all()
    if solution.feasible:
        assert within_limits(case, solution)
    else:
        assert solution.violations


def test_a_slack_time_cap_is_not_filled() -> None:
    """Ten times the time and energy anyone needs: clocks slow down for their energy, not to fill the cap."""
    case = problem(64, 1, share=10.0)
    frugal, lavish = (solve_on_list(case, table(), weighing) for weighing in (Weighing(0.7), None))
    assert frugal.device_seconds.max() < 0.5 * lavish.device_seconds.max()


def test_the_more_time_counts_the_shorter_the_round() -> None:
    plans = [
        solve_on_list(problem(64, 2, share=2.0), table(), Weighing(weight)) for weight in (0.3, 0.6, 0.9)
    ]
    spans = [plan.device_seconds.max() for plan in plans]
    spent = [plan.device_joules.sum() for plan in plans]
    assert spans[0] > spans[1] > spans[2]
    assert spent[0] < spent[1] < spent[2]


def test_a_clock_that_saves_nothing_is_not_slowed_for_nothing() -> None:
    """With everything static a slower clock costs as much, and the plan's energy is that of full clocks."""
    case = problem(16, 4, clock_static=1.0)
    slow, full = (solve_on_list(case, table(least_clock)) for least_clock in (0.5, 1.0))
    assert slow.device_joules.sum() == pytest.approx(full.device_joules.sum())


def test_batteries_hold() -> None:
    battery = np.full(16, 20.0)
    solution = solve_on_list(problem(16, 2, battery=battery, energy_cap=np.inf), table())
    assert (solution.device_joules <= np.maximum(battery, solution.device_joules.min()) * (1 + 1e-8)).all()


@pytest.mark.parametrize("weighing", [None, Weighing(0.3), Weighing(0.9)])
@pytest.mark.parametrize("devices", [1, 8, 64, 6000])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_clocks_slow_down_for_an_energy_cap_that_full_clocks_cannot_meet(
    devices: int, share: float, weighing: Weighing | None
) -> None:
    """Caps between what the lower bounds need at the slowest clocks in time and at full clocks."""
    case, pairs = problem(devices, 3, time_cap=400.0), table()
    full, slow = (float(count_least_joules(case, clock).sum()) for clock in (1.0, pairs.slowest))
    assert slow < 0.7 * full
    case = replace(case, energy_cap=slow + share * (full - slow))
    solution = solve_on_list(case, pairs, weighing)
    assert solution.feasible
    assert within_limits(case, solution)
    if weighing is None and devices > 8 and share == 0.5:
        assert (solution.rho > 1 / TAU).any() or (solution.theta > SHARES[0]).any()


@pytest.mark.parametrize("seed", range(4))
def test_near_the_best_of_all_choices_below_what_full_clocks_need(seed: int) -> None:
    case, pairs = problem(4, seed, time_cap=400.0), table()
    case = replace(case, energy_cap=0.9 * float(count_least_joules(case).sum()))
    solution = solve_on_list(case, pairs)
    assert solution.lower_bound <= brute_force(case, pairs) + 1e-9
    assert solution.objective == pytest.approx(brute_force(case, pairs), rel=0.02)


def test_an_energy_cap_out_of_reach_gives_everybody_the_least() -> None:
    solution = solve_on_list(problem(8, 0, energy_cap=0.1), table(), Weighing(0.7))
    assert not solution.feasible
    assert "energy cap" in " ".join(solution.violations)
    assert (solution.rho == 1 / TAU).all()


def test_clocks_are_stated_only_where_they_are_chosen() -> None:
    case, pairs = problem(8, 0), table()
    chosen, fixed = (solve_on_list(case, replace(pairs, least_clock=least)) for least in (0.5, None))
    assert (chosen.method, fixed.method) == ("list", "list")
    assert chosen.clock is not None
    assert chosen.clock.min() < 1
    assert fixed.clock is None


def score_of(solution: Solution, time_weight: float) -> float:
    """What is maximised with a time weight."""
    spent = time_weight * np.log(solution.seconds) + (1 - time_weight) * np.log(solution.joules)
    return float(np.log(-solution.objective) - spent)


def best_score(case: RoundProblem, pairs: PairTable, time_weight: float) -> float:
    """The best score of all choices of all devices, each at 60 makespans from the least to the cap."""
    every = np.array(list(itertools.product(range(len(pairs.steps)), repeat=case.devices)))
    progress, steps, theta = -pairs.cost[every].sum(axis=1), pairs.steps[every], pairs.theta[every]
    needed, cap = (steps * case.mu + theta * case.nu).max(axis=1), float(case.time_cap[0])
    kept = (progress > 0) & (needed <= cap)
    progress, steps, theta, needed = (values[kept] for values in (progress, steps, theta, needed))
    best = -np.inf
    for share in np.linspace(0, 1, 60):
        makespan = needed * (cap / needed) ** share
        clock = np.clip(steps * case.mu / (makespan[:, None] - theta * case.nu), pairs.slowest, 1)
        joules = (steps * case.alpha * clock**2 + theta * case.power * case.nu).sum(axis=1)
        rated = np.log(progress) - time_weight * np.log(makespan) - (1 - time_weight) * np.log(joules)
        best = max(best, float(rated[joules <= case.energy_cap].max(initial=-np.inf)))
    return best


def test_the_score_is_near_the_best_of_all_choices() -> None:
    """Two to four devices, with caps that bind and caps that do not."""
    cases = [problem(2 + seed % 3, seed, share=0.4 + 0.03 * (seed % 20)) for seed in range(24)]
    losses = [
        best_score(case, table(), 0.8) - score_of(solve_on_list(case, table(), Weighing(0.8)), 0.8)
        for case in cases
    ]
    assert np.mean(losses) < 0.004
    assert np.median(losses) < 1e-4
    # In the worst case a plan fits into the energy cap only at slower clocks than any that was tried.
    assert max(losses) < 0.04


@pytest.mark.parametrize("devices", [3, 8, 64])
@pytest.mark.parametrize("seed", range(1, 4))
def test_the_score_does_not_fall_with_larger_caps(devices: int, seed: int) -> None:
    """On a short list every makespan at which a device is ready is tried; on longer ones it may fall."""
    full = problem(devices, seed, share=1.0)
    assert devices * len(table().steps) <= MOST_READY
    shares = np.linspace(0.4, 1.5, 12)
    wider = [
        replace(full, time_cap=full.time_cap * share, energy_cap=full.energy_cap * share) for share in shares
    ]
    scores = [score_of(solve_on_list(case, table(), Weighing(0.8)), 0.8) for case in wider]
    assert np.diff(scores).min() > -1e-3


def test_dominated_pairs_are_dropped_and_change_nothing() -> None:
    pairs = table()
    wasteful = PairTable(
        np.append(pairs.steps, [2.0, 3.0]),
        np.append(pairs.theta, [1.0, 1.0]),
        np.append(pairs.cost, [0.5, 0.5]),
        0.5,
    )
    assert len(wasteful.drop_dominated().steps) == len(pairs.drop_dominated().steps)
    case = problem(20, 5)
    plain, more = (solve_on_list(case, each, Weighing(0.7)) for each in (pairs, wasteful))
    assert np.array_equal(plain.rho, more.rho)
    assert np.array_equal(plain.theta, more.theta)
