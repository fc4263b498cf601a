"""Semi-asynchronous aggregation in virtual time, in the manner of FedBuff.

An edge server aggregates as soon as the first K updates are there (`aggregation.buffer`), and that ends the
edge round of its cluster. Devices that are still at work continue from the model they fetched; their updates
arrive in a later edge round and count 1/√(1 + s), if they are s aggregations late. Those whose updates were
used fetch the new model. A device trains when its work begins, as all it needs is known then. Only its
arrival is an event, and the events of a cluster are ordered by virtual time and number of the device. So runs
repeat bit for bit, and with K = all they are those of the synchronous loop.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated learning with buffered asynchronous
aggregation, AISTATS 2022. Kept: the buffer of K updates, the discount, the mean over K without rescaling
discounted updates. Not kept: a device that has sent its update rests until it is used, instead of training
again at once; clusters wait for each other when they gossip; there is no secure aggregation.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control.setting import Setting
from cfel.cost import NO_DEVICE, EdgeRoundCost, Ledger, device_seconds
from cfel.learning.device_messages import DeviceReport
from cfel.learning.edge import ScaledUpdate, update_edge_model
from cfel.learning.models.flat import FlatModel
from cfel.rounds.kernel import DeviceWork, EdgeRoundOutcome, compute_outcome, device_weights
from cfel.simulation.executors import Executor
from cfel.simulation.state import EdgeRoundOrders, PendingUpdate, RunState
from cfel.world import World


def find_busy(pending: Sequence[PendingUpdate], devices: int) -> BoolArray:
    """Which devices are still at work on an earlier order."""
    busy = np.zeros(devices, dtype=bool)
    busy[[each.device for each in pending]] = True
    return busy


def run_buffered(
    world: World, executor: Executor, state: RunState, orders: EdgeRoundOrders
) -> tuple[RunState, EdgeRoundOutcome]:
    """Begins the devices' work, and aggregates the first updates of every cluster.

    Returns:
        The state after the edge round, whose control is not charged yet, and the outcome: steps and joules of
        the work that began, and the seconds until each cluster had its updates.
    """
    setting, devices = world.setting, list(state.devices)
    reports: list[DeviceReport] = []
    for report, device in executor.run_updates(orders.jobs):
        devices[report.device] = device
        reports.append(report)
    work = [DeviceWork(each.device, each.steps, each.update.wire_bits, each.loss) for each in reports]
    outcome = compute_outcome(setting, orders.conditions, orders.plan, work, state.control.missed)
    pending = [*state.pending, *_make_pending(world, orders, outcome, reports)]
    models, left = list(state.models), list[PendingUpdate]()
    realised, expected = np.zeros(len(models)), np.zeros(len(models))
    slowest = np.full(len(models), NO_DEVICE, dtype=np.int64)
    for i, model in enumerate(models):
        own = [each for each in pending if setting.fleet.cluster[each.device] == i]
        arrived, late = take_first(own, world.edge_rules.aggregation.buffer)
        if arrived:
            realised[i] = arrived[-1].seconds_left
            expected[i] = max(each.expected_left for each in arrived)
            slowest[i] = min(each.device for each in arrived if each.seconds_left == realised[i])
            models[i] = _aggregate(world, model, arrived, orders)
        kept = (each.keep() if each.begun == orders.number else each for each in late)
        left += [each.wait(float(realised[i]), float(expected[i])) for each in kept]
    outcome = replace(
        outcome,
        expected=EdgeRoundCost(expected, slowest, outcome.expected.joules),
        realised=EdgeRoundCost(realised, slowest, outcome.realised.joules),
    )
    left.sort(key=lambda each: each.device)
    return replace(state, models=tuple(models), devices=tuple(devices), pending=tuple(left)), outcome


def _make_pending(
    world: World, orders: EdgeRoundOrders, outcome: EdgeRoundOutcome, reports: Sequence[DeviceReport]
) -> Iterator[PendingUpdate]:
    setting, plan = world.setting, orders.plan
    now = plan.apply_speed(orders.conditions)
    expected = device_seconds(plan.rho, plan.theta, setting.rounds.local_steps, now.mu, now.nu)
    weights = device_weights(setting, plan, {each.device: each.samples for each in reports})
    for report in reports:
        n = report.device
        # The account that counts is the realised one: see `check_buffering`.
        seconds = float(outcome.seconds[n])
        yield PendingUpdate(report, orders.number, seconds, float(expected[n]), weights[n])


def take_first(
    pending: Sequence[PendingUpdate], count: int
) -> tuple[list[PendingUpdate], list[PendingUpdate]]:
    """The updates of a cluster that arrive first, in the order of events, and the others.

    The edge server waits for `count` updates; those that arrive at the same moment are taken, too.
    """
    queue = [(each.seconds_left, each.device, each) for each in pending]
    heapq.heapify(queue)
    arrived: list[PendingUpdate] = []
    while queue and (len(arrived) < count or queue[0][0] <= arrived[-1].seconds_left):
        arrived.append(heapq.heappop(queue)[2])
    return arrived, [each for _, _, each in queue]


def _aggregate(
    world: World, model: FlatModel, arrived: Sequence[PendingUpdate], orders: EdgeRoundOrders
) -> FlatModel:
    ordered = sorted(arrived, key=lambda each: each.device)
    cluster = world.setting.fleet.cluster[ordered[0].device]
    return update_edge_model(
        model,
        [discount(each.report, orders.number - each.begun) for each in ordered],
        {each.device: each.weight for each in ordered},
        world.edge_rules,
        share=len(ordered) / int(world.setting.fleet.sizes[cluster]),
        rate=world.training.local.learning_rate * world.training.local.find_rate(orders.used),
        used=orders.used,
    )


def discount(report: DeviceReport, staleness: int) -> DeviceReport:
    """The report as it counts so many aggregations late."""
    if not staleness:
        return report
    return replace(report, update=ScaledUpdate(report.update, 1 / math.sqrt(1 + staleness)))


def work_during_gossip(setting: Setting, state: RunState) -> tuple[PendingUpdate, ...]:
    """The updates in flight after gossip, during which devices work on; `state` is that before gossip."""
    if not state.pending:
        return ()
    realised, expected = (
        _find_waits(ledger, setting.exchange_seconds)
        for ledger in (state.control.realised, state.control.expected)
    )
    cluster = setting.fleet.cluster
    return tuple(
        each.wait(float(realised[cluster[each.device]]), float(expected[cluster[each.device]]))
        for each in state.pending
    )


def _find_waits(ledger: Ledger, gossip_seconds: FloatArray) -> FloatArray:
    """Seconds per cluster until gossip is over: it ends for all when the last model has arrived."""
    elapsed = np.asarray(ledger.elapsed_seconds)
    return np.asarray((elapsed + gossip_seconds).max() - elapsed)
