"""HCEF+: what each of its switches changes, and that it keeps within the caps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control import Observation, RoundPlan, SchemeParameters, build_scheme, round_caps
from cfel.control.list_solver import THETA_LIST as LIST
from cfel.control.schemes.hcef_plus import DELAY, SWITCHES, value_batches, value_steps, value_uploads
from cfel.cost import device_joules, device_seconds, open_ledger
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
    theirs = build_scheme(SchemeParameters("hcef"))
    hcef = theirs.plan(theirs.init(), seen)[0]
    made = plan(seen)
    assert made.rho.mean() > hcef.rho.mean()
    assert made.theta.mean() < hcef.theta.mean()


def test_with_everything_off_it_is_p2_on_a_list() -> None:
    """The objective is P2's over σ² + G², so it cannot be below HCEF's certified bound by more than that."""
    seen = observation()
    theirs = build_scheme(SchemeParameters("hcef", theta_min=0.01))
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
    off = build_scheme(SchemeParameters(name="hcef_plus", options=OFF, steps="local"))
    assert on.device_overrides.steps == "small_batches"
    assert on.device_overrides.error_feedback
    assert on.device_overrides.kept_energy_at == LIST
    assert on.gossip.every_edge_round
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
        ({"time_weight": 1.0}, r"scheme.options.time_weight"),
        ({"least_batch": 1.5}, r"scheme.options.least_batch"),
        ({"local_steps": 0}, r"scheme.options.local_steps"),
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


def plan_batches(seen: Observation, **options: Any) -> RoundPlan:
    return plan(replace(seen, small_batches=BatchShares(50)), **options)


def count_samples(made: RoundPlan) -> np.ndarray:
    assert made.local_steps is not None
    return BatchShares(50).find_part(made.rho * ROUNDS.local_steps / made.local_steps) * 50


def test_noise_asks_for_larger_batches() -> None:
    """Gradients that are eight times as noisy need larger batches, at the same number of steps."""
    calm, noisy = (
        plan_batches(
            replace(observation(share=2.0), sigma2=np.full(DEVICES, sigma2), g2=np.ones(DEVICES)),
            local_steps=2,
        )
        for sigma2 in (0.2, 1.6)
    )
    assert calm.local_steps == noisy.local_steps == 2
    assert count_samples(calm).mean() < 0.5 * count_samples(noisy).mean()


def test_more_devices_in_a_cluster_allow_smaller_batches() -> None:
    """Twelve devices in one cluster average more noise away than in three."""
    seen = replace(observation(share=2.0), sigma2=np.ones(DEVICES), g2=np.ones(DEVICES))
    several = plan_batches(seen, local_steps=2)
    ledger = open_ledger(1)
    one = replace(
        seen, cluster=np.zeros(DEVICES, dtype=np.intp), ledger=ledger, gossip_seconds_left=np.zeros(1)
    )
    assert count_samples(plan_batches(one, local_steps=2)).mean() < count_samples(several).mean()


def test_slow_exchanges_ask_for_more_local_steps() -> None:
    """Gossip that takes long is paid for once per edge round, however many steps that has."""
    quick, slow = (
        plan_batches(replace(observation(share=50.0), exchange_seconds=seconds)) for seconds in (0.0, 1e5)
    )
    assert quick.local_steps is not None
    assert slow.local_steps is not None
    assert quick.local_steps < slow.local_steps


def test_steps_stay_within_a_global_round() -> None:
    scheme = build_scheme(SchemeParameters("hcef_plus"))
    seen = replace(observation(share=50.0), small_batches=BatchShares(50))
    first, state = scheme.plan(scheme.init(), seen)
    later, _ = scheme.plan(state, replace(seen, edge_round=1, exchange_seconds=1e5))
    assert later.local_steps == first.local_steps


def test_the_scarcer_budget_weighs_more() -> None:
    """With little time left in proportion, the weight of time rises for the next plan, and vice versa."""
    scheme = build_scheme(SchemeParameters("hcef_plus"))
    seen = replace(observation(share=2.0), small_batches=BatchShares(50))
    weights = [
        scheme.plan(scheme.init(), replace(seen, budget=replace(seen.budget, **changed)))[1]["time_weight"]
        for changed in ({"joules": 10 * seen.budget.joules}, {}, {"seconds": 10 * seen.budget.seconds})
    ]
    assert 0.9 >= weights[0] > weights[1] > weights[2] >= 0.5


@pytest.mark.parametrize(("count", "worth"), [(1, 1.0), (2, 2.0), (3, 2.5), (5, 2.875)])
def test_later_steps_are_worth_less(count: int, worth: float) -> None:
    assert value_steps(count) == worth


def test_late_and_noisy_updates_are_worth_less() -> None:
    """Half of the energy sent at a time arrives one edge round late; noise of 1 halves a step."""
    assert value_uploads(np.array([0.5, 1.0])).tolist() == [DELAY, 1.0]
    assert value_batches(np.array([0.0, 1.0, 2.0])).tolist() == [1.0, 0.5, 1 / 9]


def test_small_batches_need_a_batch() -> None:
    """How small they may be is a matter of whole samples: no batch size is made up."""
    scheme = build_scheme(SchemeParameters("hcef_plus", steps="small_batches"))
    with pytest.raises(InputError, match=r"'small_batches': .*full batch"):
        scheme.plan(scheme.init(), observation())


def with_slow_device(times: float, number: int = 0) -> Observation:
    """Twelve devices with small batches, the first of which computes and sends so many times slower."""
    global_round, edge_round = divmod(number, ROUNDS.edge_rounds)
    seen = observation(share=1.0)
    seen = replace(seen, small_batches=BatchShares(50), global_round=global_round, edge_round=edge_round)
    now = seen.conditions
    slow = np.where(np.arange(DEVICES) == 0, times, 1.0)
    alike = {name: np.full(DEVICES, getattr(now, name).mean()) * slow for name in ("mu", "nu")}
    return replace(seen, conditions=replace(now, **alike))


@pytest.mark.parametrize(("times", "taking_part"), [(1.1, 12), (1.5, 11), (9.0, 11)])
def test_a_device_that_keeps_the_others_waiting_is_left_out(times: float, taking_part: int) -> None:
    """(11/12)² = 0.84, so a device may take 1/0.84 = 1.19 times as long as the others."""
    assert (plan(with_slow_device(times)).rho > 0).sum() == taking_part


def test_slow_devices_are_waited_for_every_tenth_edge_round() -> None:
    """The tenth edge round is number 9; a device that is more than ten times slower is left out even then."""
    assert (plan(with_slow_device(9.0, number=9)).rho > 0).all()
    assert plan(with_slow_device(11.0, number=9)).rho[0] == 0.0


def test_batches_shrink_with_the_learning_rate() -> None:
    """A quarter of the rate does as much harm with a quarter of the samples."""
    seen = replace(observation(share=2.0), sigma2=np.full(DEVICES, 1.6), g2=np.ones(DEVICES))
    first, later = (plan_batches(replace(seen, rate=rate), local_steps=2) for rate in (1.0, 0.25))
    assert count_samples(later).mean() < 0.5 * count_samples(first).mean()
