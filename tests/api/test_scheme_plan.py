"""Any scheme plans a fleet outside a simulation as it does in the first round of one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cfel
from cfel.control import SchemeParameters, Setting, build_scheme
from cfel.control.scheme import Observation, RoundPlan, Scheme, stateless
from cfel.control.schemes import SCHEMES
from cfel.errors import InputError
from cfel.plugins import parse_variants
from cfel.rounds.dry_run import dry_run
from cfel.system.batch_shares import BatchShares

DEVICES = Path(__file__).parents[2] / "examples" / "devices.csv"
CAPS: Any = {"time_cap": 450, "energy_cap": 300}
VARIANTS = ("hcef+whole_steps", "hcef+slow_clocks", "hcef_plus+small_batches", "cef_f+small_batches")


@pytest.fixture(scope="module")
def setting() -> Setting:
    """A run of three rounds, without the time of gossip, of which a table of devices knows nothing."""
    experiment = cfel.Experiment(
        seed=3,
        rounds={"global": 3, "edge": 2, "local": 4},
        fleet={"devices": 12, "clusters": [5, 4, 3], "conditions": {"clock_static": 0.2}},
        budget={"share_of_cef": 0.6},
    )
    whole = experiment.build_world().setting
    return replace(whole, fleet=replace(whole.fleet, samples=None), backhaul_seconds=np.zeros(3))


@pytest.mark.parametrize("scheme", [*SCHEMES, *VARIANTS])
def test_the_plan_is_that_of_a_first_round(setting: Setting, scheme: str) -> None:
    small = scheme.endswith("small_batches")
    run = replace(
        setting,
        scheme=build_scheme(SchemeParameters(**parse_variants(scheme))),
        small_batches=BatchShares(40) if small else None,
    )
    first = next(dry_run(run, sigma2=2.0, g2=0.5))
    (plan, *_), (now, *_) = first.plans, first.conditions
    table = {name: getattr(now, name) for name in ("mu", "alpha", "nu", "power", "clock_static")}
    options: Any = {} if scheme == "hcef" else {"seed": run.seed, **({"batch": 40} if small else {})}
    found = cfel.plan(
        {**table, "cluster": run.fleet.cluster},
        tau=4,
        sigma2=2.0,
        g2=0.5,
        time_budget=run.budget.seconds,
        energy_budget=run.budget.joules,
        rounds=3,
        edge_rounds=2,
        scheme=scheme,
        **options,
    )
    assert np.array_equal(found.rho, plan.rho)
    assert np.array_equal(found.theta, plan.theta)
    assert np.array_equal(found.speed, np.ones(12) if plan.speed is None else plan.speed)
    assert (found.objective, found.gap) == pytest.approx((plan.objective, plan.gap), nan_ok=True)
    assert found.scheme == scheme


def test_slower_clocks_take_longer_and_less_energy() -> None:
    slow, full = (
        cfel.plan(DEVICES, **CAPS, scheme="hcef_plus", scheme_options={"frequency": on})
        for on in (True, False)
    )
    assert (full.speed == 1).all()
    assert (slow.speed < 1).any()
    assert slow.joules < full.joules
    assert slow.columns["speed"] == slow.speed.tolist()
    assert slow.to_document()["speed"] is slow.speed
    static = cfel.plan(
        {**_read_columns(), "clock_static": [1.0] * len(slow.devices)}, **CAPS, scheme="hcef_plus"
    )
    assert static.joules > slow.joules


def _read_columns() -> dict[str, Any]:
    columns = cfel.plan(DEVICES).named
    problem = columns.problem
    return {
        **{name: getattr(problem, name).tolist() for name in ("mu", "alpha", "nu", "power")},
        "cluster": problem.cluster.tolist(),
    }


def test_clusters_may_have_caps_of_their_own() -> None:
    caps = [300.0, 450.0, 400.0]
    plan = cfel.plan(_read_columns(), time_cap=caps, scheme="hcef+whole_steps")
    seconds = [plan.solution.device_seconds[plan.named.problem.cluster == i].max() for i in range(3)]
    assert (np.array(seconds) <= np.multiply(caps, 1 + 1e-9)).all()
    assert plan.feasible
    assert not cfel.plan(_read_columns(), time_cap=300, scheme="cef").feasible


def test_a_scheme_that_ignores_the_caps_does_not_meet_them() -> None:
    plan = cfel.plan(DEVICES, **CAPS, scheme="cef")
    assert plan.violations[0].startswith("cluster plant: may take 450 s, the plan takes 667")
    assert plan.violations[-1].startswith("energy cap 300 J: the plan takes 547")
    assert set(plan.limited_by) == {"full"}


def _half(_: SchemeParameters) -> Scheme:
    def plan(observation: Observation) -> RoundPlan:
        half = np.full(len(observation.cluster), 0.5)
        half[0] = 0.0
        return RoundPlan(half, half)

    return stateless(plan)


def test_a_scheme_of_ones_own() -> None:
    plan = cfel.plan(DEVICES, **CAPS, scheme=_half)
    assert plan.rho.tolist() == plan.theta.tolist() == [0.0] + [0.5] * 19
    assert plan.limited_by[0] == "idle"
    assert "no proof" in repr(plan)
    named = cfel.plan(DEVICES, **CAPS, scheme=f"{__name__}:_half")
    assert np.array_equal(named.rho, plan.rho)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "hecf"}, "scheme: unknown 'hecf'"),
        ({"scheme": "hcef_plus", "scheme_options": {"speed": 1}}, "speed"),
        ({"scheme": "hcef_plus+small_batches"}, "batch: required with small batches"),
        ({"scheme": "hcef_plus+whole_steps", "batch": 50}, "batch: only with small batches"),
        ({"scheme": "hcef_plus", "method": "alternating", "start": 0.5}, "start: only with the scheme hcef"),
        ({"scheme": "hcef", "seed": 1}, "seed: only with another scheme"),
        ({"scheme": "cef", "energy_cap": -1.0}, r"energy_cap = -1\.0: must be"),
        ({"scheme": "cef", "time_cap": [1.0, np.inf, np.inf]}, "time_cap: .* all clusters"),
        ({"scheme": "cef_f", "rho_min": np.linspace(0.1, 0.2, 20)}, "rho_min: one value per device"),
    ],
)
def test_what_a_scheme_cannot_plan(options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        cfel.plan(_read_columns(), **options)
