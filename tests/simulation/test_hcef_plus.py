"""HCEF+ in the round loop: overrides reach devices, clocks reach the accounts, and a run resumes exactly."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.api.theorem import Assumptions, _report_experiment
from cfel.control import DeviceOverrides, Scheme, SchemeParameters
from cfel.control.schemes import build_scheme
from cfel.errors import InputError
from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters, WholeResult
from cfel.learning.local.estimates import Estimates
from cfel.rounds.estimates import combine_estimates, find_impossible
from cfel.simulation.executors import PoolExecutor
from cfel.simulation.loop import simulate
from cfel.simulation.state import from_checkpoint, initial_state, to_checkpoint
from tests.simulation.drive import column, outcomes, records, timeless, tiny

PLUS = {"scheme": {"name": "hcef_plus"}, "budget": {"share_of_cef": 0.6}}


def test_overrides_reach_the_devices() -> None:
    training = tiny(PLUS).build_world().training
    local = training.local
    assert (local.steps, training.error_feedback, len(local.kept_energy_at)) == (
        *("small_batches", True, 12),
    )
    whole = tiny(PLUS, scheme={"steps": "whole"}).build_world().training.local
    assert whole.steps == "whole"
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
        run = simulate(world, executor, initial_state(world), lambda: 0.0)
        known = next(run).state
        state = from_checkpoint(to_checkpoint(known), world)
        reported = [each.kept_energy for each in state.estimates if each is not None]
        assert reported == [each.kept_energy for each in known.estimates if each is not None]
        assert all(len(each) == 12 for each in reported)
        never_stopped = [each.record for each in run]
        resumed = [each.record for each in simulate(world, executor, state, lambda: 0.0)]
    assert timeless(resumed) == timeless(never_stopped)


SMALL = {"name": "hcef_plus", "steps": "small_batches"}


@pytest.mark.parametrize("scheme", [PLUS["scheme"], {"name": "hcef", "steps": "whole"}, SMALL])
def test_what_is_planned_in_whole_steps_is_what_happens(scheme: dict[str, Any]) -> None:
    """Both accounts agree to the last step, so a budget kept in one is kept in the other."""
    for outcome in outcomes(tiny({**PLUS, "scheme": scheme})):
        record = outcome.record
        assert record.seconds_realised == pytest.approx(record.seconds_expected, rel=1e-9)
        assert record.joules_realised == pytest.approx(record.joules_expected, rel=1e-9)


def test_planned_steps_are_taken_on_small_batches() -> None:
    """Two of three steps, by six devices in two edge rounds of each of three rounds."""
    full = outcomes(tiny({**PLUS, "scheme": {"name": "cef"}}))[-1].record
    last = outcomes(tiny({**PLUS, "scheme": {**SMALL, "options": {"local_steps": 2}}}))[-1].record
    assert last.rho_mean < 2 / 3
    assert last.steps_taken == 2 * 6 * 2
    assert last.steps_planned == pytest.approx(last.steps_taken)
    assert last.seconds_realised < 0.6 * full.seconds_realised


@pytest.mark.parametrize("overhead", [0.05, 0.4])
def test_every_scheme_can_use_small_batches(overhead: float) -> None:
    """P2 plans any share; rounded down to samples, both accounts agree, and budgets hold in both."""
    scheme = {"name": "hcef", "steps": "small_batches"}
    experiment = tiny({**PLUS, "scheme": scheme, "local": {"step_overhead": overhead}})
    world = experiment.build_world()
    record = outcomes(experiment, world)[-1].record
    assert 0.1 < record.rho_mean < 0.9
    assert record.steps_taken == record.steps_planned
    assert record.joules_realised == pytest.approx(record.joules_expected, rel=1e-9)
    assert record.seconds_realised == pytest.approx(record.seconds_expected, rel=1e-9)
    assert record.joules_realised <= world.setting.budget.joules * (1 + 1e-9)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"scheme": {"name": "hcef", "steps": "whole"}, "local": {"steps": "small_batches"}},
            r"local.steps = 'small_batches'.*set scheme.steps",
        ),
        (
            {"local": {"algorithm": "shared_momentum", "schedule": "cosine"}},
            r"local.schedule = 'cosine': with shared momentum",
        ),
        (
            {"scheme": SMALL, "local": {"algorithm": "tests.simulation.test_hcef_plus:own_loop"}},
            r"scheme.steps = 'small_batches'.*its own training loop",
        ),
    ],
    ids=["local", "schedule", "loop"],
)
def test_what_would_not_be_carried_out_is_rejected(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tiny({**PLUS, **sections})


def own_loop(_: LocalParameters) -> LocalAlgorithm:
    return LocalAlgorithm(train=lambda _: WholeResult({}, 0.0))


def without_feedback(_: SchemeParameters) -> Scheme:
    cef = build_scheme(SchemeParameters(name="cef"))
    return replace(cef, device_overrides=DeviceOverrides(error_feedback=False))


def test_a_scheme_that_turns_error_feedback_off_may_have_a_schedule() -> None:
    """What is checked is what devices do: the scheme's word counts, not the experiment's."""
    experiment = tiny(
        {
            "scheme": {"name": "tests.simulation.test_hcef_plus:without_feedback"},
            "compression": {"error_feedback": True},
            "local": {"algorithm": "shared_momentum", "schedule": "cosine"},
        }
    )
    assert not experiment.build_world().training.error_feedback


def test_theorem_1_is_not_about_small_batches() -> None:
    with pytest.raises(InputError, match=r"scheme.steps: .*Theorem 1 is about .*hcef"):
        _report_experiment(tiny({**PLUS, "scheme": SMALL}), Assumptions(initial_gap=2.3))


def test_noisy_gradients_of_small_batches_are_possible() -> None:
    """G² is the square of a small batch's gradient minus that batch's noise, σ² the noise of a full one.

    A full batch of all samples has none: nothing follows from σ² about how negative G² may be.
    """
    honest = [Estimates(1.0, 2.0)] * 8 + [Estimates(0.0, -1.0)]
    assert find_impossible(honest) == [8]
    assert find_impossible(honest, small_batches=True) == []
    assert combine_estimates(honest, small_batches=True).g2[-1] == -1.0


@pytest.mark.parametrize("steps", ["local", "small_batches"])
@pytest.mark.parametrize("share", [0.8, 1.0])
def test_a_run_that_ends_at_its_budget_begins_no_round_that_it_cannot_pay_for(
    steps: str, share: float
) -> None:
    """Such a round would be planned at the lower bounds, and overran the budgets by up to 12 % here."""
    budget = {"seconds": 5000 * share, "joules": 2000 * share}
    ending = {"rounds": {"global": 100, "stop": "budget"}, "budget": budget, "scheme": {"steps": steps}}
    found = records(tiny(PLUS, ending, simulation={"evaluate_every": 50}))
    last, mean = found[-1], found[-1].seconds / len(found)
    assert last.seconds <= budget["seconds"] * 1.001
    assert last.seconds > budget["seconds"] - mean
    assert last.ends_at_budget
    assert not any(each.ends_at_budget for each in found[:-1])
    # The last round is evaluated, whenever others are.
    assert last.accuracy is not None
