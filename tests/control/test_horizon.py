"""Rounds that a budget allows, against numbers worked out by hand, and in whole runs."""

from dataclasses import replace

import numpy as np
import pytest

from cfel.control import Budget, Rounds, SchemeParameters, build_scheme
from cfel.control.caps import round_caps
from cfel.control.planning import LEAST_SHARE, limit_to_budget
from cfel.control.scheme import Observation
from cfel.cost import Ledger
from cfel.experiment import preset_experiment
from cfel.rounds.dry_run import dry_run
from cfel.system.batch_shares import BatchShares
from cfel.system.conditions import Conditions

# Full work of τ = 10 steps takes both present devices 30 s and 6 J; 0.3 of it is 9 s, and 3.6 J in all.
CONDITIONS = Conditions(
    mu=np.array([2.0, 2.0, 3.0]),
    alpha=np.array([0.5, 0.5, 1.0]),
    nu=np.array([10.0, 10.0, 20.0]),
    power=np.array([0.1, 0.1, 0.2]),
    available=np.array([True, True, False]),
)


def observation(rounds: Rounds, budget: Budget, at: int = 0, spent: float = 0.0) -> Observation:
    """Devices 0 and 1 in cluster 0, an absent one in cluster 1; an exchange takes 2 s."""
    return Observation(
        global_round=at,
        edge_round=0,
        rounds=rounds,
        conditions=CONDITIONS,
        cluster=np.array([0, 0, 1]),
        sigma2=np.ones(3),
        g2=np.ones(3),
        ledger=Ledger(spent, 0.0, (0.0, 0.0), 0.0),
        budget=budget,
        gossip_seconds_left=np.array([2.0, 2.0]),
    )


@pytest.mark.parametrize(
    ("budget", "at", "spent", "last"),
    [
        (Budget(seconds=110.5), 0, 0.0, 10),  # 110 s at 9 s of work and 2 s of gossip
        (Budget(seconds=110.5), 4, 55.0, 9),  # half of it is left, in round 4
        (Budget(seconds=110.5, joules=18.1), 0, 0.0, 5),  # energy runs out first, at 3.6 J
        (Budget(seconds=81.0), 7, 78.0, 8),  # less than one round is left: this one is the last
        (Budget(seconds=79.0), 7, 80.0, 8),  # more than all of it was used
        (Budget(), 0, 0.0, 1000),
    ],
)
@pytest.mark.parametrize("stop", ["budget", "target"])
def test_rounds_are_those_that_the_budget_covers(
    stop: str, budget: Budget, at: int, spent: float, last: int
) -> None:
    seen = observation(Rounds(1000, 1, 10, stop=stop, target=0.5), budget, at, spent)
    assert limit_to_budget(seen).rounds == Rounds(last, 1, 10, stop=stop, target=0.5)


def test_small_batches_are_left_half_of_full_work() -> None:
    """170.5 s at 15 s of work and 2 s of gossip."""
    seen = observation(Rounds(1000, 1, 10, stop="budget"), Budget(seconds=170.5))
    limited = limit_to_budget(replace(seen, small_batches=BatchShares(50)))
    assert limited.rounds.global_rounds == 10


def test_caps_leave_a_share_of_full_work() -> None:
    seen = limit_to_budget(observation(Rounds(1000, 1, 10, stop="budget"), Budget(seconds=110.0)))
    seconds, _ = round_caps(seen.budget, seen.ledger, seen.rounds, 0, 0, seen.gossip_seconds_left)
    assert seconds[0] == pytest.approx(LEAST_SHARE * 30)


def test_a_deep_fade_of_one_device_grants_a_round_no_more() -> None:
    """With the paper's channel and budgets, no round is granted more than its share of what is left."""
    setting = preset_experiment(
        "paper-femnist", ["rounds.stop=budget", "scheme.name=hcef", "model.parameters=6603710"]
    ).build_setting()
    changed = 0
    for global_round in range(setting.rounds.global_rounds):
        seen = Observation(
            global_round=global_round,
            edge_round=0,
            rounds=setting.rounds,
            conditions=setting.conditions(global_round, 0, np.zeros(64)),
            cluster=setting.fleet.cluster,
            sigma2=np.ones(64),
            g2=np.ones(64),
            ledger=Ledger(setting.budget.seconds * global_round / 40, 0.0, (0.0,) * 8, 0.0),
            budget=setting.budget,
            gossip_seconds_left=setting.exchange_seconds,
        )
        changed += limit_to_budget(seen) is not seen
    assert changed == 0


def test_other_runs_are_planned_to_their_last_round() -> None:
    seen = observation(Rounds(1000, 1, 10), Budget(seconds=80.0))
    assert limit_to_budget(seen) is seen


def test_fewer_rounds_than_the_budget_allows_stay_as_they_are() -> None:
    seen = observation(Rounds(7, 1, 10, stop="budget"), Budget(seconds=80.0))
    assert limit_to_budget(seen) is seen


def test_a_round_without_devices_is_planned_as_before() -> None:
    seen = observation(Rounds(1000, 1, 10, stop="budget"), Budget(seconds=80.0))
    nobody = replace(CONDITIONS, available=np.zeros(3, dtype=bool))
    alone = replace(seen, conditions=nobody)
    assert limit_to_budget(alone) is alone


@pytest.mark.parametrize("scheme", ["hcef", "hcef_plus"])
def test_a_generous_limit_of_rounds_does_not_starve_the_plans(scheme: str) -> None:
    """With a budget for ten rounds of full work and a limit of 400: about fifty rounds, above the floor."""
    setting = (
        preset_experiment("demo", ["fleet.devices=8", "fleet.clusters=2", "rounds.edge=2"])
        .build_world()
        .setting
    )
    full = replace(setting, scheme=build_scheme(SchemeParameters(name="cef")), budget=Budget())
    *_, tenth = dry_run(replace(full, rounds=replace(full.rounds, global_rounds=10)))
    run = replace(
        setting,
        rounds=replace(setting.rounds, global_rounds=400, stop="budget"),
        scheme=build_scheme(SchemeParameters(name=scheme)),
        budget=Budget(tenth.ledger.seconds, tenth.ledger.joules),
    )
    shares: list[float] = []
    for each in dry_run(run):
        if each.ledger.seconds >= run.budget.seconds or each.ledger.joules >= run.budget.joules:
            break
        shares.append(float(np.mean([plan.rho.mean() for plan in each.plans])))
    assert 10 < len(shares) < 100
    # HCEF's floor is a tenth. HCEF+ takes one step of five on two of ten samples at least: 0.05 of the work.
    assert np.mean(shares) > (0.22 if scheme == "hcef" else 0.1)
