"""What the coordinator makes of answers: states, costs and scores."""

import math
from dataclasses import replace

import numpy as np
import pytest

from cfel.control.scheme import RoundPlan
from cfel.deployment.coordinator.counting import (
    add_edge_round,
    combine_scores,
    read_scores,
    use_actual_orders,
)
from cfel.deployment.coordinator.state import CoordinatorState, initial_coordinator_state
from cfel.deployment.protocol.edge_requests import DeviceResult, MixAnswer, ModelScores, PlanAnswer
from cfel.errors import DeploymentError
from tests.deployment.conftest import deployed
from tests.simulation.drive import tiny

EXPERIMENT = deployed()
WORLD = EXPERIMENT.build_world()
FRESH = RoundPlan(np.full(6, 0.5), np.full(6, 0.25), 1.0, 1.0, 0.0, 0.0, 0.0, True, ())


def result(device: int, rho: float, theta: float, speed: float = 1.0) -> DeviceResult:
    return DeviceResult(device, rho, theta, speed, 3, 100, 0.5, None)


def state(plan: RoundPlan | None) -> CoordinatorState:
    return replace(initial_coordinator_state(WORLD, 0.0), plan=plan, available=(True,) * 6)


def test_records_follow_the_orders_that_were_carried_out() -> None:
    """Devices 0 and 1 still carry out ρ = 1, θ = 0.1; cluster 1 got the new plan; device 4 did nothing."""
    answers = {
        0: PlanAnswer((result(0, 1.0, 0.1), result(1, 1.0, 0.1)), (0, 1), 1.0),
        1: PlanAnswer((result(2, 0.5, 0.25), result(3, 0.5, 0.25)), (2, 3), 1.0),
    }
    (done,) = add_edge_round(WORLD, state(FRESH), answers, 1.0).finished
    assert done.plan.rho.tolist() == [1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    assert done.plan.theta.tolist() == [0.1, 0.1, 0.25, 0.25, 0.25, 0.25]
    assert done.plan.speed is None
    assert done.available == (True, True, True, True, False, False)


def test_the_plan_itself_is_not_changed() -> None:
    use_actual_orders(FRESH, [result(0, 1.0, 0.1)])
    assert FRESH.rho.tolist() == [0.5] * 6


def test_speeds_are_those_of_the_orders() -> None:
    slowed = use_actual_orders(FRESH, [result(1, 0.5, 0.25, speed=0.8)])
    assert slowed.speed is not None
    assert slowed.speed.tolist() == [1.0, 0.8, 1.0, 1.0, 1.0, 1.0]
    planned = replace(FRESH, speed=np.full(6, 0.9))
    back = use_actual_orders(planned, [result(0, 0.5, 0.25)])
    assert back.speed is not None
    assert back.speed.tolist() == [1.0, 0.9, 0.9, 0.9, 0.9, 0.9]


def test_an_edge_round_without_a_plan_is_not_counted() -> None:
    with pytest.raises(DeploymentError, match="without a plan"):
        add_edge_round(WORLD, state(None), {}, 1.0)


SCORED = tiny(
    data={"task": "tests.tasks:digits"}, fleet={"clusters": [3, 2, 1]}, topology={"kind": "line"}
).build_world()
ROWS = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def answer(metric: float, devices: tuple[float, ...]) -> MixAnswer:
    further = {"cross_entropy": 10 * metric, "margin": -metric}
    return MixAnswer((0, 0, 0), ROWS, "0" * 64, metric, further, devices)


def test_every_device_counts_alike() -> None:
    """Clusters of 3, 2 and 1 devices: 0.1/2 + 0.4/3 + 0.7/6 = 0.3."""
    answers = {0: answer(0.1, (0.1, 0.2, math.nan)), 1: answer(0.4, (0.3, 0.4)), 2: answer(0.7, (0.5,))}
    found = combine_scores(SCORED, [0.1, 0.4, 0.7], answers)
    assert found.accuracy == pytest.approx(0.3)
    assert found.metrics == pytest.approx({"cross_entropy": 3.0, "margin": -0.3})
    assert found.devices is not None
    assert found.devices()[[0, 1, 3, 4, 5]].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_lost_edge_server_is_not_counted() -> None:
    """Clusters of 2 devices and of 1: (2 · 0.4 + 0.7) / 3 = 0.5, whatever the lost one had before."""
    answers = {1: answer(0.4, (0.3, 0.4)), 2: answer(0.7, (0.5,))}
    found = combine_scores(SCORED, [0.9, 0.4, 0.7], answers)
    assert found.accuracy == pytest.approx(0.5)
    assert found.metrics == pytest.approx({"cross_entropy": 5.0, "margin": -0.5})
    assert found.devices is not None
    assert found.devices().tolist() == [0.3, 0.4, 0.5]


def test_an_edge_server_that_does_not_measure_yet() -> None:
    """One with an earlier version of cfel sends its metric only."""
    old = MixAnswer((0, 0, 0), ROWS, "0" * 64, 0.1)
    found = combine_scores(
        SCORED, [0.1, 0.4, 0.7], {0: old, 1: answer(0.4, (0.3, 0.4)), 2: answer(0.7, (0.5,))}
    )
    assert found.accuracy == pytest.approx(0.3)
    assert found.metrics == pytest.approx({"cross_entropy": 5.0, "margin": -0.5})
    assert combine_scores(SCORED, [0.1, 0.4, 0.7], {0: old}).metrics == {}


def test_the_mean_model() -> None:
    found = read_scores(ModelScores(0.5, {"margin": 2.0}, (0.25, 0.75)))
    assert (found.accuracy, found.metrics) == (0.5, {"margin": 2.0})
    assert found.devices is not None
    assert found.devices().tolist() == [0.25, 0.75]
