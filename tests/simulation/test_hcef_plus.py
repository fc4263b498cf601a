"""HCEF+ in the round loop: overrides reach devices, clocks reach the accounts, and a run resumes exactly."""

from typing import Any

import numpy as np
import pytest

from cfel.simulation import PoolExecutor, initial_state, simulate
from cfel.simulation.state import from_checkpoint, to_checkpoint
from tests.simulation.drive import column, outcomes, timeless, tiny

PLUS = {"scheme": {"name": "hcef_plus"}, "budget": {"share_of_cef": 0.6}}


def test_overrides_reach_the_devices() -> None:
    training = tiny(PLUS).build_world().training
    local = training.local
    assert (local.steps, training.error_feedback, len(local.kept_energy_at)) == ("whole", True, 12)
    assert tiny().build_world().training.local.steps == "bernoulli"


def test_clocks_are_charged_and_written_down() -> None:
    """Seconds = ρτμ/s + θν and joules = ρτα·s² + pθν, row by row."""
    tables = [outcome.plans for outcome in outcomes(tiny(PLUS))]
    rho, theta, speed, mu, alpha, nu, power = (
        column(tables, name) for name in ("rho", "theta", "speed", "mu", "alpha", "nu", "power")
    )
    assert (speed < 1).any()
    np.testing.assert_allclose(column(tables, "seconds"), rho * 3 * mu / speed + theta * nu)
    np.testing.assert_allclose(column(tables, "joules"), rho * 3 * alpha * speed**2 + power * theta * nu)


def test_it_stays_within_both_budgets() -> None:
    experiment = tiny(PLUS)
    world = experiment.build_world()
    last = outcomes(experiment, world)[-1].record
    assert last.seconds <= world.setting.budget.seconds * (1 + 1e-9)
    assert last.joules <= world.setting.budget.joules * (1 + 1e-9)


def test_the_measured_curve_survives_a_checkpoint() -> None:
    """Going on from a checkpoint gives the rounds of a run that was never stopped."""
    experiment = tiny(PLUS)
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    with PoolExecutor(world, parameters) as executor:
        run = simulate(world, executor, parameters, initial_state(world), lambda: 0.0)
        known = next(run).state
        state = from_checkpoint(to_checkpoint(known), world)
        reported = [each.kept_energy for each in state.estimates if each is not None]
        assert reported == [each.kept_energy for each in known.estimates if each is not None]
        assert all(len(each) == 12 for each in reported)
        never_stopped = [each.record for each in run]
        resumed = [each.record for each in simulate(world, executor, parameters, state, lambda: 0.0)]
    assert timeless(resumed) == timeless(never_stopped)


SMALL = {"name": "hcef_plus", "steps": "small_batches"}


@pytest.mark.parametrize("scheme", [PLUS["scheme"], {"name": "hcef", "steps": "whole"}, SMALL])
def test_what_is_planned_in_whole_steps_is_what_happens(scheme: dict[str, Any]) -> None:
    """Both accounts agree to the last step, so a budget kept in one is kept in the other."""
    for outcome in outcomes(tiny({**PLUS, "scheme": scheme})):
        record = outcome.record
        assert record.seconds_realised == pytest.approx(record.seconds_expected, rel=1e-9)
        assert record.joules_realised == pytest.approx(record.joules_expected, rel=1e-9)


def test_small_batches_cost_less_and_all_steps_are_taken() -> None:
    full = outcomes(tiny({**PLUS, "scheme": {"name": "cef"}}))[-1].record
    last = outcomes(tiny({**PLUS, "scheme": SMALL}))[-1].record
    assert last.rho_mean < 0.9
    assert last.steps_taken == last.steps_planned == full.steps_taken
    assert last.seconds_realised < 0.9 * full.seconds_realised


def test_every_scheme_can_use_small_batches() -> None:
    """Rounded to samples of a batch of 20, both accounts agree closely, though P2 plans any share."""
    record = outcomes(tiny({**PLUS, "scheme": {"name": "hcef", "steps": "small_batches"}}))[-1].record
    assert 0.1 < record.rho_mean < 0.9
    assert record.steps_taken == record.steps_planned
    assert record.joules_realised == pytest.approx(record.joules_expected, rel=0.1)
    assert record.joules_realised != record.joules_expected
