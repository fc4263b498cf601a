"""The work of an edge round, as an executor gets it: orders and states of the devices that take part."""

from dataclasses import replace

import numpy as np

from cfel.control.scheme import RoundPlan
from cfel.learning.device_messages import DeviceOrder, DeviceState
from cfel.learning.local.estimates import refresh_estimates
from cfel.learning.models.personal import complete_model
from cfel.rounds.estimates import needs_estimates
from cfel.rounds.orders import make_order
from cfel.simulation.executors import Executor, Job
from cfel.simulation.state import RunState
from cfel.system import Conditions
from cfel.world import World


def estimate(
    world: World, executor: Executor, state: RunState, conditions: Conditions, edge_round: int
) -> RunState:
    """The state with fresh estimates where they are needed."""
    if not needs_estimates(world.training.local.estimator, state.estimates):
        return state
    available = np.flatnonzero(conditions.available).tolist()
    devices = list(state.devices)
    orders = [_complete(_make_order(world, state, edge_round, n, 1.0, 1.0), devices[n]) for n in available]
    for n, fresh in zip(available, executor.run_estimates(orders), strict=True):
        devices[n] = replace(devices[n], estimates=refresh_estimates(devices[n].estimates, fresh))
    return replace(state, devices=tuple(devices))


def _complete(order: DeviceOrder, device: DeviceState) -> DeviceOrder:
    """The order with the device's own part in its model: estimates are taken without the device's state."""
    return replace(order, model=complete_model(order.model, device.memory))


def make_jobs(
    world: World, state: RunState, conditions: Conditions, edge_round: int, plan: RoundPlan, rate: float
) -> list[Job]:
    """Orders for all devices that take part, by device id and therefore by cluster."""
    rho, theta = plan.rho.tolist(), plan.theta.tolist()
    return [
        (_make_order(world, state, edge_round, n, rho[n], theta[n], rate), state.devices[n])
        for n in np.flatnonzero(conditions.available).tolist()
    ]


def _make_order(
    world: World, state: RunState, edge_round: int, device: int, rho: float, theta: float, rate: float = 1.0
) -> DeviceOrder:
    model = state.models[world.setting.fleet.cluster[device]]
    return make_order(world.setting, state.control.rounds_done, edge_round, device, rho, theta, model, rate)
