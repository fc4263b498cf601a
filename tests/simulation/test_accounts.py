"""What a run costs: budgets, both accounts, real uploads, absences and batteries."""

import math

import numpy as np
import pytest
import torch

from cfel.errors import CfelError
from cfel.experiment import Experiment
from cfel.learning.device import device_update
from cfel.learning.local.workspace import Workspace
from cfel.rounds.kernel import EdgeRoundOutcome
from cfel.simulation.loop import run_edge_round
from cfel.simulation.state import RunState, initial_state
from cfel.world import World
from tests.simulation.drive import Listening, column, outcomes, records, tiny

SCHEMES = ("hcef", "cef", "cef_c", "cef_f", "mll_sgd")


@pytest.mark.parametrize("seed", [0, 1])
def test_hcef_keeps_both_budgets(seed: int) -> None:
    """At 60 % of what CEF uses: the plan stays within both, here at the limit of energy.

    The steps that are drawn take longer, as a cluster waits for the unluckiest; the log tells by how much.
    """
    experiment = tiny(
        fleet={"devices": 16, "clusters": 4}, rounds={"global": 5, "edge": 3, "local": 5}, seed=seed
    )
    world = experiment.build_world()
    log = [each.record for each in outcomes(experiment, world)]
    budget, last = world.setting.budget, log[-1]
    assert all(line.feasible for line in log)
    assert last.seconds_expected <= budget.seconds * (1 + 1e-9)
    assert 0.99 * budget.joules < last.joules_expected <= budget.joules * (1 + 1e-9)
    assert (last.seconds, last.joules) == (last.seconds_expected, last.joules_expected)
    assert 1 < last.seconds_realised / last.seconds_expected < 1.4
    assert last.joules_realised == pytest.approx(last.joules_expected, rel=0.1)


def test_cef_uses_what_the_budgets_are_a_share_of() -> None:
    """Budgets are 60 % of CEF's use, so CEF itself comes to 1/0.6 of them; it takes no draws."""
    experiment = tiny(scheme={"name": "cef"})
    world = experiment.build_world()
    last = outcomes(experiment, world)[-1].record
    assert last.seconds / world.setting.budget.seconds == pytest.approx(1 / 0.6)
    assert last.joules / world.setting.budget.joules == pytest.approx(1 / 0.6)
    assert (last.seconds_realised, last.joules_realised) == pytest.approx((last.seconds, last.joules))


def test_realised_costs_follow_the_steps_taken() -> None:
    """Time: steps·μ + θ·ν; energy: steps·α + θ·ν·p; the log's joules are the table's, summed."""
    found = outcomes(tiny(simulation={"accounting": "realised"}))
    tables = [each.plans for each in found]
    steps, theta, mu, nu = (column(tables, name) for name in ("steps", "theta", "mu", "nu"))
    joules = steps * column(tables, "alpha") + theta * nu * column(tables, "power")
    np.testing.assert_allclose(column(tables, "seconds"), steps * mu + theta * nu)
    np.testing.assert_allclose(column(tables, "joules"), joules)
    last = found[-1].record
    assert last.joules == last.joules_realised == pytest.approx(joules.sum())
    assert last.seconds == last.seconds_realised != last.seconds_expected


def test_expected_costs_follow_the_plan() -> None:
    found = outcomes(tiny())
    tables = [each.plans for each in found]
    rho, theta, nu = (column(tables, name) for name in ("rho", "theta", "nu"))
    seconds = 3 * rho * column(tables, "mu") + theta * nu
    np.testing.assert_allclose(column(tables, "seconds"), seconds)
    assert found[-1].record.joules == pytest.approx(column(tables, "joules").sum())


@pytest.mark.parametrize("scheme", [*SCHEMES, "hcef_plus"])
def test_few_bits_cost_what_is_sent(scheme: str) -> None:
    """A full upload is every entry in 8 bits, and its scales; θ of it is planned, charged and sent.

    One entry less than would fit is missing at most, of 8 bits and its place: 3 + 1 + ⌈log₂ d⌉ = 26 bits.
    """
    experiment = tiny(
        compression={"bits": [4, 8]}, scheme={"name": scheme}, simulation={"accounting": "realised"}
    )
    world = experiment.build_world()
    setting, size = world.setting, world.start.parameters.numel()
    full = 8 * size + 32 * (1 + math.ceil(size / 1024))
    assert setting.upload_bits == pytest.approx(full)
    found = outcomes(experiment, world)
    tables = [each.plans for each in found]
    theta, nu = column(tables, "theta"), column(tables, "nu")
    seconds = column(tables, "seconds") - column(tables, "steps") * column(tables, "mu")
    if scheme != "hcef_plus":  # its clocks are slow, so its steps take longer than μ
        assert (seconds <= theta * nu * (1 + 1e-9)).all()
        assert (seconds >= (theta - 40 / full) * nu * (1 - 1e-9)).all()
    for each in found:
        planned = full / 8 * each.plans.theta.sum()
        assert 0.99 * planned < each.record.upload_bytes <= planned * (1 + 1e-9) + 1
    if scheme == "cef":
        plain = tiny(scheme={"name": scheme}, simulation={"accounting": "realised"})
        assert tables[0].nu[0] == pytest.approx(outcomes(plain)[0].plans.nu[0] * full / (32 * size))


def test_bits_need_topk() -> None:
    with pytest.raises(CfelError, match=r"compression.bits: only with kind = 'topk', not 'jl'"):
        tiny(compression={"bits": [8], "kind": "jl"})


def test_uploads_by_the_bits_on_the_wire() -> None:
    """With indices a top-k upload is longer than θ of the model, by up to one bit for every entry."""
    shares = {"accounting": "realised", "uploads": "share"}
    plain, wire = (
        outcomes(tiny(scheme={"name": "cef_c"}, rounds={"global": 1, "edge": 1}, simulation=changes))[0]
        for changes in (shares, shares | {"uploads": "wire"})
    )
    np.testing.assert_array_equal(plain.plans.theta, wire.plans.theta)
    sparse = plain.plans.theta < 1
    assert sparse.any()
    longer = (wire.plans.seconds - plain.plans.seconds) / plain.plans.nu
    assert (longer[sparse] > 0).all()
    assert (longer < 1 / 32 + 1e-3).all()
    np.testing.assert_allclose(longer[~sparse], 0, atol=1e-12)
    assert wire.record.wire_bytes == plain.record.wire_bytes


def test_bytes_of_a_round() -> None:
    """CEF: 6 devices · 2 edge rounds of 4 · 4,810 bytes, and a full model both ways over three links."""
    log = records(tiny(scheme={"name": "cef"}))
    assert {line.wire_bytes for line in log} == {(6 * 2 + 3 * 2) * 4 * 4810}
    assert {line.download_bytes for line in log} == {6 * 2 * 4 * 4810}
    assert {line.backhaul_joules for line in log} == {0}


def test_shared_momentum_doubles_what_edge_servers_exchange_and_devices_fetch() -> None:
    """Over fixed lines, 3 links both ways cost 13.5 nJ for each of 32 bits of 2 · 4,810 numbers."""
    local = {"algorithm": "shared_momentum", "momentum": 0.9}
    for line in records(tiny(scheme={"name": "cef"}, local=local, topology={"joules_per_bit": "wired"})):
        assert (line.backhaul_bytes, line.download_bytes) == (3 * 2 * 2 * 4 * 4810, 6 * 2 * 2 * 4 * 4810)
        assert line.backhaul_joules == pytest.approx(3 * 2 * 2 * 32 * 4810 * 13.5e-9)


def edge_round(experiment: Experiment) -> tuple[World, Listening, RunState, RunState, EdgeRoundOutcome]:
    """The first edge round alone, before gossip."""
    world = experiment.build_world()
    with Listening(world, experiment) as executor:
        before = initial_state(world)
        after, outcome = run_edge_round(world, executor, before, 0)
    return world, executor, before, after, outcome


def test_devices_that_are_away_get_no_order() -> None:
    """Device 1 is away, so cluster 0 becomes what device 0 made of it alone; cluster 2 has nobody."""
    away = {"availability": {"away": [[1, 0, 0], [4, 0, 0], [5, 0, 0]]}}
    experiment = tiny(fleet=away, local={"estimator": "fresh"})
    world, executor, before, after, outcome = edge_round(experiment)
    assert [order.device for order in executor.orders] == [0, 2, 3]
    workspace = Workspace(world.task, world.training, world.compress)
    report, _ = device_update(executor.orders[0], world.data[0], before.devices[0], workspace)
    alone = before.models[0].parameters.clone()
    report.update.add_to(alone, 1.0)
    assert torch.equal(after.models[0].parameters, alone)
    assert after.models[2] is before.models[2]
    assert not torch.equal(after.models[1].parameters, before.models[1].parameters)
    for n in (1, 4, 5):
        assert after.devices[n] is before.devices[n]
        assert (outcome.joules[n], outcome.seconds[n], outcome.steps[n]) == (0, 0, 0)
    assert outcome.expected.seconds[2] == 0


def test_all_nodes_come_back() -> None:
    away = {"availability": {"away": [[1, 0, 0], [4, 0, 1], [5, 0, 1]]}}
    found = outcomes(tiny(fleet=away))
    assert [set(each.plans.device) for each in found] == [{0, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}]
    assert [each.record.devices_taking_part for each in found] == [3, 4, 6]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_round_without_devices(scheme: str) -> None:
    """Gossip continues, nothing else: no loss, no straggler, no energy, and the time of the backhaul."""
    away = {"availability": {"away": [[n, 1, 1] for n in range(6)]}}
    experiment = tiny(fleet=away, scheme={"name": scheme})
    world = experiment.build_world()
    first, empty, last = (each.record for each in outcomes(experiment, world))
    assert (empty.loss, empty.straggler, empty.devices_taking_part) == (None, None, 0)
    assert (empty.rho_mean, empty.theta_mean, empty.joules) == (0, 0, first.joules)
    assert empty.seconds - first.seconds == pytest.approx(max(world.setting.backhaul_seconds))
    assert last.devices_taking_part == 6
    assert last.joules > empty.joules


def test_random_absences_are_the_same_for_every_scheme() -> None:
    fleet = {"availability": {"away_probability": 0.4}}
    who = [
        column([each.plans for each in outcomes(tiny(fleet=fleet, scheme={"name": name}))], "device")
        for name in ("hcef", "cef")
    ]
    np.testing.assert_array_equal(who[0], who[1])
    assert 6 < len(who[0]) < 36


def test_empty_batteries_take_no_part() -> None:
    """CEF minds no battery: a device leaves with the edge round that empties it, and never comes back."""
    battery = [0.0, 1e-3, 20.0, math.inf, math.inf, math.inf]
    found = outcomes(tiny(fleet={"battery_joules": battery}, scheme={"name": "cef"}))
    tables = [each.plans for each in found]
    device, joules = column(tables, "device"), column(tables, "joules")
    assert 0 not in device
    assert (device == 1).sum() == 1
    assert 1 < (device == 2).sum() < 6
    assert joules[device == 2][:-1].sum() < 20 <= joules[device == 2].sum()
    assert (device == 3).sum() == 6


def test_hcef_spares_batteries() -> None:
    """Given half of what CEF would take from device 2, HCEF lets it last to the end."""
    plenty = column([each.plans for each in outcomes(tiny(scheme={"name": "cef"}))], "joules").sum() / 6
    battery = [math.inf, math.inf, plenty / 2, math.inf, math.inf, math.inf]
    tables = [each.plans for each in outcomes(tiny(fleet={"battery_joules": battery}))]
    own = column(tables, "device") == 2
    assert own.sum() == 6
    assert column(tables, "joules")[own].sum() <= plenty / 2 * (1 + 1e-9)


def test_charged_as_a_larger_model() -> None:
    """CEF with the uploads of a model ten times its size: bytes, and shares on the wire that stay 1."""
    changes = {"scheme": {"name": "cef"}, "model": {"charged_parameters": 48_100}}
    plain = outcomes(tiny(scheme={"name": "cef"}))[0]
    wire = outcomes(tiny(changes, simulation={"accounting": "realised", "uploads": "wire"}))[0]
    assert wire.record.wire_bytes == 10 * plain.record.wire_bytes
    np.testing.assert_allclose(wire.plans.nu, 10 * plain.plans.nu)
    np.testing.assert_allclose(wire.plans.seconds, 3 * wire.plans.mu + wire.plans.nu)


def test_an_upload_after_the_deadline_is_waited_for_until_then_and_kept_by_its_device() -> None:
    """Steps are drawn, so some devices take more than planned; error feedback keeps what they sent late."""
    changes = {
        "budget": {"share_of_cef": 0.6},
        "compression": {"error_feedback": True},
        "scheme": {"name": "hcef", "deadline_seconds": 200},
    }
    world, executor, before, after, outcome = edge_round(tiny(changes, rounds={"global": 1, "edge": 1}))
    plan, now = outcome.plan, outcome.conditions
    seconds = outcome.steps * now.mu + plan.theta * now.nu
    late = now.available & (seconds > 200)
    assert late.any()
    assert not late.all()
    assert outcome.realised.seconds.max() == 200
    assert outcome.expected.seconds.max() <= 200 * (1 + 1e-9)
    # They worked, and are charged for it.
    joules = outcome.steps * now.alpha + now.power * plan.theta * now.nu
    assert outcome.realised.joules == pytest.approx(joules[now.available].sum())
    workspace = Workspace(world.task, world.training, world.compress)
    for order in executor.orders:
        n = order.device
        report, left = device_update(order, world.data[n], before.devices[n], workspace)
        kept, expected = after.devices[n].residual, left.residual
        assert kept is not None
        assert expected is not None
        if late[n]:
            report.update.add_to(expected, 1.0)
        assert torch.equal(kept, expected)
