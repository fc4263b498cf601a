"""The schemes: what each pins, what each minds, and that a plan is a pure function."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control import (
    SCHEMES,
    Budget,
    Observation,
    RoundPlan,
    RoundProblem,
    Rounds,
    SchemeParameters,
    build_scheme,
    round_caps,
    solve,
)
from cfel.cost import Ledger, open_ledger
from cfel.errors import InputError
from cfel.plugins import ANY_CODE
from cfel.system.conditions import Conditions
from tests.control.instances import CIFAR, full_joules, full_seconds, paper_devices

DEVICES, CLUSTERS = 12, 3
ROUNDS = Rounds(global_rounds=4, edge_rounds=5, local_steps=5)


def observation(share: float = 0.6, away: tuple[int, ...] = (), **fields: Any) -> Observation:
    """The start of a run of a dozen CIFAR-like devices, with a share of what CEF would use as budget."""
    fleet = paper_devices(np.random.default_rng(11), CIFAR, DEVICES)
    present = np.ones(DEVICES, dtype=bool)
    present[list(away)] = False
    edge_rounds = ROUNDS.edge_rounds_left(0, 0)
    given: dict[str, Any] = {
        "global_round": 0,
        "edge_round": 0,
        "rounds": ROUNDS,
        "conditions": Conditions(*fleet, available=present),
        "cluster": np.arange(DEVICES) % CLUSTERS,
        "sigma2": np.linspace(0.1, 0.3, DEVICES),
        "g2": np.linspace(1.5, 0.5, DEVICES),
        "ledger": open_ledger(CLUSTERS),
        "budget": Budget(
            share * edge_rounds * float(full_seconds(fleet).max()),
            share * edge_rounds * float(full_joules(fleet).sum()),
        ),
        "gossip_seconds_left": np.full(CLUSTERS, 0.2),
    }
    return Observation(**(given | fields))


def plan(name: str, seen: Observation, **parameters: Any) -> RoundPlan:
    scheme = build_scheme(SchemeParameters(name=name, **parameters), ANY_CODE)
    return scheme.plan(scheme.init(), seen)[0]


def joules(seen: Observation, made: RoundPlan) -> np.ndarray:
    at = seen.conditions
    return np.asarray(made.rho * 5 * at.alpha + at.power * made.theta * at.nu)


def seconds(seen: Observation, made: RoundPlan) -> np.ndarray:
    return np.asarray(made.rho * 5 * seen.conditions.mu + made.theta * seen.conditions.nu)


def test_the_schemes_that_come_with_it() -> None:
    papers = {"hcef", "cef", "cef_f", "cef_c", "mll_sgd"}
    others = {"fedavg", "hier_fedavg", "p_fedavg", "sd_feel"}
    assert papers | others <= set(SCHEMES)


def test_hcef_solves_p2_within_the_caps_of_the_round() -> None:
    """σ² and G² are the means of 0.1 … 0.3 and 1.5 … 0.5: 0.2 and 1."""
    seen = observation()
    made = plan("hcef", seen)
    caps, energy = round_caps(seen.budget, seen.ledger, ROUNDS, 0, 0, seen.gossip_seconds_left)
    at = seen.conditions
    exact = solve(
        RoundProblem(
            tau=5,
            sigma2=0.2,
            g2=1.0,
            mu=at.mu,
            alpha=at.alpha,
            nu=at.nu,
            power=at.power,
            cluster=seen.cluster,
            time_cap=caps,
            energy_cap=energy,
        )
    )
    assert (made.sigma2, made.g2) == pytest.approx((0.2, 1.0))
    assert made.objective == pytest.approx(exact.objective, rel=1e-6)
    assert made.feasible
    assert made.violations == ()
    assert (seconds(seen, made) <= caps[seen.cluster] * (1 + 1e-9)).all()
    assert joules(seen, made).sum() <= energy * (1 + 1e-9)
    assert made.gap == pytest.approx((made.objective - made.lower_bound) / made.lower_bound)


def test_hcef_may_use_algorithm_3() -> None:
    seen = observation()
    joint, alternating = plan("hcef", seen), plan("hcef", seen, solver="alternating")
    assert alternating.objective >= joint.lower_bound
    assert joint.objective <= alternating.objective * (1 + 1e-4)


@pytest.mark.parametrize("share", [0.01, 0.6, 5.0])
def test_cef_does_everything_whatever_the_budget(share: float) -> None:
    made = plan("cef", observation(share, battery=np.zeros(DEVICES)))
    assert made.rho.tolist() == made.theta.tolist() == [1.0] * DEVICES
    assert made.feasible
    assert made.gap == pytest.approx(0.0, abs=1e-12)


def test_cef_c_pins_the_update_frequency_and_stretches_the_time() -> None:
    """Every step alone takes more than 60 % of CEF's time on slow devices, so the cap gives way."""
    made = plan("cef_c", observation())
    assert made.rho.tolist() == [1.0] * DEVICES
    assert made.theta.min() >= 0.01
    assert made.theta.min() < 1.0
    assert not made.feasible
    assert all("time cap" in words or "energy cap" in words for words in made.violations)


def test_cef_f_pins_the_compression() -> None:
    seen = observation()
    made = plan("cef_f", seen)
    assert made.theta.tolist() == [1.0] * DEVICES
    assert (made.rho >= 0.1).all()
    assert made.rho.max() < 1.0
    assert made.feasible


def test_mll_sgd_lets_the_fastest_always_step() -> None:
    seen = observation(share=0.01)
    mu = seen.conditions.mu
    made = plan("mll_sgd", seen)
    assert made.rho == pytest.approx(mu.min() / mu)
    assert made.rho.max() == 1.0
    assert made.theta.tolist() == [1.0] * DEVICES
    assert made.feasible


def test_mll_sgd_measures_speed_against_those_present() -> None:
    everybody = observation()
    fastest = int(np.argmin(everybody.conditions.mu))
    made = plan("mll_sgd", observation(away=(fastest,)))
    assert made.rho[fastest] == 0.0
    assert made.rho.max() == 1.0


def test_mll_sgd_literally() -> None:
    """α = 1, 2, 4 J: 1/α sums to 7/4, so ρ = 4/7, 2/7, 1/7."""
    assert literal_rho([1.0, 2.0, 4.0]) == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_mll_sgd_literally_with_free_steps() -> None:
    """A free step counts as the cheapest that is not; if all are free, all are equal."""
    assert literal_rho([0.0, 2.0, 4.0]) == pytest.approx([0.4, 0.4, 0.2])
    assert literal_rho([0.0] * 8) == pytest.approx([1 / 8] * 8)


def literal_rho(alpha: list[float]) -> np.ndarray:
    """ρ of as many devices, all in one cluster."""
    ones = np.ones(len(alpha))
    seen = observation(
        conditions=Conditions(ones, np.array(alpha), ones, ones, ones > 0),
        cluster=np.zeros(len(alpha), dtype=int),
        sigma2=ones,
        g2=ones,
    )
    return plan("mll_sgd", seen, options={"literal": True}).rho


@pytest.mark.parametrize("name", SCHEMES)
def test_absent_devices_do_nothing(name: str) -> None:
    """Devices 0, 3, 6, 9 are all of cluster 0; device 4 is from cluster 1."""
    away = [0, 3, 4, 6, 9]
    made = plan(name, observation(away=tuple(away)))
    assert made.rho[away].tolist() == made.theta[away].tolist() == [0.0] * 5
    present = np.delete(np.arange(DEVICES), away)
    # Some leave out devices that are there.
    everybody = name not in ("oort", "fedpaq", "cost_effective")
    assert (made.rho[present] > 0).all() == (made.theta[present] > 0).all() == everybody


@pytest.mark.parametrize("name", SCHEMES)
def test_round_without_any_device(name: str) -> None:
    made = plan(name, observation(away=tuple(range(DEVICES))))
    assert made.rho.tolist() == made.theta.tolist() == [0.0] * DEVICES
    assert (made.objective, made.gap, made.feasible, made.violations) == (0.0, 0.0, True, ())


def test_estimates_of_absent_devices_do_not_count() -> None:
    """Without device 0 nothing is left of its absurd estimates."""
    sigma2, g2 = np.full(DEVICES, 2.0), np.full(DEVICES, 3.0)
    sigma2[0] = g2[0] = 1e9
    made = plan("hcef", observation(away=(0,), sigma2=sigma2, g2=g2))
    assert (made.sigma2, made.g2) == (2.0, 3.0)


def test_gradient_estimate_has_a_floor() -> None:
    """Negative on average: held at 2 % of σ²; a negative σ² counts as 0."""
    made = plan("hcef", observation(sigma2=np.full(DEVICES, 5.0), g2=np.full(DEVICES, -1.0)))
    assert (made.sigma2, made.g2) == pytest.approx((5.0, 0.1))
    made = plan("hcef", observation(sigma2=np.full(DEVICES, -5.0), g2=np.full(DEVICES, 1.0)))
    assert (made.sigma2, made.g2) == (0.0, 1.0)


def test_battery_is_made_to_last() -> None:
    """20 edge rounds to go: of 20 J no more than one now."""
    battery = np.full(DEVICES, np.inf)
    battery[2] = 20.0
    seen = observation(share=2.0, battery=battery)
    assert joules(seen, plan("hcef", observation(share=2.0)))[2] > 1.0
    made = plan("hcef", seen)
    assert joules(seen, made)[2] <= 1.0 * (1 + 1e-9)
    assert made.feasible


def test_low_battery_is_named_by_its_number_in_the_fleet() -> None:
    """Device 7, although 0 and 4 are away."""
    battery = np.full(DEVICES, np.inf)
    battery[7] = 1e-6
    made = plan("hcef", observation(away=(0, 4), battery=battery))
    assert [words.split(":")[0] for words in made.violations] == ["device 7"]
    assert (made.rho[7], made.theta[7]) == pytest.approx((0.1, 0.01))


def test_what_was_overspent_is_missing_later() -> None:
    """In the last global round with 2 % over budget: lower bounds for all, and the plan says so."""
    seen = observation()
    spent = Ledger(1.02 * seen.budget.seconds, 1.02 * seen.budget.joules, (0.0,) * CLUSTERS, 0.0)
    made = plan("hcef", replace(seen, ledger=spent, global_round=3))
    assert made.rho == pytest.approx(np.full(DEVICES, 0.1))
    assert made.theta == pytest.approx(np.full(DEVICES, 0.01))
    assert not made.feasible
    assert len(made.violations) == CLUSTERS + 1


@pytest.mark.parametrize("name", SCHEMES)
def test_plan_is_pure_and_its_state_is_json(name: str) -> None:
    scheme = build_scheme(SchemeParameters(name=name))
    seen = observation()
    state = scheme.init()
    first, after = scheme.plan(state, seen)
    second, again = build_scheme(SchemeParameters(name=name)).plan(state, observation())
    assert first.rho.tolist() == second.rho.tolist()
    assert first.theta.tolist() == second.theta.tolist()
    assert (first.objective, first.violations) == (second.objective, second.violations)
    assert json.loads(json.dumps(dict(after))) == again == dict(after)
    assert scheme.init() == state


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_states_whether_it_chooses_theta(name: str) -> None:
    """The others send everything even where budgets are tight; with θ_min = 1 nobody has a choice."""
    choosing = (
        *("hcef", "hcef_plus", "cef_c", "anycost", "fedluck", "nori", "static"),
        *("fedlamp", "fedpaq", "adaptive_k", "talk_or_work"),
    )
    assert build_scheme(SchemeParameters(name=name)).chooses_theta == (name in choosing)
    pinned = {"options": {"theta": 1.0}} if name in ("static", "fedpaq") else {"theta_min": 1.0}
    assert not build_scheme(SchemeParameters(name=name, **pinned)).chooses_theta
    theta = plan(name, observation(share=0.3)).theta
    assert name in choosing or set(theta.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("name", "nearest"), [("hcfe", "hcef"), ("cef-c", "cef_c"), ("cef-f", "cef_f"), ("mllsgd", "mll_sgd")]
)
def test_unknown_scheme_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{nearest}'"):
        build_scheme(SchemeParameters(name=name))


def test_scheme_from_a_module() -> None:
    made = plan("cfel.control.schemes.anycost:anycost", observation())
    assert made.rho.tolist() == plan("anycost", observation()).rho.tolist()


@pytest.mark.parametrize(
    "name", ["no_such_module:cef", "cfel.control.schemes:no_such_function", "cfel.control.caps:np", ":"]
)
def test_scheme_that_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(InputError, match="scheme: ") as raised:
        build_scheme(SchemeParameters(name=name), ANY_CODE)
    assert name in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rho_min": 0.0}, r"scheme\.rho_min = 0"),
        ({"rho_min": 1.5}, r"scheme\.rho_min = 1\.5"),
        ({"theta_min": -0.1}, r"scheme\.theta_min"),
        ({"noise_weight": np.nan}, r"scheme\.noise_weight"),
        ({"solver": "alternate"}, "did you mean 'alternating'"),
        ({"on_unreachable": "minimal"}, "did you mean 'minimum'"),
    ],
)
def test_bad_parameters_are_rejected(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SchemeParameters(**fields)


@pytest.mark.parametrize("name", ["hcef", "hcef_plus", "cef_f"])
def test_a_device_in_a_deep_fade_is_left_out_and_forces_nobody_to_the_lower_bounds(name: str) -> None:
    """A hundredth of device 4's upload takes more energy than all devices have in the round."""
    seen = observation()
    nu = np.where(np.arange(DEVICES) == 4, 1e9, seen.conditions.nu)
    faded = replace(seen, conditions=replace(seen.conditions, nu=nu))
    made, without = plan(name, faded), plan(name, observation(away=(4,)))
    assert (made.rho[4], made.theta[4]) == (0, 0)
    assert made.violations[0].startswith("device 4: its lower bounds need")
    # Only σ² and G² of device 4 still count: the others are planned as without it, up to these.
    assert made.rho.mean() == pytest.approx(without.rho.mean(), rel=0.05)
    assert made.theta.mean() == pytest.approx(without.theta.mean(), rel=0.05)
