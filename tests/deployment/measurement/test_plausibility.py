"""What one of eight devices reports about itself changes no more for the others than its absence would."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfel.control.caps import Budget, Rounds
from cfel.control.scheme import Observation, RoundPlan, SchemeParameters
from cfel.control.schemes import build_scheme
from cfel.cost import Ledger, open_ledger
from cfel.deployment.measurement.measured_rounds import FederationMeasurements, apply_reports
from cfel.deployment.measurement.plausibility import (
    FAST_STEPS,
    LONG_TRAINING,
    ROUND_JOULES,
    SENDING_WATTS,
    SLOW_STEPS,
    SLOW_UPLOAD,
    STEP_JOULES,
    BoundedReports,
    Doubts,
    ObservedWork,
    bound_reports,
)
from cfel.deployment.protocol.device_requests import (
    MOST_JOULES,
    MOST_SECONDS,
    MOST_WATTS,
    MeasurementReport,
)
from cfel.system.conditions import Conditions

DEVICES, LIAR, TAU, SPREAD = 8, 7, 10, 4.0
CLUSTER = np.repeat([0, 1], 4)
MOST = {
    "mu": MOST_SECONDS,
    "alpha": MOST_JOULES,
    "nu": MOST_SECONDS,
    "power": MOST_WATTS,
    "seconds": MOST_SECONDS,
    "joules": MOST_JOULES,
}
TOLERANCE = 0.15
"""Of ρ and θ: about what one device of eight takes from a budget."""


def modelled(**columns: Any) -> Conditions:
    """Eight alike, and a model that is wrong about them by a factor of 100."""
    ones = np.ones(DEVICES)
    values = {"mu": 100.0 * ones, "alpha": 0.02 * ones, "nu": 300.0 * ones, "power": 0.01 * ones, **columns}
    return Conditions(**values, available=ones > 0)


def honest(device: int) -> MeasurementReport:
    """Devices differ by up to 30 %."""
    mu, alpha = 1.0 + 0.04 * device, 2.0 - 0.05 * device
    return MeasurementReport(mu, alpha, 3.0 + 0.1 * device, 1.0, TAU * mu, TAU * alpha, "clock", "rapl")


def observe_work(device: int, share: float = 0.1) -> ObservedWork:
    """All steps taken and a share of the model sent, with a second of other things."""
    report = honest(device)
    return ObservedWork(report.seconds + share * report.nu + 1.0, TAU, TAU, share)


REPORTS = {n: honest(n) for n in range(DEVICES)}
OBSERVED = {n: observe_work(n) for n in range(DEVICES)}
NOTHING = FederationMeasurements((None,) * DEVICES)


def bound(
    changes: Mapping[str, float], model: Conditions | None = None, share: float = 0.1
) -> tuple[dict[int, MeasurementReport], list[tuple[int, str]]]:
    """The reports of all, with the liar's changed."""
    usual = model or modelled()
    fresh = {**REPORTS, LIAR: msgspec.structs.replace(REPORTS[LIAR], **changes)}
    observed = {n: observe_work(n, share) for n in range(DEVICES)}
    return read(bound_reports(fresh, NOTHING, observed, usual, usual, SPREAD))


def read(found: BoundedReports) -> tuple[dict[int, MeasurementReport], list[tuple[int, str]]]:
    """The reports, and what was implausible."""
    return found.reports, found.reasons


def plan(
    name: str, reports: Mapping[int, MeasurementReport], *, ledger: Ledger | None = None, absent: bool = False
) -> RoundPlan:
    """The plan of the next edge round, with budgets that leave about half of everything."""
    conditions = apply_reports([reports.get(n) for n in range(DEVICES)], modelled())
    if absent:
        conditions = conditions.without(np.arange(DEVICES) == LIAR)
    observation = Observation(
        global_round=1,
        edge_round=0,
        rounds=Rounds(30, 1, TAU),
        conditions=conditions,
        cluster=CLUSTER,
        sigma2=np.full(DEVICES, 0.5),
        g2=np.ones(DEVICES),
        ledger=ledger or open_ledger(2),
        budget=Budget(29 * 9.0, 29 * 80.0),
        gossip_seconds_left=np.zeros(2),
        full_clocks=True,
    )
    scheme = build_scheme(SchemeParameters(name))
    return scheme.plan(scheme.init(), observation)[0]


@cache
def plan_without_lies(name: str) -> tuple[RoundPlan, RoundPlan]:
    """The plans if the liar were honest, and if it were absent."""
    return plan(name, bound({})[0]), plan(name, REPORTS, absent=True)


def compare(name: str, reports: Mapping[int, MeasurementReport]) -> float:
    """How much less is asked of the honest than if the liar were honest, or absent, whichever asks less.

    On average: P2 has solutions of the same value that treat one device differently.
    """
    plans = *plan_without_lies(name), plan(name, reports)
    honest_means = [
        [float(getattr(each, field)[:LIAR].mean()) for field in ("rho", "theta")] for each in plans
    ]
    fair, without, found = np.array(honest_means)
    return float((np.minimum(fair, without) - found).max())


@pytest.mark.parametrize(
    ("name", "share"),
    [("hcef", 1.0), ("hcef", 0.1), ("hcef_plus", 0.03), ("cef_f", 1.0), ("cef_c", 0.01), ("mll_sgd", 1.0)],
)
@given(
    lie=st.dictionaries(st.sampled_from(sorted(MOST)), st.floats(1e-12, 1.0), min_size=1), low=st.booleans()
)
@settings(max_examples=25, deadline=None)
def test_a_lie_costs_the_others_no_more_than_absence(
    name: str, share: float, lie: dict[str, float], low: bool
) -> None:
    """Over fields, values from nearly nothing to the most a message may carry, and schemes."""
    changes = {field: value if low else value * MOST[field] for field, value in lie.items()}
    reports, _ = bound(changes, share=share)
    assert compare(name, reports) <= TOLERANCE


@given(st.sampled_from(sorted(MOST)), st.floats(-12, 0))
@settings(max_examples=200, deadline=None)
def test_no_lie_is_charged_more_than_its_share(field: str, size: float) -> None:
    """A device's joules stay within eight times what such work costs the others: 2 × `SPREAD`."""
    report = bound({field: MOST[field] * 10**size})[0][LIAR]
    joules = report.joules + report.power * report.nu * 0.1
    usual = np.median([TAU * each.alpha + each.power * each.nu * 0.1 for each in REPORTS.values()])
    assert joules <= 2 * SPREAD * usual
    assert report.seconds <= OBSERVED[LIAR].seconds


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mu": 1e7}, SLOW_STEPS),
        ({"mu": 1e-9}, FAST_STEPS),
        ({"alpha": 1e9}, STEP_JOULES),
        ({"nu": 1e7}, SLOW_UPLOAD),
        ({"power": 1e6}, SENDING_WATTS),
        ({"seconds": 1e7}, LONG_TRAINING),
        ({"joules": 1e9}, ROUND_JOULES),
    ],
)
def test_bounded_figures_are_reported(changes: Mapping[str, float], reason: str) -> None:
    assert bound(changes)[1] == [(LIAR, reason)]


def test_honest_reports_pass_unchanged() -> None:
    """Except that nobody is faster or cheaper than the best of the others: device 0 in μ, the last in α."""
    reports, reasons = bound({})
    assert reasons == []
    assert reports[0] == msgspec.structs.replace(REPORTS[0], mu=1.04)
    assert reports[LIAR] == msgspec.structs.replace(REPORTS[LIAR], alpha=1.7)
    assert all(reports[n] == REPORTS[n] for n in range(1, LIAR))


def test_a_slow_device_is_confirmed_by_the_clock() -> None:
    """Fifty times slower than all others, in steps and uploads: its edge server did wait for it."""
    slow = {"mu": 50.0, "nu": 150.0, "seconds": 500.0}
    fresh = {**REPORTS, LIAR: msgspec.structs.replace(REPORTS[LIAR], **slow)}
    observed = {**OBSERVED, LIAR: ObservedWork(516.0, TAU, TAU, 0.1)}
    reports, reasons = read(bound_reports(fresh, NOTHING, observed, modelled(), modelled(), SPREAD))
    assert (reports[LIAR].mu, reports[LIAR].nu, reports[LIAR].seconds) == (50.0, 150.0, 500.0)
    assert reports[LIAR].power == 1.0
    assert reasons == []


def test_the_model_knows_of_classes() -> None:
    """A device that the model calls 50 times as costly is believed to be; 4 times more is not."""
    usual = modelled(alpha=np.where(np.arange(DEVICES) == LIAR, 1.0, 0.02))
    costly = {"alpha": 100.0, "joules": 100.0 * TAU}
    assert bound(costly, usual)[1] == []
    assert bound(costly)[1] == [(LIAR, STEP_JOULES), (LIAR, ROUND_JOULES)]
    assert bound({"alpha": 500.0}, usual)[0][LIAR].alpha == pytest.approx(SPREAD * 50 * 1.875)
    assert bound({"alpha": 5000.0}, usual)[1] == [(LIAR, STEP_JOULES)]


def test_figures_of_the_model_pass_where_the_model_holds() -> None:
    """A bad channel in this round makes an upload 30 times as long; only in this round, for this device."""
    usual = modelled(mu=np.ones(DEVICES), alpha=2 * np.ones(DEVICES), nu=3 * np.ones(DEVICES))
    now = replace(usual, nu=np.where(np.arange(DEVICES) == LIAR, 90.0, 3.0))
    fresh = {**REPORTS, LIAR: msgspec.structs.replace(REPORTS[LIAR], nu=90.0)}
    seen = dict.fromkeys(range(DEVICES), ObservedWork(0.0, TAU, TAU, 0.1))
    reports, reasons = read(bound_reports(fresh, NOTHING, seen, usual, now, SPREAD))
    assert (reports[LIAR].nu, reasons) == (90.0, [])
    assert bound_reports(fresh, NOTHING, seen, usual, usual, SPREAD).reasons == [(LIAR, SLOW_UPLOAD)]


def test_two_devices_are_only_held_to_the_clock() -> None:
    fresh = {0: REPORTS[0], 1: msgspec.structs.replace(REPORTS[1], alpha=1e9, seconds=1e7)}
    reports, reasons = read(bound_reports(fresh, NOTHING, OBSERVED, modelled(), modelled(), SPREAD))
    assert reports[1].alpha == 1e9
    assert reasons == [(1, LONG_TRAINING)]


def test_earlier_reports_of_the_others_count() -> None:
    known = FederationMeasurements(tuple(REPORTS[n] for n in range(DEVICES)))
    fresh = {LIAR: msgspec.structs.replace(REPORTS[LIAR], alpha=1e9)}
    found = bound_reports(fresh, known, OBSERVED, modelled(), modelled(), SPREAD)
    assert found.reasons == [(LIAR, STEP_JOULES)]


def test_an_implausible_report_is_charged_at_the_reference() -> None:
    """The median of eight α, one of them absurd, is 1.875 J: ten steps cost 18.75 J."""
    report = bound({"alpha": 1e9, "joules": 1e9, "power": 1e6})[0][LIAR]
    assert (report.alpha, report.joules, report.power) == pytest.approx((1.875, 18.75, 1.0))


def test_a_device_is_charged_at_most_twice_the_usual_over_a_run() -> None:
    """√`SPREAD` = 2; three usual rounds let a fourth one cost eight times as much, but not a fifth."""
    usual, known, charged = 18.25 + 3.35 * 0.1, NOTHING, []
    for joules in (18.25, 18.25, 18.25, 145.0, 145.0, 145.0):
        fresh = {**REPORTS, LIAR: msgspec.structs.replace(REPORTS[LIAR], nu=3.35, joules=joules)}
        found = bound_reports(fresh, known, OBSERVED, modelled(), modelled(), SPREAD)
        known = replace(known.add_reports(found.reports), accounts=found.accounts)
        report = found.reports[LIAR]
        charged.append(report.joules + report.power * report.nu * 0.1)
    assert charged == pytest.approx([usual, usual, usual, 5 * usual, 2 * usual, 2 * usual], rel=0.01)


def test_repeated_implausible_reports_lead_to_quarantine() -> None:
    quarantined: list[int] = []
    doubts = Doubts(3, quarantined.append)
    for implausible in ({1, 2}, {1}, {2}, {1}, {1, 2}, set[int]()):
        doubts.add(range(4), implausible)
    assert (quarantined, doubts.find_quarantined()) == ([1], [1])
    never = Doubts(0, quarantined.append)
    never.add(range(4), {1})
    assert (quarantined, never.find_quarantined()) == ([1], [])
