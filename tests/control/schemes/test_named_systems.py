"""The systems that the paper names beside its own: the property that defines each, in numbers by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control import Budget, SchemeParameters, build_scheme
from cfel.control.planning import list_pairs
from cfel.control.schemes.adaptive import TauOptions, bound_loss, compare_pair, count_iterations, find_step
from cfel.control.schemes.participation import (
    CostEffectiveOptions,
    count_devices,
    draw_devices,
    expect_longest,
    find_cheapest,
)
from cfel.errors import InputError
from tests.control.schemes.test_baselines import alike, run
from tests.control.schemes.test_schemes import CLUSTERS, DEVICES, joules, observation, plan, seconds

# FedPAQ


def test_fedpaq_asks_a_random_half_for_all_steps_and_four_bits() -> None:
    rounds = [alike(edge_round=r) for r in range(4)]
    plans = run("fedpaq", rounds)
    for made in plans:
        assert np.bincount(np.arange(DEVICES) % CLUSTERS, made.rho).tolist() == [2, 2, 2]
        assert made.theta.tolist() == (0.125 * made.rho).tolist()
    assert len({tuple(made.rho) for made in plans}) > 1


def test_fedpaq_brings_its_compressor() -> None:
    def overrides(**options: Any) -> Any:
        return build_scheme(SchemeParameters(name="fedpaq", options=options)).device_overrides

    assert (overrides().compressor, overrides().error_feedback) == ("quantise", False)
    assert overrides(compressor="uveqfed").compressor == "uveqfed"
    with pytest.raises(InputError, match="topk"):
        overrides(compressor="topk")


def test_every_cluster_has_somebody_and_chances_are_alike() -> None:
    """A tenth of four devices is one; 300 draws of one in four: 75 each on average, deviation 7.5."""
    assert count_devices(np.array([0, 1, 4, 25]), 0.1).tolist() == [0, 1, 1, 2]
    drawn = [draw_devices(alike(global_round=0, edge_round=0, seed=seed), 0.1, "test") for seed in range(300)]
    counts = np.sum(drawn, axis=0)
    assert (np.sum(drawn, axis=1) == CLUSTERS).all()
    assert abs(counts - 75).max() < 4.5 * 7.5


# Luo et al.


@pytest.mark.parametrize(("drawn", "expected"), [(0, 0.0), (1, 2.5), (2, 20 / 6), (3, 15 / 4), (4, 4.0)])
def test_expected_maximum_by_hand(drawn: int, expected: float) -> None:
    """Of 1, 2, 3, 4: the mean; pairs have maxima 2, 3, 3, 4, 4, 4; triples 3, 4, 4, 4."""
    assert expect_longest(np.array([1.0, 2.0, 3.0, 4.0]), drawn) == pytest.approx(expected)


def test_more_steps_where_uploads_are_dear() -> None:
    """Steps alone: 1 + b k² is least at one. Uploads of 5,000 s dwarf them: 1/k + bk is least at 1/√b = 5."""
    steps, options = np.arange(1.0, 6.0), CostEffectiveOptions(time_weight=1.0)
    assert find_cheapest(alike(nu=0.0), steps, options)[1] == 1.0
    assert find_cheapest(alike(nu=5000.0), steps, options)[1] == 5.0


def test_few_devices_where_energy_counts_and_time_does_not_depend_on_them() -> None:
    """Alike devices take the same time however many: rounds are fewest with all. Joules grow with each.

    Of four devices, 0.9 is all of them.
    """
    steps = np.arange(1.0, 6.0)
    assert find_cheapest(alike(), steps, CostEffectiveOptions(time_weight=1.0))[0] == 0.9
    assert find_cheapest(alike(), steps, CostEffectiveOptions(time_weight=0.0))[0] == 0.1
    made = plan("cost_effective", alike())
    assert np.count_nonzero(made.rho) == CLUSTERS
    assert set(made.theta.tolist()) == {0.0, 1.0}


# SD-FEEL with device heterogeneity


def test_devices_step_until_their_clusters_deadline() -> None:
    """Steps of 10, 20, 30 and 40 s, uploads of 50 s: 100, 150, 200, 250 s, so the median is 175 s.

    Within it: 5 (of 12), 5 (of 6), 4 and 3 steps. With 30 samples each, an update counts 30 per step.
    """
    mu = np.repeat([10.0, 20.0, 30.0, 40.0], CLUSTERS)
    seen = alike(mu=mu, samples=np.full(DEVICES, 30.0))
    made = plan("sd_feel_hetero", seen)
    assert (made.rho * 5).tolist() == pytest.approx(np.repeat([5.0, 5.0, 4.0, 3.0], CLUSTERS))
    assert made.theta.tolist() == [1.0] * DEVICES
    assert made.weight is not None
    assert made.weight.tolist() == pytest.approx(np.repeat([6.0, 6.0, 7.5, 10.0], CLUSTERS))
    first = plan("sd_feel_hetero", seen, options={"deadline": 0.0})
    assert (first.rho * 5).tolist() == pytest.approx(np.repeat([5.0, 2.0, 1.0, 1.0], CLUSTERS))
    gossip = build_scheme(SchemeParameters(name="sd_feel_hetero")).gossip
    assert gossip == build_scheme(SchemeParameters(name="sd_feel")).gossip


# FedLamp


def test_fedlamp_is_fedluck_within_an_equal_share_of_the_joules() -> None:
    seen = observation(share=0.6)
    assert plan("fedlamp", observation(budget=Budget())).rho.tolist() == (
        plan("fedluck", observation(budget=Budget())).rho.tolist()
    )
    made, (caps, energy) = plan("fedlamp", seen), seen.caps()
    assert (seconds(seen, made) <= caps[seen.cluster] * (1 + 1e-6)).all()
    assert (joules(seen, made) <= energy / DEVICES * (1 + 1e-6)).all()
    # 12 devices with 15 J each: one step and θ = 0.1 are 10 + 5 J.
    tight = plan("fedlamp", alike(budget=Budget(np.inf, 20 * 12 * 15.0)))
    assert (tight.rho * 5).tolist() == [1.0] * DEVICES
    assert tight.theta.tolist() == [0.1] * DEVICES


# Wang et al.


def test_the_bound_of_wang_by_hand() -> None:
    """η = ηβ = φ = 1, τ = 2, K = 4, G² = 8: h = (2² − 1) − 2 = 1, so 1/8 + √(1/64 + 8/2) + 8."""
    options = TauOptions(rate=1.0, smoothness=1.0, phi=1.0)
    assert bound_loss(options, 2.0, 4.0, 8.0) == pytest.approx(0.125 + (1 / 64 + 4) ** 0.5 + 8)
    assert bound_loss(options, 1.0, 4.0, 8.0) == pytest.approx(0.25)


def test_the_scarcer_budget_says_how_many_iterations_are_left() -> None:
    """With uploads, k steps take 10 k + 50 s and, of 12 devices, 12 (10 k + 50) J."""
    seen = alike(budget=Budget(6000.0, np.inf), gossip_seconds_left=np.zeros(CLUSTERS))
    assert count_iterations(seen, 5.0) == pytest.approx(5 * 60)
    assert count_iterations(seen, 1.0) == pytest.approx(100)
    assert count_iterations(replace(seen, budget=Budget(6000.0, 12 * 3000.0)), 5.0) == pytest.approx(5 * 30)


def test_adaptive_tau_takes_fewer_steps_as_gradients_and_their_drift_grow() -> None:
    """The dearer uploads are beside drift, the more steps; without budgets one."""
    assert set((plan("adaptive_tau", alike()).rho * 5).tolist()) == {1.0}
    found = []
    for g2 in (0.01, 1.0, 100.0):
        seen = alike(budget=Budget(20_000.0, np.inf), g2=np.full(DEVICES, g2), sigma2=np.zeros(DEVICES))
        made = plan("adaptive_tau", seen)
        assert made.theta.tolist() == [1.0] * DEVICES
        (steps,) = set((made.rho * 5).tolist())
        found.append(steps)
    assert found == sorted(found, reverse=True)
    assert found[0] == 5.0
    assert found[-1] == 1.0


# Han et al.


def test_adaptive_k_moves_to_the_side_that_learns_faster() -> None:
    """Gains 0.1 in 100 s and 0.09 in 50 s: the smaller k′ is better, so θ falls by δ₁ = width/√2."""
    low = float(np.log(0.01))
    state = {"place": -1.0, "comparisons": 0, "losses": [1.0, 0.9, 0.81, 0.8], "seconds": [100.0, 50.0, 0, 0]}
    assert find_step(0, low) == pytest.approx(-low / 2**0.5)
    assert compare_pair(state, low) == {"place": max(low, -1.0 + low / 2**0.5), "comparisons": 1}
    dearer = {**state, "seconds": [100.0, 95.0, 0, 0]}
    assert compare_pair(dearer, low) == {"place": 0.0, "comparisons": 1}
    assert compare_pair({**state, "losses": [None, 1.0, 0.9, 0.8]}, low) == {}


def test_adaptive_k_finds_where_sending_pays() -> None:
    """A loss that falls by the same however little is sent drives θ down; one that falls with θ, up."""
    for power, side in ((0.0, 0.03), (2.0, 0.3)):
        scheme = build_scheme(SchemeParameters(name="adaptive_k"))
        state, loss, theta = scheme.init(), 10.0, []
        reported: list[float] = []
        for r in range(60):
            losses = np.full(DEVICES, reported[-1]) if reported else None
            seen = alike(losses=losses, nu=5000.0, edge_round=r % 5, global_round=r // 20)
            made, state = scheme.plan(state, seen)
            # Devices report the loss of the model they started from.
            reported.append(loss)
            loss -= 0.1 * float(made.theta[0]) ** power
            theta.append(float(made.theta[0]))
        assert made.rho.tolist() == [1.0] * DEVICES
        assert (np.mean(theta[-10:]) < side) == (power == 0)


# Li et al.


def test_talk_or_work_has_the_least_energy_per_progress_of_all_pairs() -> None:
    """Devices alike: the pair of most progress per joule, 1/(1/ρ + d ρ/κ²) over (10 k + 50 θ) J."""
    made = plan("talk_or_work", alike())
    pairs = list_pairs(SchemeParameters(), alike())
    rate = 1 / (1 / pairs.rho + 0.05 * pairs.rho / pairs.kept**2) / (50 * pairs.rho + 50 * pairs.theta)
    best = int(np.argmax(rate))
    assert made.rho.tolist() == [pairs.rho[best]] * DEVICES
    assert made.theta.tolist() == [pairs.theta[best]] * DEVICES


def test_talk_or_work_lets_dear_radios_talk_less_and_all_work_alike() -> None:
    made = plan("talk_or_work", alike(power=np.where(np.arange(DEVICES) < 6, 0.1, 10.0)))
    assert len(set(made.rho.tolist())) == 1
    assert made.theta[:6].min() > made.theta[6:].max()


def test_talk_or_work_keeps_to_the_time_that_is_left() -> None:
    seen = observation(share=0.3)
    made = plan("talk_or_work", seen)
    assert made.feasible
    assert (seconds(seen, made) <= seen.caps()[0][seen.cluster] * (1 + 1e-6)).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedpaq", {"share": 0.0}),
        ("fedpaq", {"theta": 2.0}),
        ("cost_effective", {"drift": -1.0}),
        ("sd_feel_hetero", {"deadline": 101.0}),
        ("adaptive_tau", {"phi": 0.0}),
        ("adaptive_k", {"start": 0.0}),
        ("talk_or_work", {"drift": -0.1}),
    ],
)
def test_options_out_of_range_are_named(name: str, options: dict[str, Any]) -> None:
    (key,) = options
    with pytest.raises(InputError, match=rf"scheme\.options\.{key}"):
        build_scheme(SchemeParameters(name=name, options=options))
