"""The field's resource-aware baselines: the property that defines each of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control import Budget, Observation, RoundPlan, SchemeParameters, build_scheme
from cfel.control.planning import choose_best, list_pairs
from cfel.control.schemes.oort import Options, rate
from cfel.errors import InputError
from cfel.system.batch_shares import BatchShares
from cfel.system.conditions import Conditions
from tests.control.schemes.test_schemes import CLUSTERS, DEVICES, joules, observation, plan, seconds


def alike(**fields: Any) -> Observation:
    """Twelve devices of 10 s and 10 J a step, 50 s and 50 J an upload, except where fields say otherwise."""
    columns = {"mu": 10.0, "alpha": 10.0, "nu": 50.0, "power": 1.0}
    given = {name: np.broadcast_to(fields.pop(name, value), DEVICES) for name, value in columns.items()}
    conditions = Conditions(**given, available=np.ones(DEVICES, dtype=bool))
    return observation(conditions=conditions, budget=fields.pop("budget", Budget()), **fields)


def run(name: str, seen: list[Observation], **options: Any) -> list[RoundPlan]:
    scheme = build_scheme(SchemeParameters(name=name, options=options))
    state, plans = scheme.init(), []
    for each in seen:
        made, state = scheme.plan(state, each)
        plans.append(made)
    return plans


# Oort


def test_oort_asks_a_share_of_every_cluster_for_all_they_can_do() -> None:
    (made,) = run("oort", [alike()], share=0.5)
    assert np.bincount(np.arange(DEVICES) % CLUSTERS, made.rho).tolist() == [2, 2, 2]
    assert set(made.rho.tolist()) == set(made.theta.tolist()) == {0.0, 1.0}


def test_oort_prefers_large_losses_and_fast_devices() -> None:
    """Without bonus (first plan) the scaled utilities are (loss − 1)/(clip − 1); T is 100 s, α = 2.

    Losses 1, 2, 3 at equal speed: 0, ½, 1. The last at half the speed: 1 · (100/200)² = ¼. With 30, 10, 10
    and 10 samples, samples × loss are 30, 20, 30 and 30.
    """
    losses = np.tile([1.0, 2.0, 3.0, 3.0], 3)
    seen = alike(losses=losses, mu=np.tile([10.0, 10.0, 10.0, 30.0], 3))
    took = np.tile([100.0, 100.0, 100.0, 200.0], 3)
    found = rate(Options(), seen, took, np.ones(DEVICES, dtype=np.int64), 1, 30.0)
    assert found.tolist() == pytest.approx([0.0, 0.5, 1.0, 0.25] * 3)
    heavy = replace(seen, samples=np.tile([30.0, 10.0, 10.0, 10.0], 3))
    found = rate(Options(), heavy, took, np.ones(DEVICES, dtype=np.int64), 1, 30.0)
    assert found.tolist() == pytest.approx([1.0, 0.0, 1.0, 0.25] * 3)


def test_oort_exploits_what_it_knows() -> None:
    """Once all have been asked and little is explored, the devices with the largest losses are asked."""
    losses = np.where(np.arange(DEVICES) < 6, 5.0, 0.1)
    rounds = [alike(losses=losses, edge_round=r % 5, global_round=r // 5) for r in range(20)]
    plans = run("oort", rounds, decay=0.5, least_exploration=0.0)
    asked = np.mean([made.rho for made in plans[-5:]], axis=0)
    assert asked[:6].mean() > 0.8
    assert asked[6:].mean() < 0.2


def test_oort_draws_by_round_and_repeats() -> None:
    rounds = [alike(edge_round=r, seed=4) for r in range(4)]
    first, again = run("oort", rounds), run("oort", rounds)
    assert [made.rho.tolist() for made in first] == [made.rho.tolist() for made in again]
    assert len({tuple(made.rho) for made in first}) > 1


def test_oort_asks_everybody_in_time() -> None:
    """Exploration: within a few plans each device has been asked once."""
    rounds = [alike(edge_round=r % 5, global_round=r // 5) for r in range(8)]
    assert (np.sum([made.rho for made in run("oort", rounds)], axis=0) > 0).all()


@pytest.mark.parametrize(("name", "options"), [("oort", {"shares": 0.5}), ("nori", {"flor": 1.0})])
def test_unknown_option_names_the_nearest(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="did you mean"):
        plan(name, observation(), options=options)


# AnycostFL


def test_anycost_keeps_every_device_within_its_own_limits() -> None:
    seen = observation(share=0.5)
    made = plan("anycost", seen)
    caps, energy = seen.caps()
    assert made.feasible
    assert (seconds(seen, made) <= caps[seen.cluster] * (1 + 1e-6)).all()
    assert (joules(seen, made) <= energy / DEVICES * (1 + 1e-6)).all()
    assert len(set(made.rho.tolist())) > 1


def test_anycost_chooses_the_best_pair_by_exhaustion() -> None:
    seen = observation(share=0.5)
    pairs = list_pairs(SchemeParameters(), seen)
    caps, energy = seen.caps()
    made = plan("anycost", seen)
    at = seen.conditions
    for n in range(DEVICES):
        used = pairs.rho * 5 * at.mu[n] + pairs.theta * at.nu[n]
        spent = pairs.rho * 5 * at.alpha[n] + at.power[n] * pairs.theta * at.nu[n]
        fits = (used <= caps[seen.cluster[n]]) & (spent <= energy / DEVICES)
        gain = np.where(fits, pairs.rho * pairs.kept, -1)
        assert made.rho[n] * made.theta[n] ** 0.3 == pytest.approx(gain.max())


def test_anycost_without_limits_asks_for_everything_and_says_what_cannot_be_met() -> None:
    made = plan("anycost", observation(budget=Budget()))
    assert made.rho.tolist() == made.theta.tolist() == [1.0] * DEVICES
    made = plan("anycost", observation(share=1e-6))
    assert made.violations == ("12 devices cannot keep to their own limits",)
    assert made.theta == pytest.approx(np.full(DEVICES, 0.01))


# FedLuck and FedLamp


def test_fedluck_minimises_time_per_progress_of_a_lone_kind() -> None:
    """Devices alike: the best pair is the least (ρτμ + θν + exchange)/(ρ θ^0.3) of all deadlines' pairs."""
    seen = alike(gossip_seconds_left=np.zeros(CLUSTERS))
    made = plan("fedluck", seen)
    pairs = list_pairs(SchemeParameters(), seen)
    ratio = (pairs.rho * 50 + pairs.theta * 50) / (pairs.rho * pairs.kept)
    found = float((made.rho[0] * 50 + made.theta[0] * 50) / (made.rho[0] * made.theta[0] ** 0.3))
    assert len(set(made.theta.tolist())) == 1
    assert found <= 1.05 * ratio.min()


def test_fedluck_has_slow_devices_do_less_so_that_they_end_with_the_others() -> None:
    mu = np.where(np.arange(DEVICES) < 3, 30.0, 10.0)
    seen = alike(mu=mu, gossip_seconds_left=np.zeros(CLUSTERS))
    made = plan("fedluck", seen)
    assert made.rho[:3].max() < made.rho[3:].min()
    assert seconds(seen, made).max() < 150.0


def test_fedluck_keeps_to_the_time_budget_where_it_can() -> None:
    seen = observation(share=0.3)
    made = plan("fedluck", seen)
    assert (seconds(seen, made) <= seen.caps()[0][seen.cluster] * (1 + 1e-6)).all()


# Nori


def test_nori_asks_the_same_of_all() -> None:
    made = plan("nori", observation(share=0.5))
    assert len(set(made.rho.tolist())) == len(set(made.theta.tolist())) == 1
    assert made.feasible


def test_nori_becomes_more_precise_as_the_loss_falls() -> None:
    """R falls from 1 to 0.01: the floor counts, so fewer local steps and less compression."""
    falling = [alike(losses=np.full(DEVICES, loss)) for loss in (2.0, 0.4, 0.02)]
    plans = run("nori", falling)
    theta, rho = [made.theta[0] for made in plans], [made.rho[0] for made in plans]
    assert theta == sorted(theta)
    assert theta[-1] > theta[0]
    assert rho == sorted(rho, reverse=True)


def test_nori_keeps_to_the_caps_or_says_that_nothing_does() -> None:
    seen = observation(share=0.4)
    made = plan("nori", seen)
    caps, energy = seen.caps()
    assert (seconds(seen, made) <= caps[seen.cluster] * (1 + 1e-9)).all()
    assert joules(seen, made).sum() <= energy * (1 + 1e-9)
    made = plan("nori", observation(share=1e-6))
    assert not made.feasible
    assert made.rho == pytest.approx(np.full(DEVICES, 0.2))


def test_where_nothing_fits_the_cheapest_pair_is_taken() -> None:
    seen = alike()
    pairs = list_pairs(SchemeParameters(), seen)
    none = np.zeros(DEVICES)
    best, fits = choose_best(seen, pairs, pairs.rho, none, none)
    assert not fits.any()
    assert set(best.tolist()) == {0}


# A static plan


def plan_static(seen: Observation, steps: Any = "small_batches", **options: Any) -> RoundPlan:
    scheme = build_scheme(SchemeParameters(name="static", steps=steps, options=options))
    return scheme.plan(scheme.init(), seen)[0]


def test_a_static_plan_is_the_same_for_all_and_only_clocks_differ() -> None:
    """10 of 50 samples with a fixed part of 0.05 cost 0.05 + 0.95/5 = 0.24 of a step."""
    seen = alike(mu=np.linspace(10.0, 40.0, DEVICES), small_batches=BatchShares(50, 0.05))
    made = plan_static(seen, samples=10, theta=0.1)
    assert made.rho.tolist() == pytest.approx([0.24] * DEVICES)
    assert made.theta.tolist() == [0.1] * DEVICES
    assert made.speed is not None
    assert made.speed[0] < 1.0
    assert made.speed[-1] == 1.0


def test_a_static_plan_without_samples_takes_whole_batches() -> None:
    made = plan_static(alike(), steps="local", theta=0.3)
    assert made.rho.tolist() == [1.0] * DEVICES
    assert made.theta.tolist() == [0.3] * DEVICES


def test_a_static_plan_ignores_budgets_and_absent_devices() -> None:
    seen = alike(budget=Budget(1.0, 1.0))
    away = replace(seen.conditions, available=np.arange(DEVICES) > 0)
    made = plan_static(replace(seen, conditions=away), steps="local")
    assert made.rho.tolist() == [0.0] + [1.0] * (DEVICES - 1)


@pytest.mark.parametrize(
    ("steps", "samples", "words"),
    [
        ("local", 10, "small_batches"),
        ("small_batches", 51, "a batch has 50"),
        ("small_batches", 1, "samples = 1"),
    ],
)
def test_samples_that_a_static_plan_cannot_take(steps: str, samples: int, words: str) -> None:
    seen = alike(small_batches=BatchShares(50, 0.05) if steps == "small_batches" else None)
    with pytest.raises(InputError, match=words):
        plan_static(seen, steps=steps, samples=samples)
