"""Edge rounds in which a worker trains a whole cluster and adds its updates up, so that one model comes back.

An executor that reaches other machines can do so (`ClusterExecutor`): the driver then neither receives nor
adds up what devices send. Results have the same bits, because a cluster's updates are added up in the order
of ids by one worker, with the functions that the round loop calls.

Device by device, as with any executor, it stays where

* vectors of devices travel (momentum that is kept, residuals of error feedback, personal parts): the driver
  receives as much as before;
* there is a deadline: who is late is known only from the plan and conditions of the driver;
* aggregation is semi-asynchronous: an update may wait for a later edge round;
* clusters are too few or too uneven to keep all workers busy.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, Protocol, runtime_checkable

from cfel.learning.device_messages import DeviceReport, DeviceState
from cfel.learning.edge import EdgeRules, update_edge_model
from cfel.learning.models.flat import FlatModel
from cfel.rounds.kernel import DeviceWork, EdgeRoundOutcome, compute_outcome, device_weights
from cfel.simulation.executors import Job, JobResult
from cfel.simulation.state import EdgeRoundOrders, RunState
from cfel.world import World

# Part of the workers' time that must be used, if all devices take the same time.
_LEAST_USE = 0.9


@dataclass(frozen=True, slots=True)
class EdgeUpdate:
    """How an edge server updates its model in an edge round; see `learning.edge.update_edge_model`.

    Attributes:
        weights: of the devices that took part.
        share: of the cluster's devices that took part.
        rate: the learning rate of the devices.
        used: share of the run that is over.
    """

    weights: Mapping[int, float]
    share: float
    rate: float
    used: float

    def apply(self, model: FlatModel, reports: Iterable[DeviceReport], rules: EdgeRules) -> FlatModel:
        """The next edge model."""
        rates = {"rate": self.rate, "used": self.used}
        return update_edge_model(model, reports, self.weights, rules, share=self.share, **rates)


def plan_edge_update(
    world: World, orders: EdgeRoundOrders, cluster: int, devices: Sequence[int]
) -> EdgeUpdate:
    """The update of a cluster's edge model by these of its devices."""
    setting, local = world.setting, world.training.local
    return EdgeUpdate(
        weights=device_weights(setting, orders.plan, {n: world.data[n].samples for n in devices}),
        share=len(devices) / int(setting.fleet.sizes[cluster]),
        rate=local.learning_rate * local.find_rate(orders.used),
        used=orders.used,
    )


class ClusterJob(NamedTuple):
    """An edge round of one cluster."""

    jobs: Sequence[Job]
    update: EdgeUpdate


class ClusterResult(NamedTuple):
    """Its edge model, and what its devices did and keep."""

    model: FlatModel
    devices: Sequence[tuple[DeviceWork, DeviceState]]


@runtime_checkable
class ClusterExecutor(Protocol):
    """An executor whose workers can train whole clusters."""

    def can_run_clusters(self, sizes: Sequence[int]) -> bool:
        """Whether it should be asked to, for clusters of so many devices."""
        ...

    def run_clusters(self, jobs: Sequence[ClusterJob]) -> Iterator[ClusterResult]:
        """Each job by `run_cluster`, in their order."""
        ...


def run_cluster(
    model: FlatModel, answers: Iterable[JobResult], update: EdgeUpdate, rules: EdgeRules
) -> ClusterResult:
    """Adds up the updates of a cluster, by ascending id, and keeps none of them."""
    devices: list[tuple[DeviceWork, DeviceState]] = []

    def note(answer: JobResult) -> DeviceReport:
        report, state = answer
        work = DeviceWork(report.device, report.steps, report.update.wire_bits, report.loss)
        devices.append((work, state))
        return report

    return ClusterResult(update.apply(model, map(note, answers), rules), devices)


def is_even(sizes: Sequence[int], workers: int) -> bool:
    """Whether clusters of so many devices keep all workers busy, if the next one goes to the first to end."""
    load = [0] * workers
    for size in sizes:
        heapq.heapreplace(load, load[0] + size)
    return sum(sizes) >= _LEAST_USE * workers * max(load)


def group_by_cluster(world: World, orders: EdgeRoundOrders) -> list[tuple[int, list[Job]]]:
    """The jobs of every cluster that takes part; they are sorted by cluster."""
    cluster = world.setting.fleet.cluster
    groups = groupby(orders.jobs, lambda job: int(cluster[job[0].device]))
    return [(number, list(jobs)) for number, jobs in groups]


def run_clusters(
    world: World,
    executor: ClusterExecutor,
    state: RunState,
    orders: EdgeRoundOrders,
    groups: Sequence[tuple[int, Sequence[Job]]],
) -> tuple[RunState, EdgeRoundOutcome]:
    """One edge round, cluster by cluster. Control is charged later."""
    models, devices, work = list(state.models), list(state.devices), []
    jobs = [
        ClusterJob(own, plan_edge_update(world, orders, cluster, [order.device for order, _ in own]))
        for cluster, own in groups
    ]
    for (cluster, _), result in zip(groups, executor.run_clusters(jobs), strict=True):
        models[cluster] = result.model
        for each, kept in result.devices:
            devices[each.device] = kept
            work.append(each)
    # Sums run by device, whichever cluster it is in.
    work.sort(key=lambda each: each.device)
    outcome = compute_outcome(world.setting, orders.conditions, orders.plan, work)
    return replace(state, models=tuple(models), devices=tuple(devices)), outcome
