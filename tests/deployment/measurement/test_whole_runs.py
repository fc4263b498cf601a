"""Whole runs with tight budgets: whatever one of eight devices reports, the others do as much as without it.

What devices do follows from the plans alone: nobody trains.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import numpy as np
import pytest

from cfel.arrays import FloatArray
from cfel.control.caps import Budget, Rounds
from cfel.control.scheme import Observation, RoundPlan, SchemeParameters
from cfel.control.schemes import build_scheme
from cfel.cost import after_edge_round, after_global_round, edge_round_cost, open_ledger
from cfel.deployment.measurement.measured_rounds import FederationMeasurements, apply_reports
from cfel.deployment.measurement.plausibility import ObservedWork, bound_reports
from cfel.learning.local.estimates import Estimates
from cfel.rounds.estimates import combine_estimates, update_influence
from cfel.system.conditions import Conditions
from tests.deployment.measurement.test_plausibility import (
    CLUSTER,
    DEVICES,
    LIAR,
    NOTHING,
    SPREAD,
    TAU,
    honest,
    modelled,
)

ROUNDS = 40
SECONDS = 9.0
TOLERANCE = 0.06
"""Of mean ρ and θ over a run; honest, the liar may take about this much more or less of the budget."""

ESTIMATES = tuple(Estimates(2.0 + 0.1 * n, 1.0 + 0.05 * n) for n in range(DEVICES))
NOISE = Estimates(3.0, -2.9)
"""Possible, and within the bounds of a single round; in every round it would halve what is asked of all."""

Lie = Mapping[str, float]


@dataclass(frozen=True)
class Run:
    """Means over a run of what was asked of the honest devices, and the joules charged."""

    rho: float
    theta: float
    joules: float
    liar_joules: float


def play(
    name: str, joules: float, lie: Lie | None, estimates: Estimates = ESTIMATES[LIAR], *, absent: bool = False
) -> Run:
    """Plans, reports and charges every round."""
    scheme = build_scheme(SchemeParameters(name))
    state, ledger, known, influence = scheme.init(), open_ledger(2), NOTHING, None
    present = np.arange(DEVICES) != LIAR if absent else np.ones(DEVICES, dtype=bool)
    asked, charged = [], np.zeros(DEVICES)
    newest = [*ESTIMATES[:LIAR], None if absent else estimates]
    for number in range(ROUNDS):
        combined = combine_estimates(newest, present, influence=influence)
        influence = update_influence(influence, newest, present)
        observation = Observation(
            global_round=number,
            edge_round=0,
            rounds=Rounds(ROUNDS, 1, TAU),
            conditions=apply_reports(known.devices, _true_conditions()).without(~present),
            cluster=CLUSTER,
            sigma2=combined.sigma2,
            g2=combined.g2,
            ledger=ledger,
            budget=Budget(ROUNDS * SECONDS, ROUNDS * joules),
            gossip_seconds_left=np.zeros(2),
            full_clocks=True,
        )
        plan, state = scheme.plan(state, observation)
        asked.append((plan.rho[:LIAR].mean(), plan.theta[:LIAR].mean()))
        known, seconds, spent = _report(known, plan, lie, absent=absent)
        charged += spent
        cost = edge_round_cost(seconds, spent, CLUSTER, 2, present)
        ledger = after_global_round(after_edge_round(ledger, cost), np.zeros(2))
    rho, theta = np.mean(asked, axis=0).tolist()
    return Run(rho, theta, ledger.joules, float(charged[LIAR]))


def _true_conditions() -> Conditions:
    columns = {
        name: np.array([getattr(honest(n), name) for n in range(DEVICES)])
        for name in ("mu", "alpha", "nu", "power")
    }
    return modelled(**columns)


def _report(
    known: FederationMeasurements, plan: RoundPlan, lie: Lie | None, *, absent: bool
) -> tuple[FederationMeasurements, FloatArray, FloatArray]:
    """The measurements after a round, and every device's seconds and joules as they are charged."""
    fresh, observed = {}, {}
    for n in range(DEVICES - absent):
        steps, share, true = float(plan.rho[n]) * TAU, float(plan.theta[n]), honest(n)
        report = msgspec.structs.replace(true, seconds=steps * true.mu, joules=steps * true.alpha)
        fresh[n] = msgspec.structs.replace(report, **(lie or {})) if n == LIAR else report
        observed[n] = ObservedWork(steps * true.mu + share * true.nu + 0.2, steps, steps, share)
    found = bound_reports(fresh, known, observed, modelled(), modelled(), SPREAD)
    seconds, joules = np.zeros(DEVICES), np.zeros(DEVICES)
    for n, each in found.reports.items():
        # Edge servers count seconds by their own clocks.
        seconds[n] = observed[n].seconds
        joules[n] = each.joules + each.power * each.nu * observed[n].share
    return replace(known.add_reports(found.reports), accounts=found.accounts), seconds, joules


@cache
def without_lies(name: str, joules: float) -> tuple[Run, Run]:
    """The run with an honest liar, and without it."""
    return play(name, joules, None), play(name, joules, None, absent=True)


LIES: tuple[Lie, ...] = (
    {"alpha": 1e9, "joules": 1e9},
    {"alpha": 7.0, "joules": 70.0},
    {"alpha": 29.0, "joules": 200.0, "nu": 13.0, "power": 15.0},
    {"mu": 1e-9, "alpha": 1e9, "joules": 1e9, "seconds": 1e7},
    {"mu": 3.0, "nu": 13.0, "power": 4.0},
    {"alpha": 1e-9, "joules": 70.0},
    {},
)


@pytest.mark.parametrize("estimates", [ESTIMATES[LIAR], NOISE], ids=["honest", "noisy"])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: "+".join(lie) or "nothing")
@pytest.mark.parametrize("joules", [80.0, 50.0, 30.0])
@pytest.mark.parametrize("name", ["hcef", "hcef_plus"])
def test_a_liar_costs_the_others_no_more_than_its_absence(
    name: str, joules: float, lie: Lie, estimates: Estimates
) -> None:
    fair, without = without_lies(name, joules)
    found = play(name, joules, lie, estimates)
    assert found.rho >= min(fair.rho, without.rho) - TOLERANCE
    assert found.theta >= min(fair.theta, without.theta) - TOLERANCE
    assert found.joules <= 1.01 * ROUNDS * joules
