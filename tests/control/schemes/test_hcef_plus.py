"""HCEF+: what each of its switches changes, and that it keeps within the caps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control import Observation, RoundPlan, SchemeParameters, build_scheme, round_caps
from cfel.control.list_solver import THETA_LIST as LIST
from cfel.control.schemes.hcef_plus import SWITCHES
from cfel.cost import device_joules, device_seconds
from cfel.errors import InputError
from cfel.system.batch_shares import BatchShares
from tests.control.schemes.test_schemes import DEVICES, ROUNDS, observation

OFF = dict.fromkeys(SWITCHES, False)


def plan(seen: Observation, **options: Any) -> RoundPlan:
    scheme = build_scheme(SchemeParameters(name="hcef_plus", options=options))
    return scheme.plan(scheme.init(), seen)[0]


def caps(seen: Observation) -> tuple[np.ndarray, float]:
    return round_caps(seen.budget, seen.ledger, seen.rounds, 0, 0, seen.gossip_seconds_left)


def spent(seen: Observation, made: RoundPlan) -> tuple[np.ndarray, float]:
    now, tau = made.apply_speed(seen.conditions), ROUNDS.local_steps
    seconds = device_seconds(made.rho, made.theta, tau, now.mu, now.nu)
    joules = device_joules(made.rho, made.theta, tau, now.alpha, now.nu, now.power)
    return seconds, float(joules.sum())


def test_both_caps_are_kept_at_the_clocks_of_the_plan() -> None:
    seen = observation()
    made = plan(seen)
    seconds, joules = spent(seen, made)
    time_cap, energy_cap = caps(seen)
    assert made.feasible
    assert (seconds <= time_cap[seen.cluster] * (1 + 1e-8)).all()
    assert joules <= energy_cap * (1 + 1e-8)
    assert np.isin(made.theta, LIST).all()


def test_it_computes_more_and_sends_less_than_hcef() -> None:
    seen = observation()
    theirs = build_scheme(SchemeParameters())
    hcef = theirs.plan(theirs.init(), seen)[0]
    made = plan(seen)
    assert made.rho.mean() > hcef.rho.mean()
    assert made.theta.mean() < hcef.theta.mean()


def test_with_everything_off_it_is_p2_on_a_list() -> None:
    """The objective is P2's over σ² + G², so it cannot be below HCEF's certified bound by more than that."""
    seen = observation()
    theirs = build_scheme(SchemeParameters(theta_min=0.01))
    hcef = theirs.plan(theirs.init(), seen)[0]
    made = plan(seen, **OFF)
    scale = made.sigma2 + made.g2
    assert made.objective * scale >= hcef.lower_bound * (1 - 1e-9)
    # Twelve devices in whole steps of a fifth each cannot use an energy cap up to the last joule.
    assert made.objective * scale <= hcef.objective * 1.05
    assert made.speed is not None
    assert (made.speed == 1.0).all()


def test_a_measured_curve_moves_theta() -> None:
    """Updates that a hundredth of the entries carries need no more; flat ones are sent nearly whole."""
    steep, flat = np.ones(len(LIST)), np.array(LIST)
    sent = [
        plan(replace(observation(share=0.9), kept_energy=curve), error_feedback=False).theta.mean()
        for curve in (steep, flat)
    ]
    assert sent[0] < 0.1 < sent[1]


def test_without_frequency_clocks_are_full_and_progress_is_less() -> None:
    seen = observation()
    fixed, free = plan(seen, frequency=False), plan(seen)
    assert fixed.speed is not None
    assert free.speed is not None
    assert (fixed.speed == 1.0).all()
    assert (free.speed < 1.0).any()
    assert free.objective < fixed.objective


def test_overrides_and_gossip_follow_the_switches() -> None:
    on = build_scheme(SchemeParameters(name="hcef_plus"))
    off = build_scheme(SchemeParameters(name="hcef_plus", options=OFF))
    assert on.device_overrides.steps == "whole"
    assert on.device_overrides.error_feedback
    assert on.device_overrides.kept_energy_at == LIST
    assert on.gossip.every_edge_round
    assert off.device_overrides.steps is None
    assert off.device_overrides.error_feedback is None
    assert off.device_overrides.kept_energy_at == ()
    assert not off.gossip.every_edge_round


def test_devices_that_are_absent_do_nothing() -> None:
    made = plan(observation(away=(0, 5)))
    assert made.rho[[0, 5]].tolist() == made.theta[[0, 5]].tolist() == [0.0, 0.0]
    assert plan(observation(away=tuple(range(DEVICES)))).rho.tolist() == [0.0] * DEVICES


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"progres": True}, r"scheme.options.*progres.*progress"),
        ({"curve": 1}, r"scheme.options.curve = 1:"),
        ({"least_speed": 0.0}, r"scheme.options.least_speed"),
        ({"horizon": -1.0}, r"scheme.options.horizon"),
        ({"least_batch": 1.5}, r"scheme.options.least_batch"),
        ({"noise": -1}, r"scheme.options.noise"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build_scheme(SchemeParameters(name="hcef_plus", options=options))


def test_caps_are_limits_not_targets() -> None:
    """With caps to spare the plan leaves time unused; without `efficiency` slow clocks fill it."""
    seen = observation(share=2.0)
    whole, filled = plan(seen), plan(seen, efficiency=False)
    steps = whole.rho * ROUNDS.local_steps
    assert np.array_equal(steps, np.round(steps))
    assert whole.feasible
    assert spent(seen, whole)[0].max() < 0.8 * spent(seen, filled)[0].max()
    time_cap, energy_cap = caps(seen)
    assert (spent(seen, whole)[0] <= time_cap[seen.cluster] * (1 + 1e-8)).all()
    assert spent(seen, whole)[1] <= energy_cap * (1 + 1e-8)


def test_noise_asks_for_larger_batches() -> None:
    """Slow devices use smaller batches than fast ones; all of them larger ones when gradients are noisier."""
    seen = replace(observation(share=2.0), small_batches=BatchShares(50))
    scheme = build_scheme(SchemeParameters("hcef_plus", steps="small_batches", options={"noise": 1.0}))
    calm, noisy = (
        scheme.plan(scheme.init(), replace(seen, sigma2=np.full(DEVICES, sigma2), g2=np.ones(DEVICES)))[0]
        for sigma2 in (0.5, 4.0)
    )
    assert scheme.device_overrides.steps == "small_batches"
    assert calm.rho.mean() < noisy.rho.mean()
    pace = np.argsort(seen.conditions.mu)
    assert calm.rho[pace[: DEVICES // 2]].mean() >= calm.rho[pace[DEVICES // 2 :]].mean()
    listed = BatchShares(50).list_shares(0.2)
    assert np.isclose(calm.rho[:, None], listed).any(axis=1).all()


def test_small_batches_need_a_batch() -> None:
    """How small they may be is a matter of whole samples: no batch size is made up."""
    scheme = build_scheme(SchemeParameters("hcef_plus", steps="small_batches"))
    with pytest.raises(InputError, match=r"'small_batches': .*full batch"):
        scheme.plan(scheme.init(), observation())


def test_rho_min_also_holds_for_small_batches() -> None:
    seen = replace(observation(share=2.0), small_batches=BatchShares(50))
    for rho_min in (0.8, 1.0):
        scheme = build_scheme(SchemeParameters("hcef_plus", rho_min=rho_min, steps="small_batches"))
        assert (scheme.plan(scheme.init(), seen)[0].rho >= rho_min).all()
