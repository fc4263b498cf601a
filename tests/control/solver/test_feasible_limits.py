"""Caps out of reach: what each policy does about them, and in which words."""

from typing import Any

import numpy as np
import pytest

from cfel.control import RoundProblem, solve
from cfel.control.problem import find_feasible_limits, find_too_costly


def problem(**fields: Any) -> RoundProblem:
    """Two clusters of two devices; at the lower bounds ρ = θ = ½ they need 10, 20 and 5, 5 s and 4 J each.

    τ = 1, μ = ν, so that ½μ + ½ν = μ seconds; α = 6 and p·ν = 2, so that 3 + 1 joules. The upper bounds are 1
    and need twice as much of both.
    """
    mu = np.array([10.0, 20.0, 5.0, 5.0])
    given: dict[str, Any] = {
        "tau": 1,
        "sigma2": 0.2,
        "g2": 1.0,
        "mu": mu,
        "alpha": np.full(4, 6.0),
        "nu": mu,
        "power": 2.0 / mu,
        "cluster": np.array([0, 0, 1, 1]),
        "time_cap": np.array([30.0, 8.0]),
        "energy_cap": np.inf,
        "rho_min": 0.5,
        "theta_min": 0.5,
    }
    return RoundProblem(**(given | fields))


def test_reachable_caps_are_kept_as_asked() -> None:
    limits = find_feasible_limits(problem(energy_cap=20.0))
    assert limits.violations == ()
    assert limits.seconds.tolist() == [30.0, 30.0, 8.0, 8.0]
    assert limits.time_cap.tolist() == [30.0, 8.0]
    assert (limits.joules, limits.forced) == (20.0, False)


def test_stretching_gives_the_whole_cluster_its_least_makespan() -> None:
    """Cluster 0 asks for 12 s, its slow device needs 20; its fast one may then use 20 s too: ρ = θ = 1."""
    solution = solve(problem(time_cap=np.array([12.0, 8.0])))
    assert solution.violations == ("cluster 0: time cap 12 s is out of reach, needs at least 20.0 s",)
    assert not solution.feasible
    assert solution.time_cap.tolist() == [20.0, 8.0]
    assert solution.rho[1] == pytest.approx(0.5)
    assert solution.theta[1] == pytest.approx(0.5)
    assert solution.device_seconds[0] > 12
    assert solution.device_seconds == pytest.approx([20, 20, 8, 8], rel=0.25)
    assert (solution.device_seconds <= np.array([20, 20, 8, 8]) * (1 + 1e-9)).all()


def test_minimum_drops_only_the_device_concerned() -> None:
    """The slow device gets its lower bounds, its cluster mate still keeps to 12 s."""
    solution = solve(problem(time_cap=np.array([12.0, 8.0]), on_unreachable="minimum"))
    assert solution.violations == (
        "cluster 0: 1 of its devices cannot meet the time cap 12 s and drop to their lower bounds "
        "(slowest: 20 s)",
    )
    assert solution.time_cap.tolist() == [12.0, 8.0]
    assert solution.rho[1] == pytest.approx(0.5)
    assert solution.theta[1] == pytest.approx(0.5)
    assert solution.device_seconds[0] <= 12 * (1 + 1e-9)


@pytest.mark.parametrize("policy", ["stretch", "minimum"])
def test_negative_time_cap_is_out_of_reach(policy: str) -> None:
    """At −3 s cluster 1 has two equal devices at their lower bounds under either policy."""
    solution = solve(problem(time_cap=np.array([np.inf, -3.0]), on_unreachable=policy))
    assert len(solution.violations) == 1
    assert "cluster 1" in solution.violations[0]
    assert "-3 s" in solution.violations[0]
    assert solution.device_seconds[2:] == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("cap", [15.9, 0.0, -7.0])
def test_energy_cap_out_of_reach_gives_everybody_the_lower_bounds(cap: float) -> None:
    """The lower bounds need 4 · 4 = 16 J."""
    solution = solve(problem(energy_cap=cap))
    assert solution.violations == (
        f"energy cap {cap:g} J is below the 16 J that the lower bounds need; "
        "all devices get the lower bounds",
    )
    assert not solution.feasible
    assert solution.rho.tolist() == solution.theta.tolist() == [0.5] * 4
    assert (solution.energy_cap, solution.joules) == (16.0, 16.0)
    assert solution.gap == pytest.approx(0.0, abs=1e-9)
    assert solution.multiplier == np.inf


def slowed(**fields: Any) -> RoundProblem:
    """Sending takes 5, 10, 2.5 and 2.5 s of the 30 and 6.25 s, so clocks may slow down to ½, ½, ⅔ and ⅔.

    A step's 3 J become 0.75 and 4/3 J: with 1 J for sending, all need 3.5 + 14/3 J.
    """
    return problem(time_cap=np.array([30.0, 6.25]), **fields)


def test_slow_clocks_bring_an_energy_cap_within_reach() -> None:
    limits = find_feasible_limits(slowed(energy_cap=8.2), slowest_clock=0.5)
    assert (limits.joules, limits.forced, limits.violations) == (8.2, False, ())
    assert find_feasible_limits(slowed(energy_cap=8.2)).forced


def test_an_energy_cap_below_what_slow_clocks_need_is_out_of_reach() -> None:
    limits = find_feasible_limits(slowed(energy_cap=8.1), slowest_clock=0.5)
    assert limits.forced
    assert limits.violations[0].startswith(
        "energy cap 8.1 J is below the 8.16667 J that the lower bounds need"
    )
    assert limits.joules == pytest.approx(3.5 + 14 / 3)


def test_nobody_is_left_out_whom_a_slow_clock_makes_cheap() -> None:
    """Device 0 needs 31 J at full clock, more than half of 42 J, and all need 43; slowed down, 8.5 J."""
    case = slowed(energy_cap=42.0, alpha=np.array([60.0, 6.0, 6.0, 6.0]))
    assert find_too_costly(case).tolist() == [True, False, False, False]
    assert not find_too_costly(case, slowest_clock=0.5).any()


def test_a_device_that_costs_no_energy_could_do_better_than_its_lower_bounds() -> None:
    """Everybody gets the lower bounds by rule; the bound knows that the free device need not."""
    free = problem(energy_cap=0.0, alpha=np.array([0.0, 1.0, 1.0, 1.0]), power=np.array([0.0, 1.0, 1.0, 1.0]))
    solution = solve(free)
    assert solution.rho.tolist() == [0.5] * 4
    assert solution.lower_bound < solution.objective


def test_energy_cap_that_just_suffices_is_met() -> None:
    solution = solve(problem(energy_cap=16.0))
    assert solution.feasible
    assert solution.joules == pytest.approx(16.0)


def test_empty_battery_drops_its_device_to_the_lower_bounds() -> None:
    solution = solve(problem(battery=np.array([1.5, np.inf, np.inf, np.inf])))
    words = "device 0: battery allows 1.5 J in this round, below the 4 J of its lower bounds"
    assert solution.violations == (words,)
    assert solution.device_joules[0] == pytest.approx(4.0)
    assert solution.device_joules[1] > 4.0


def test_devices_are_called_by_the_names_they_were_given() -> None:
    """Of a larger fleet devices 10, 20, 30 and 40 take part; it is 30 whose battery is low."""
    named = problem(battery=np.array([9.0, 9.0, 1.5, 9.0]), device=np.array([10, 20, 30, 40]))
    words = "device 30: battery allows 1.5 J in this round, below the 4 J of its lower bounds"
    assert solve(named).violations == (words,)


def test_every_reason_is_reported() -> None:
    solution = solve(problem(time_cap=-1.0, energy_cap=-1.0, battery=np.zeros(4)))
    text = " ".join(solution.violations)
    assert len(solution.violations) == 7
    for words in ("cluster 0", "cluster 1", "device 0", "device 3", "energy cap"):
        assert words in text


def test_no_more_than_twenty_sentences_of_a_kind() -> None:
    """30 clusters of one device each, none of which can keep to 0 s."""
    many = 30
    ones = np.ones(many)
    for policy in ("stretch", "minimum"):
        round_problem = RoundProblem(
            tau=1,
            sigma2=1,
            g2=1,
            mu=ones,
            alpha=ones,
            nu=ones,
            power=ones,
            cluster=np.arange(many),
            time_cap=0.0 * ones,
            energy_cap=np.inf,
            on_unreachable=policy,
            battery=0.0 * ones,
        )
        words = find_feasible_limits(round_problem).violations
        assert len(words) == 42
        assert words[20] == "… and 10 more clusters"
        assert words[41] == "… and 10 more devices"
