"""Devices that are not asked cost nothing, and those that are weigh what they should."""

import numpy as np
import pytest

from cfel.rounds.dry_run import dry_run
from cfel.simulation.executors import PoolExecutor
from cfel.simulation.loop import simulate
from cfel.simulation.state import from_checkpoint, initial_state, to_checkpoint
from tests.simulation.drive import column, outcomes, parameters_of, timeless, tiny

ROUNDS = {"global": 2}


def test_a_device_left_out_is_as_one_that_is_absent() -> None:
    """ρ = θ = 0 for devices 1, 3 and 5 gives the run in which they are away, models and costs."""
    left_out = outcomes(tiny(rounds=ROUNDS, scheme={"name": "tests.schemes:every_other"}))
    away = tiny(
        rounds=ROUNDS,
        scheme={"name": "cef"},
        fleet={"availability": {"away": [[n, 0, 9] for n in (1, 3, 5)]}},
    )
    expected = outcomes(away)
    for found, wanted in zip(left_out, expected, strict=True):
        assert found.record.model_sha256 == wanted.record.model_sha256
        assert found.record.joules == wanted.record.joules
        assert found.record.seconds == wanted.record.seconds
        assert found.record.devices_taking_part == 3
        assert set(found.plans.device.tolist()) == {0, 2, 4}
    # No problem was solved, so nothing is proven; the estimates are recorded all the same.
    assert left_out[-1].record.gap is None
    assert left_out[-1].record.sigma2 > 0


def test_weights_of_a_plan_count_within_a_cluster() -> None:
    """Two devices a cluster, weights 1 and 3: a quarter of one update and three quarters of the other."""
    once = {"global": 1, "edge": 1}
    models = [
        parameters_of(outcomes(tiny(change, rounds=once))[0])
        for change in (
            {"scheme": {"name": "tests.schemes:weighted"}, "fleet": {"clusters": 1, "devices": 2}},
            *(
                {
                    "scheme": {"name": "cef"},
                    "fleet": {"clusters": 1, "devices": 2, "availability": {"away": [[n, 0, 9]]}},
                }
                for n in (1, 0)
            ),
        )
    ]
    (both,), (first,), (second,) = models
    assert both == pytest.approx(0.25 * first + 0.75 * second, abs=1e-6)


def test_sampled_devices_alone_are_charged() -> None:
    """One device of each pair in every edge round; joules are those of the rows of the plan tables."""
    found = outcomes(tiny(rounds=ROUNDS, scheme={"name": "cef"}, fleet={"participation": 0.5}))
    tables = [each.plans for each in found]
    assert [len(table.device) for table in tables] == [6, 6]
    assert found[-1].record.joules == pytest.approx(float(column(tables, "joules").sum()))
    assert len({tuple(table.device.tolist()) for table in tables}) > 1
    again = outcomes(tiny(rounds=ROUNDS, scheme={"name": "cef"}, fleet={"participation": 0.5}))
    assert timeless([each.record for each in again]) == timeless([each.record for each in found])


def test_budgets_are_shares_of_what_the_sampled_fleet_uses() -> None:
    """share_of_cef = 1 is exactly what CEF with the same samples uses, without and with data loaded."""
    experiment = tiny(
        scheme={"name": "cef"},
        budget={"share_of_cef": 1.0},
        fleet={"participation": 4, "participation_by": "samples"},
    )
    setting = experiment.build_setting()
    *_, last = dry_run(setting)
    assert (setting.budget.seconds, setting.budget.joules) == (last.ledger.seconds, last.ledger.joules)
    world = experiment.build_world().setting
    assert world.budget == setting.budget
    found = world.conditions(0, 0)
    assert np.bincount(world.fleet.cluster, found.available).sum() == 4


def test_a_checkpoint_keeps_the_losses_that_selection_depends_on() -> None:
    """Oort from a checkpoint after the first round selects as in the run that was not stopped."""
    experiment = tiny(scheme={"name": "oort"})
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    with PoolExecutor(world, parameters) as executor:
        rounds = simulate(world, executor, initial_state(world), lambda: 0.0)
        whole = [next(rounds)]
        # Copied, as later rounds train in the same memory.
        checkpoint = to_checkpoint(whole[0].state).copy()
        whole.extend(rounds)
    with PoolExecutor(world, parameters) as executor:
        rest = list(simulate(world, executor, from_checkpoint(checkpoint, world), lambda: 0.0))
    assert timeless([each.record for each in rest]) == timeless([each.record for each in whole[1:]])
    assert whole[-1].state.control.losses is not None
    assert np.isfinite(whole[-1].state.control.losses).all()
    assert {each.record.devices_taking_part for each in whole} <= {3, 4, 5, 6}
