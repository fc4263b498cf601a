"""Which limit binds, on plans written by hand."""

import numpy as np
import pytest

from cfel.api.plan import MEANING, find_binding_limits
from cfel.control import RoundProblem, Solution, solve


def problem(rho_max: float = 1.0, battery: list[float] | None = None, **changed: float) -> RoundProblem:
    """Two devices in a cluster, every cost 1, τ = 1: a device takes ρ + θ seconds and joules."""
    given = {"alpha": 1.0, "power": 1.0, "energy_cap": np.inf, "time_cap": np.inf, **changed}
    ones = np.ones(2)
    return RoundProblem(
        tau=1,
        sigma2=1.0,
        g2=1.0,
        mu=ones,
        alpha=given["alpha"] * ones,
        nu=ones,
        power=given["power"] * ones,
        cluster=np.zeros(2, dtype=np.intp),
        time_cap=np.array([given["time_cap"]]),
        energy_cap=given["energy_cap"],
        rho_max=rho_max,
        battery=None if battery is None else np.array(battery),
    )


def plan(asked: RoundProblem, first: tuple[float, float], multiplier: float = 0.0) -> Solution:
    """The first device as given, the second at ρ = 0.5, θ = 0.5."""
    rho, theta = (np.array([value, 0.5]) for value in first)
    return Solution(
        rho=rho,
        theta=theta,
        objective=1.0,
        lower_bound=1.0,
        feasible=True,
        violations=(),
        device_seconds=asked.seconds(rho, theta),
        device_joules=asked.joules(rho, theta),
        time_cap=asked.time_cap,
        energy_cap=asked.energy_cap,
        multiplier=multiplier,
        method="joint",
    )


@pytest.mark.parametrize(
    ("first", "word"),
    [
        ((1.0, 1.0), "full"),
        ((0.1, 0.01), "floor"),
        ((0.7, 0.7), "time"),
        ((0.7, 0.7 - 1e-9), "time"),
        ((0.7, 0.69), "noise"),
        ((0.4, 1.0), "time"),
        ((0.1, 1.0), "noise"),
    ],
)
def test_one_word_per_device(first: tuple[float, float], word: str) -> None:
    """A time cap of 1.4 s."""
    asked = problem(time_cap=1.4)
    assert find_binding_limits(asked, plan(asked, first)).tolist() == [word, "noise"]


def test_upper_bounds_below_one_count_as_full() -> None:
    asked = problem(rho_max=0.6)
    assert find_binding_limits(asked, plan(asked, (0.6, 1.0))).tolist() == ["full", "noise"]


def test_a_priced_joule_is_what_limits_the_rest() -> None:
    asked = problem(energy_cap=2.0)
    assert find_binding_limits(asked, plan(asked, (0.5, 0.5), multiplier=0.1)).tolist() == ["energy"] * 2


def test_energy_does_not_limit_who_uses_none() -> None:
    """With α = p = 0 a joule may be worth anything: these devices stop where noise outweighs progress."""
    asked = problem(alpha=0.0, power=0.0, energy_cap=2.0)
    assert find_binding_limits(asked, plan(asked, (0.5, 0.5), multiplier=0.1)).tolist() == ["noise"] * 2


def test_a_battery_goes_before_the_common_limits() -> None:
    asked = problem(battery=[1.4, np.inf], time_cap=1.4)
    assert find_binding_limits(asked, plan(asked, (0.7, 0.7), 0.1)).tolist() == ["battery", "energy"]


def test_every_word_has_a_meaning() -> None:
    assert set(MEANING) == {
        *("full", "time", "battery", "energy", "noise", "floor"),
        *("scheme", "idle", "over"),
    }


def test_a_solved_round() -> None:
    """Uncapped, 2ρ + 3(1−ρ)² stops at ρ = 2/3; a cap of 1.2 s then leaves no room, as θ = 1 and ρ = 0.2."""
    assert find_binding_limits(problem(), solve(problem())).tolist() == ["noise", "noise"]
    tight = problem(time_cap=1.2)
    assert find_binding_limits(tight, solve(tight)).tolist() == ["time", "time"]
