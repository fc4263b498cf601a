"""Whole runs without learning: budgets kept, CEF counted exactly, batteries and absences respected."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control import (
    Budget,
    Rounds,
    SchemeParameters,
    Setting,
    build_scheme,
)
from cfel.rounds.dry_run import DryRunRound, choose_gossip, compute_use, dry_run
from cfel.system.backhaul import TopologyParameters, build_backhaul
from cfel.system.conditions import RandomConditions
from cfel.system.fleet import Availability, FleetParameters, build_fleet
from tests.control.instances import PRESETS, Preset


def setting(preset: Preset, rounds: Rounds, **fleet: Any) -> Setting:
    """A preset's fleet with a backhaul of 50 Mb/s."""
    conditions = RandomConditions(alpha_joules=preset.step_joules)
    built = build_fleet(FleetParameters(conditions=conditions, **fleet))
    return Setting(
        fleet=built,
        backhaul=build_backhaul(TopologyParameters(), built.sizes, 3),
        scheme=build_scheme(SchemeParameters(name="cef")),
        backhaul_seconds=np.full(built.clusters, preset.bits / 50e6),
        rounds=rounds,
        seed=3,
        model_bits=preset.bits,
    )


def run(where: Setting, scheme: str, budget: Budget) -> list[DryRunRound]:
    chosen = build_scheme(SchemeParameters(name=scheme))
    return list(dry_run(replace(where, scheme=chosen, budget=budget), sigma2=0.2))


@pytest.mark.parametrize("name", PRESETS)
def test_hcef_keeps_to_both_60_percent_budgets(name: str) -> None:
    where = setting(PRESETS[name], Rounds(global_rounds=6), devices=64, clusters=8)
    budget = compute_use(where).take_share(0.6)
    ledger = run(where, "hcef", budget)[-1].ledger
    assert ledger.seconds <= budget.seconds * (1 + 1e-9)
    assert ledger.joules <= budget.joules * (1 + 1e-9)
    assert ledger.joules >= 0.5 * budget.joules


def test_the_backhaul_is_charged_where_it_has_a_price() -> None:
    """A ring of 4 sends 8 models in a global round; CEF uses that much more, and HCEF leaves room for it."""
    where = setting(PRESETS["cifar"], Rounds(global_rounds=3), devices=8, clusters=4)
    free = compute_use(where)
    priced = replace(where, joules_per_bit=0.1 * free.joules / (3 * 8 * where.model_bits))
    use = compute_use(priced)
    assert use.seconds == free.seconds
    assert use.joules == pytest.approx(1.1 * free.joules)
    budget = Budget(joules=0.6 * free.joules)
    hcef = run(priced, "hcef", budget)[-1].ledger
    assert 0.5 * free.joules < hcef.joules <= budget.joules * (1 + 1e-9)
    reserved = replace(priced, budget=budget).reserve_backhaul(2)
    assert reserved.joules == pytest.approx((0.6 - 0.1 / 3) * free.joules)


@pytest.mark.parametrize(("share", "every_edge_round"), [(0.0, True), (0.8, True), (1.2, False)])
def test_gossip_becomes_rare_where_bits_are_dear(share: float, every_edge_round: bool) -> None:
    """Two steps after every edge round cost this share of the devices' energy; one per global round a tenth.

    It takes no time here. An edge round with the latter is worth 0.8, energy counts 0.35: so it pays off as
    soon as energy with the former is 0.8^(-1/0.35) = 1.89 times as much. (1 + 0.8)/(1 + 0.08) is 1.67,
    (1 + 1.2)/(1 + 0.12) is 1.96.
    """
    scheme = build_scheme(SchemeParameters(name="static"))
    where = setting(PRESETS["cifar"], Rounds(global_rounds=3, edge_rounds=5), devices=8, clusters=4)
    where = replace(where, scheme=scheme, backhaul_seconds=np.zeros(4))
    joules = next(dry_run(replace(where, rounds=Rounds(global_rounds=1, edge_rounds=1)))).cost.joules
    priced = replace(where, joules_per_bit=share * joules / (2 * 8 * where.model_bits))
    chosen = choose_gossip(priced).scheme.gossip
    assert (chosen.every_edge_round, chosen.steps) == (every_edge_round, 2 if every_edge_round else 1)
    fixed = build_scheme(SchemeParameters(name="static", gossip="edge_round"))
    assert choose_gossip(replace(priced, scheme=fixed)).scheme.gossip.every_edge_round


def test_cef_uses_what_is_expected_of_it() -> None:
    """Summed device by device from the conditions: Σ over rounds of max over clusters, and of all joules."""
    preset = PRESETS["cifar"]
    where = setting(preset, Rounds(global_rounds=2, edge_rounds=3), devices=9, clusters=2)
    use = compute_use(where)
    fleet, seconds, joules = where.fleet, 0.0, 0.0
    for global_round in range(2):
        clock = [0.0, 0.0]
        for edge_round in range(3):
            now = fleet.conditions(where.seed, global_round, edge_round, preset.bits)
            for i in range(2):
                times = (5 * now.mu + now.nu)[fleet.cluster == i]
                clock[i] += float(times.max())
            joules += float((5 * now.alpha + now.power * now.nu).sum())
        seconds += max(clock) + preset.bits / 50e6
    assert use.seconds == pytest.approx(seconds, rel=1e-12)
    assert use.joules == pytest.approx(joules, rel=1e-12)
    assert run(where, "cef", Budget(1.0, 1.0))[-1].ledger.seconds == use.seconds
    assert run(where, "cef", Budget(1.0, 1.0))[-1].ledger.joules == use.joules


def test_rounds_add_up_to_the_ledger() -> None:
    where = setting(PRESETS["cifar"], Rounds(global_rounds=3, edge_rounds=2), devices=8, clusters=2)
    rounds = run(where, "hcef", compute_use(where).take_share(0.6))
    assert len(rounds) == 3
    assert all(len(each.plans) == len(each.conditions) == 2 for each in rounds)
    assert rounds[-1].ledger.seconds == pytest.approx(sum(each.cost.seconds for each in rounds))
    assert rounds[-1].ledger.joules == pytest.approx(sum(each.cost.joules for each in rounds))


@pytest.mark.parametrize("charge", [0.3, 2.0, 12.0])
def test_batteries_are_overdrawn_only_by_lower_bounds_and_never_silently(charge: float) -> None:
    """A device at ρ = 0.1 and θ = 0.01 uses 0.1 J or so a round; CEF would use 2 J and more."""
    devices = 12
    where = setting(
        PRESETS["cifar"], Rounds(global_rounds=3), devices=devices, clusters=3, battery_joules=charge
    )
    left = np.full(devices, charge)
    for each in run(where, "hcef", Budget()):
        for now, plan in zip(each.conditions, each.plans, strict=True):
            assert not now.available[left <= 0].any()
            spent = plan.rho * 5 * now.alpha + now.power * plan.theta * now.nu
            for device in np.flatnonzero(spent > np.maximum(left, 0.0) * (1 + 1e-9)):
                assert any(words.startswith(f"device {device}:") for words in plan.violations)
                assert (plan.rho[device], plan.theta[device]) == pytest.approx((0.1, 0.01))
            left = left - spent
    assert (left < charge).all()


def test_a_run_continues_through_a_round_without_devices() -> None:
    """In global round 1 of 3 everybody is away: only gossip takes time."""
    away = tuple((device, 1, 1) for device in range(4))
    where = setting(
        PRESETS["cifar"], Rounds(3, 2), devices=4, clusters=2, availability=Availability(away=away)
    )
    rounds = run(where, "hcef", compute_use(where).take_share(0.6))
    assert all(plan.rho.tolist() == [0.0] * 4 for plan in rounds[1].plans)
    assert (rounds[1].cost.seconds, rounds[1].cost.joules) == (PRESETS["cifar"].bits / 50e6, 0.0)
    assert rounds[2].cost.joules > 0


@pytest.mark.parametrize("scheme", ["hcef", "cef", "cef_f", "cef_c", "mll_sgd"])
def test_a_second_dry_run_gives_the_same(scheme: str) -> None:
    where = setting(PRESETS["femnist"], Rounds(2, 2), devices=10, clusters=3)
    budget = Budget(2000.0, 400.0)
    first, second = run(where, scheme, budget), run(where, scheme, budget)
    assert first[-1].ledger == second[-1].ledger
    assert first[-1].plans[-1].rho.tolist() == second[-1].plans[-1].rho.tolist()


def test_wrong_estimates_change_plans_but_not_what_work_costs() -> None:
    """CEF asks the same of all, so it costs the same; HCEF takes longer than the cap that it planned for."""
    where = setting(PRESETS["cifar"], Rounds(global_rounds=2), devices=12, clusters=3)
    wrong = replace(where, fleet=replace(where.fleet, estimate_error=0.3))
    budget = compute_use(where).take_share(0.6)
    assert compute_use(wrong) == compute_use(where)
    (told, *_), (misled, *_) = run(where, "hcef", budget), run(wrong, "hcef", budget)
    assert told.plans[0].rho.tolist() != misled.plans[0].rho.tolist()
    assert misled.conditions[0].mu.tolist() == told.conditions[0].mu.tolist()
    assert told.cost.seconds <= budget.seconds / 2 * (1 + 1e-9) < misled.cost.seconds
