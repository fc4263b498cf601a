"""A successor that plans an edge round again: what is counted is what devices were really asked."""

from dataclasses import replace

import numpy as np
import pytest

from cfel.control.scheme import RoundPlan
from cfel.deployment.coordinator.control_state import CoordinatorState, initial_coordinator_state
from cfel.deployment.coordinator.counting import add_edge_round, use_actual_orders
from cfel.deployment.protocol.coordinator_requests import DeviceResult, PlanAnswer
from cfel.errors import DeploymentError
from tests.deployment.conftest import deployed

EXPERIMENT = deployed()
WORLD = EXPERIMENT.build_world()
FRESH = RoundPlan(np.full(6, 0.5), np.full(6, 0.25), 1.0, 1.0, 0.0, 0.0, 0.0, True, ())


def result(device: int, rho: float, theta: float, speed: float = 1.0) -> DeviceResult:
    return DeviceResult(device, rho, theta, speed, 3, 100, 0.5, None)


def state(plan: RoundPlan | None) -> CoordinatorState:
    return replace(initial_coordinator_state(WORLD), plan=plan, available=(True,) * 6)


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
