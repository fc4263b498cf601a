"""States of a coordinator that do not fit the experiment, field by field."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control.scheme import RoundPlan
from cfel.cost import open_ledger
from cfel.deployment.coordinator.check_state import check_position, check_state
from cfel.deployment.coordinator.control_state import (
    CoordinatorState,
    FinishedEdgeRound,
    initial_coordinator_state,
)
from cfel.deployment.measurement.measured_rounds import EdgeRoundMeasurements, FederationMeasurements
from cfel.deployment.measurement.meters import RunningRatio
from cfel.errors import RejectedError
from cfel.learning.local.estimates import Estimates
from cfel.rounds.kernel import DeviceWork
from tests.deployment.conftest import deployed

WORLD = deployed().build_world()
ROUNDS = WORLD.setting.rounds
START = initial_coordinator_state(WORLD)
PLAN = RoundPlan(np.full(6, 0.5), np.full(6, 0.25), 1.0, 1.0, 0.0, 0.0, 0.0, True, ())
EVERYBODY = (True,) * 6
WORK = DeviceWork(0, 1, 100, 0.5)
MEASURED = EdgeRoundMeasurements(1.0, (0.5,) * 3, (None,) * 6)
DONE = FinishedEdgeRound(0, EVERYBODY, PLAN, (WORK,), MEASURED)


def with_control(**changes: Any) -> CoordinatorState:
    return replace(START, control=replace(START.control, **changes))


def finished(**changes: Any) -> CoordinatorState:
    return replace(START, finished=(replace(DONE, **changes),))


def planned(**changes: Any) -> CoordinatorState:
    return replace(START, plan=replace(PLAN, **changes), available=EVERYBODY)


def measured(**changes: Any) -> CoordinatorState:
    return replace(START, measured=replace(FederationMeasurements((None,) * 6), **changes))


@pytest.mark.parametrize(
    "state",
    [START, finished(), planned(), planned(speed=np.full(6, 0.5)), measured(exchange=RunningRatio(1.0, 2.0))],
)
def test_honest_states_fit(state: CoordinatorState) -> None:
    check_state(WORLD, state)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (with_control(rounds_done=2**53), "no such position"),
        (with_control(rounds_done=-1), "no such position"),
        (replace(START, edge_round=ROUNDS.edge_rounds + 1), "no such position"),
        (replace(START, step=99), "no such position"),
        (with_control(realised=open_ledger(4)), "ledger: 4 entries, 3 expected"),
        (with_control(spent_joules=np.zeros(5)), "spent_joules"),
        (with_control(spent_joules=np.zeros((6, 1))), "spent_joules"),
        (with_control(spent_joules=np.full(6, np.nan)), "spent_joules"),
        (replace(START, estimates=(None,) * 7), "estimates: 7 entries, 6 expected"),
        (replace(START, estimates=(Estimates(1.0, 1.0, (0.5,)),) * 6), "kept_energy"),
        (replace(START, absent_devices=(6,)), "absent_devices"),
        (replace(START, digests=("x" * 64,) * 3), "no SHA-256"),
        (replace(START, digests=START.digests[:2]), "digests: 2 entries"),
        (replace(START, metrics=(0.0, 0.0)), "metrics"),
        (replace(START, started_at=np.nan), "started_at"),
        (replace(START, finished=(DONE,) * (ROUNDS.edge_rounds + 1)), "finished"),
        (finished(edge_round=ROUNDS.edge_rounds), r"finished\.edge_round"),
        (finished(available=(True,)), r"finished\.available: 1 entries"),
        (finished(plan=replace(PLAN, rho=np.ones((6, 2)))), r"plan\.rho"),
        (finished(work=(DeviceWork(6, 1, 1, 0.5),)), r"work\.device = 6"),
        (finished(work=(DeviceWork(-1, 1, 1, 0.5),)), r"work\.device = -1"),
        (finished(work=(DeviceWork(0, 10**6, 1, 0.5),)), r"work\.steps"),
        (finished(work=(DeviceWork(0, 1, -1, 0.5),)), r"work\.wire_bits"),
        (finished(work=(DeviceWork(0, 1, 1, 1.7e308),)), "loss"),
        (finished(measurements=replace(MEASURED, seconds=np.inf)), r"measurements\.seconds"),
        (finished(measurements=replace(MEASURED, cluster_seconds=(1.0,))), "cluster_seconds"),
        (finished(measurements=replace(MEASURED, devices=())), r"measurements\.devices"),
        (planned(theta=np.full(6, 2.0)), r"plan\.theta"),
        (planned(rho=np.full(5, 0.5)), r"plan\.rho"),
        (planned(speed=np.zeros(6)), r"plan\.speed"),
        (replace(START, available=(True,)), "available: 1 entries"),
        (measured(devices=()), r"measured\.devices"),
        (measured(overhead=RunningRatio(np.nan, 1.0)), "measured"),
        (measured(overhead=RunningRatio(1.0, 0.0)), "an amount without units"),
    ],
)
def test_what_does_not_fit_is_rejected(state: CoordinatorState, reason: str) -> None:
    with pytest.raises(RejectedError, match=reason):
        check_state(WORLD, state)


def test_positions_are_those_of_the_run() -> None:
    """Gossip follows the last edge round: one step here."""
    check_position(WORLD, (0, 0, 0))
    check_position(WORLD, (ROUNDS.global_rounds, ROUNDS.edge_rounds, 1))
    for beyond in ((ROUNDS.global_rounds + 1, 0, 0), (0, ROUNDS.edge_rounds + 1, 0), (0, 0, 1)):
        with pytest.raises(RejectedError, match="no such position"):
            check_position(WORLD, beyond)
