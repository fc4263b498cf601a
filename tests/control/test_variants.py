"""Variants of schemes: whole steps, gossip times, slower clocks for devices that would wait."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control import SchemeParameters, build_scheme, round_caps
from cfel.errors import InputError
from tests.control.schemes.test_schemes import DEVICES, ROUNDS, observation, plan

TAU = ROUNDS.local_steps


@pytest.mark.parametrize("name", ["hcef", "cef", "cef_f", "cef_c", "mll_sgd", "hcef_plus"])
def test_with_whole_steps_every_plan_is_a_whole_number_of_steps(name: str) -> None:
    made = plan(name, observation(), steps="whole")
    steps = made.rho * TAU
    assert np.allclose(steps, np.round(steps), atol=1e-12)
    assert (steps >= 1).all()
    assert build_scheme(SchemeParameters(name=name, steps="whole")).device_overrides.steps == "whole"


@pytest.mark.parametrize("name", ["hcef", "cef_f"])
def test_whole_steps_keep_within_the_caps_and_near_the_optimum(name: str) -> None:
    """Twelve devices in fifths: the objective is a few percent above that of the continuous problem."""
    seen = observation()
    whole, free = plan(name, seen, steps="whole"), plan(name, seen)
    time_cap, energy_cap = round_caps(seen.budget, seen.ledger, ROUNDS, 0, 0, seen.gossip_seconds_left)
    now = seen.conditions
    seconds = whole.rho * TAU * now.mu + whole.theta * now.nu
    joules = whole.rho * TAU * now.alpha + whole.theta * now.nu * now.power
    assert (seconds <= time_cap[seen.cluster] * (1 + 1e-8)).all()
    assert joules.sum() <= energy_cap * (1 + 1e-8)
    assert free.lower_bound * (1 - 1e-9) <= whole.objective <= free.objective * 1.06


def test_mll_sgd_takes_at_least_the_steps_of_its_rule() -> None:
    drawn, whole = plan("mll_sgd", observation()), plan("mll_sgd", observation(), steps="whole")
    assert np.array_equal(whole.rho, np.ceil(drawn.rho * TAU - 1e-9) / TAU)


def test_gossip_can_be_moved_for_any_scheme() -> None:
    def is_dense(name: str, **changes: Any) -> bool:
        return build_scheme(SchemeParameters(name=name, **changes)).gossip.every_edge_round

    assert not is_dense("hcef")
    assert is_dense("hcef", gossip="edge_round")
    assert not is_dense("hcef_plus", gossip="global_round")


@pytest.mark.parametrize("gossip", ["global_round", "edge_round"])
def test_slower_clocks_delay_nobody_and_save_energy(gossip: str) -> None:
    """CEF's early finishers end with the slowest of their cluster, or of all clusters that wait together."""
    seen = observation()
    made = plan("cef", seen, slow_clocks=True, gossip=gossip)
    assert made.speed is not None
    full, slow = seen.conditions, made.apply_speed(seen.conditions)
    before, after = (TAU * now.mu + now.nu for now in (full, slow))
    for group in [range(DEVICES)] if gossip == "edge_round" else [range(c, DEVICES, 3) for c in range(3)]:
        assert after[group].max() == pytest.approx(before[group].max())
    assert slow.alpha.sum() < 0.8 * full.alpha.sum()
    assert (made.speed >= 0.5).all()


def test_clocks_that_cannot_be_set_stay_as_they_are() -> None:
    made = plan("cef", replace(observation(), full_clocks=True), slow_clocks=True)
    assert made.speed is None


def take_least(name: str, parameters: SchemeParameters) -> tuple[float, float]:
    """The least ρ and θ that a scheme may ask of a device."""
    if name in ("hcef", "hcef_plus", "anycost"):
        whole = 1 / TAU if name != "hcef" else parameters.rho_min
        return whole, parameters.theta_min
    return 1.0, 0.1 if name == "static" else 1.0


@pytest.mark.parametrize("name", ["cef", "p_fedavg", "hcef", "hcef_plus", "static", "anycost"])
@pytest.mark.parametrize("slow_clocks", [False, True])
def test_a_deadline_leaves_out_who_cannot_make_it_and_nobody_else(name: str, slow_clocks: bool) -> None:
    """Twelve devices, one per cluster in a deep fade: a hundredth of its upload takes an hour."""
    seen = observation()
    now = replace(seen.conditions, nu=np.where(np.arange(DEVICES) < 3, 360_000.0, seen.conditions.nu))
    seen = replace(seen, conditions=now)
    deadline = float(np.median(TAU * now.mu + now.nu))
    made = plan(name, seen, deadline_seconds=deadline, slow_clocks=slow_clocks)
    rho, theta = take_least(name, SchemeParameters())
    punctual = rho * TAU * now.mu + theta * now.nu <= deadline
    assert 0 < punctual.sum() < DEVICES
    assert np.array_equal(made.rho > 0, punctual)
    assert np.array_equal(made.theta > 0, punctual)
    at_clock = made.apply_speed(now)
    assert (made.rho * TAU * at_clock.mu + made.theta * now.nu <= deadline * (1 + 1e-8)).all()


@pytest.mark.parametrize("name", ["cef", "hcef", "hcef_plus", "static"])
def test_a_deadline_that_everybody_makes_changes_nothing(name: str) -> None:
    seen = observation()
    without, within = plan(name, seen), plan(name, seen, deadline_seconds=1e6)
    assert np.array_equal(without.rho, within.rho)
    assert np.array_equal(without.theta, within.theta)


@pytest.mark.parametrize("name", ["cef", "hcef", "hcef_plus", "static"])
def test_where_nobody_can_make_it_nobody_is_asked(name: str) -> None:
    made = plan(name, observation(), deadline_seconds=1e-3)
    assert not made.rho.any()
    assert not made.theta.any()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": "halves"}, r"scheme.steps.*halves.*small_batches"),
        ({"gossip": "never"}, r"scheme.gossip.*never"),
        ({"deadline_seconds": 0}, r"scheme.deadline_seconds = 0: must be a finite number > 0"),
        ({"slow_clocks": 1}, r"scheme.slow_clocks = 1: must be true or false"),
    ],
)
def test_bad_variants_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SchemeParameters(**fields)
