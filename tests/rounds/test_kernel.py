"""The round kernel on three devices in two clusters, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from cfel.control import Budget, RoundPlan, Rounds, SchemeParameters, Setting, build_scheme
from cfel.metric import ACCURACY
from cfel.rounds.kernel import (
    ControlState,
    DeviceWork,
    EdgeRoundOutcome,
    FleetEstimates,
    charge_edge_round,
    charge_gossip,
    close_global_round,
    compute_outcome,
    count_global_round,
    device_weights,
    forget_models,
    initial_control,
    is_evaluated,
    is_over,
    observe,
    plan_edge_round,
)
from cfel.rounds.records import RoundScores, add_up, make_plan_table, make_record, mean_metric
from cfel.runlog import RoundRecord
from cfel.system.backhaul import TopologyParameters, build_backhaul
from cfel.system.conditions import Conditions
from cfel.system.fleet import FleetParameters, build_fleet
from tests.simulation.drive import tiny


def setting(
    rounds: Rounds | None = None, budget: Budget | None = None, battery: float | None = None
) -> Setting:
    """Clusters {0, 1} and {2}, τ = 10, models of 1,000 bits, 2 s for an exchange; sent bits count double."""
    fleet = build_fleet(FleetParameters(devices=3, clusters=(2, 1), battery_joules=battery))
    return Setting(
        seed=1,
        rounds=rounds or Rounds(4, 1, 10),
        fleet=fleet,
        backhaul=build_backhaul(TopologyParameters(kind="line"), fleet.sizes, 1),
        backhaul_seconds=np.array([2.0, 2.0]),
        model_bits=1000.0,
        scheme=build_scheme(SchemeParameters(name="cef")),
        budget=budget or Budget(),
        charged_share=2.0,
    )


CONDITIONS = Conditions(
    mu=np.array([1.0, 2.0, 3.0]),
    alpha=np.array([0.5, 0.5, 1.0]),
    nu=np.array([10.0, 10.0, 20.0]),
    power=np.array([0.1, 0.1, 0.2]),
    available=np.array([True, True, False]),
)
PLAN = RoundPlan(
    rho=np.array([0.5, 1.0, 0.0]),
    theta=np.array([0.1, 0.5, 0.0]),
    sigma2=1.0,
    g2=2.0,
    objective=0.0,
    lower_bound=0.0,
    gap=0.25,
    feasible=True,
    violations=(),
)
WORK = (DeviceWork(0, 4, 100, 1.5), DeviceWork(1, 0, 200, float("nan")))


def count(accounting: str = "expected", uploads: str = "share") -> EdgeRoundOutcome:
    where = replace(setting(), accounting=accounting, uploads=uploads)
    return compute_outcome(where, CONDITIONS, PLAN, WORK)


def test_expected_costs_follow_the_plan() -> None:
    """Seconds ρτμ + θν: 5 + 1 and 20 + 5; joules ρτα + pθν: 2.5 + 0.1 and 5 + 0.5. Device 2 is absent."""
    found = count()
    assert found.seconds.tolist() == pytest.approx([6.0, 25.0, 0.0])
    assert found.joules.tolist() == pytest.approx([2.6, 5.5, 0.0])
    assert found.expected.seconds.tolist() == pytest.approx([25.0, 0.0])
    assert found.expected.joules == pytest.approx(8.1)


def test_realised_costs_follow_the_steps() -> None:
    """Device 0 took 4 steps and device 1 none; uploads as planned: 4 + 1 and 0 + 5 seconds."""
    found = count("realised")
    assert found.seconds.tolist() == pytest.approx([5.0, 5.0, 0.0])
    assert found.joules.tolist() == pytest.approx([2.0 + 0.1, 0.5, 0.0])
    assert found.losses == {0: 1.5}
    assert found.steps.tolist() == [4.0, 0.0, 0.0]


def test_uploads_by_the_wire_are_charged_by_their_bits() -> None:
    """100 and 200 bits, charged twice, are 0.2 and 0.4 of a model: 4 + 2 and 0 + 4 seconds."""
    found = count("realised", "wire")
    assert found.wire_bits.tolist() == [200.0, 400.0, 0.0]
    assert found.seconds.tolist() == pytest.approx([6.0, 4.0, 0.0])


def test_without_work_nothing_is_realised_but_the_planned_uploads() -> None:
    """A dry run counts so; its expected costs are those of a run."""
    found = compute_outcome(setting(), CONDITIONS, PLAN, work=())
    assert found.expected.joules == count().expected.joules
    assert found.losses == {}


def test_downloads_are_counted_by_what_devices_lack() -> None:
    """A difference is a tenth of a model. Device 0 lacks three, 1 has no model, 2 is absent.

    Its cluster issues nothing, as nobody takes part; devices 0 and 1 have the model that is issued now.
    """
    where, missed = replace(setting(), download_share=0.1), np.array([3.0, np.inf, 1.0])
    found = compute_outcome(where, CONDITIONS, PLAN, WORK, missed)
    assert found.downloads.tolist() == pytest.approx([0.3, 1.0, 0.0])
    assert found.missed is not None
    assert found.missed.tolist() == [1.0, 1.0, 1.0]
    alone = replace(CONDITIONS, available=np.array([True, False, False]))
    later = compute_outcome(where, alone, PLAN, WORK[:1], found.missed).missed
    assert later is not None
    assert later.tolist() == [1.0, 2.0, 1.0]
    assert count().downloads.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("share", "missed", "fetched"),
    [(0.25, 3, 0.75), (0.25, 5, 1.0), (0.01, 16, 0.16), (0.01, 17, 1.0), (0.01, np.inf, 1.0)],
)
def test_nobody_fetches_more_than_a_whole_model(share: float, missed: float, fetched: float) -> None:
    """And of differences, 16 in a row are kept."""
    found = replace(setting(), download_share=share).count_downloads(np.array([missed]))
    assert found.tolist() == pytest.approx([fetched])


def test_who_moves_has_no_model_of_its_edge_server() -> None:
    where = replace(setting(), download_share=0.1)
    control = replace(initial_control(where), missed=np.array([1.0, 2.0, 3.0]))
    moved = replace(where.fleet, cluster=np.array([0, 1, 1]))
    found = forget_models(control, where.fleet, moved).missed
    assert found is not None
    assert found.tolist() == [1.0, np.inf, 3.0]


def test_both_ledgers_are_charged() -> None:
    """Expected max(25 + 2, 0 + 2) s and 8.1 J; realised max(5 + 2, 0 + 2) s and 2.6 J."""
    control = charge_edge_round(initial_control(setting()), count())
    assert control.spent_joules.tolist() == pytest.approx([2.6, 5.5, 0.0])
    closed = close_global_round(setting(), control)
    assert closed.rounds_done == 1
    assert (closed.expected.seconds, closed.expected.joules) == pytest.approx((27.0, 8.1))
    assert (closed.realised.seconds, closed.realised.joules) == pytest.approx((7.0, 2.6))
    assert closed.ledger(setting()) is closed.expected
    assert closed.ledger(replace(setting(), accounting="realised")) is closed.realised


def test_a_measured_exchange_counts_in_the_realised_account_only() -> None:
    """11 s by the clock instead of 2 s by the model."""
    control = charge_edge_round(initial_control(setting()), count())
    within = charge_gossip(setting(), control, 11.0)
    assert within.expected.elapsed_seconds == pytest.approx((27.0, 27.0))
    assert within.realised.elapsed_seconds == pytest.approx((16.0, 16.0))
    closed = close_global_round(setting(), control, 11.0)
    assert (closed.expected.seconds, closed.realised.seconds) == pytest.approx((27.0, 16.0))


def test_the_scheme_sees_the_account_that_counts_and_what_batteries_hold() -> None:
    world = setting(battery=4.0)
    control = charge_edge_round(initial_control(world), count())
    estimates = FleetEstimates(np.ones(3), np.ones(3))
    expected, realised = (
        observe(replace(world, accounting=account), control, 0, CONDITIONS, estimates)
        for account in ("expected", "realised")
    )
    assert (expected.ledger, realised.ledger) == (control.expected, control.realised)
    assert expected.battery is not None
    assert expected.battery.tolist() == pytest.approx([1.4, 0.0, 4.0])
    assert expected.gossip_seconds_left.tolist() == [2.0, 2.0]
    plan, after = plan_edge_round(world, control, expected)
    assert plan.rho.tolist() == [1.0, 1.0, 0.0]
    assert after.expected is control.expected


def closed_round() -> tuple[ControlState, RoundRecord]:
    control = close_global_round(setting(), charge_edge_round(initial_control(setting()), count()))
    world = replace(tiny().build_world(), setting=setting())
    scores = RoundScores(accuracy=0.5)
    totals = add_up(world.setting, [count()])
    record = make_record(world, control, totals, scores, model_sha256="0" * 64, wall_seconds=1.0)
    return control, record


def test_a_record_sums_the_round_up() -> None:
    """ρ and θ are means over devices 0 and 1; 600 charged bits and 2 models of 1,000 bits are 325 bytes.

    Both realised 5 seconds, so the first was waited for, though device 1 was planned for more.
    """
    _, record = closed_round()
    assert (record.round, record.seconds, record.joules) == pytest.approx((1, 27.0, 8.1))
    assert (record.rho_mean, record.theta_mean, record.loss) == pytest.approx((0.75, 0.3, 1.5))
    assert (record.wire_bytes, record.devices_taking_part) == (325, 2)
    assert (record.straggler, record.slowest_cluster, record.gap) == (0, 0, 0.25)
    assert count_global_round(setting(), [count()]).seconds == pytest.approx(27.0)


def test_a_plan_table_has_a_row_per_device_that_took_part() -> None:
    table = make_plan_table(setting(), [count(), count()], 1)
    assert table.device.tolist() == [0, 1, 0, 1]
    assert table.edge_round.tolist() == [0, 0, 1, 1]
    assert np.array_equal(table.rho, [0.5, 1.0] * 2)


def test_metrics_are_averaged_over_devices() -> None:
    assert mean_metric(setting(), [0.3, 0.9]) == pytest.approx((2 * 0.3 + 0.9) / 3)


@pytest.mark.parametrize(
    ("rounds", "budget", "over"),
    [
        (Rounds(2), Budget(), False),
        (Rounds(1), Budget(), True),
        (Rounds(2, stop="budget"), Budget(), False),
        (Rounds(2, stop="budget"), Budget(seconds=27.1), False),
        (Rounds(2, stop="budget"), Budget(seconds=26.9), True),
        (Rounds(2, stop="budget"), Budget(joules=8.0), True),
        (Rounds(2), Budget(joules=8.0), False),
        (Rounds(2, stop="target", target=0.5), Budget(), True),
        (Rounds(2, stop="target", target=0.6), Budget(), False),
        (Rounds(2, target=0.5), Budget(), False),
    ],
)
def test_when_a_run_is_over(rounds: Rounds, budget: Budget, over: bool) -> None:
    """After 27 s and 8.1 J in round 1, with an accuracy of 0.5."""
    control, record = closed_round()
    assert is_over(rounds, budget, ACCURACY, record) is over
    unevaluated = replace(record, accuracy=None)
    assert is_over(rounds, budget, ACCURACY, unevaluated) is (over and rounds.stop != "target")
    # A round that reaches its target is the last only because it was evaluated.
    assert is_evaluated(setting(rounds, budget), 3, control) is (over and rounds.stop != "target")


def test_rounds_are_evaluated_every_so_often() -> None:
    control = initial_control(setting())
    found = []
    for _ in range(4):
        control = close_global_round(setting(), control)
        found.append(is_evaluated(setting(), 3, control))
    assert found == [False, False, True, True]


@pytest.mark.parametrize(
    ("known", "claimed", "expected"),
    [
        ([100.0, 300.0, 50.0], {0: 100, 1: 300}, {0: 100.0, 1: 300.0}),
        ([100.0, 300.0, 50.0], {0: 2**53, 1: 300}, {0: 600.0, 1: 300.0}),
        (None, {0: 2**53, 1: 300}, {0: 600.0, 1: 300.0}),
        (None, {0: 2**53, 1: 300, 2: 40}, {0: 600.0, 1: 300.0, 2: 40.0}),
        (None, {}, {}),
    ],
)
def test_weights_by_samples_follow_known_counts_or_twice_the_median(
    known: list[float] | None, claimed: dict[int, int], expected: dict[int, float]
) -> None:
    """A claim of 2⁵³ samples would make an aggregate the liar's update, and void clipping."""
    found = setting()
    fleet = replace(found.fleet, samples=None if known is None else np.array(known))
    by_samples = build_scheme(SchemeParameters(name="hier_fedavg"))
    assert device_weights(replace(found, fleet=fleet, scheme=by_samples), PLAN, claimed) == expected
    assert device_weights(found, PLAN, claimed) == dict.fromkeys(claimed, 1.0)
