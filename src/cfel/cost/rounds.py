"""What an edge round and a global round cost: the maxima and sums of the paper's (time) and (energy).

    global round = max over clusters of ( Σ over edge rounds of max over the cluster's devices + backhaul )

Clusters run side by side within a global round, so an edge round has one time per cluster and no common one.
With gossip after every edge round they wait for each other each time, and sum and first maximum swap places.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import InputError

NO_DEVICE = -1
"""In place of a device where none took part."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRoundCost:
    """Cost of one edge round.

    Attributes:
        seconds: per cluster, that of its slowest device; 0 if none took part.
        slowest_device: per cluster, the device that took longest (the first of several), or `NO_DEVICE`.
        joules: of all devices together.
    """

    seconds: FloatArray
    slowest_device: IntArray
    joules: float


@dataclass(frozen=True, slots=True, eq=False)
class GlobalRoundCost:
    """Cost of one global round.

    Attributes:
        seconds: the makespan, that of the slowest cluster with its backhaul.
        cluster_seconds: per cluster, edge rounds and backhaul together, without waiting for others.
        slowest_cluster: the first of those that took longest.
        straggler: the device that the slowest cluster waited for longest, in all edge rounds, or `NO_DEVICE`.
        joules: of all devices together.
    """

    seconds: float
    cluster_seconds: FloatArray
    slowest_cluster: int
    straggler: int
    joules: float


def cluster_seconds(device_seconds: ArrayLike, cluster: ArrayLike, clusters: int) -> FloatArray:
    """Seconds of each cluster's slowest device; 0 for a cluster without devices.

    Args:
        device_seconds: one entry per device, ≥ 0; 0 for a device that takes no part.
        cluster: cluster of every device, 0 … clusters−1.
        clusters: number of clusters.
    """
    seconds = np.asarray(device_seconds, dtype=np.float64)
    slowest = np.zeros(clusters)
    np.maximum.at(slowest, _check_members(cluster, seconds.size, clusters), seconds)
    return slowest


def edge_round_cost(
    device_seconds: ArrayLike,
    device_joules: ArrayLike,
    cluster: ArrayLike,
    clusters: int,
    available: BoolArray | None = None,
) -> EdgeRoundCost:
    """Computes the cost of one edge round from the cost of its devices.

    Args:
        device_seconds: one entry per device.
        device_joules: one entry per device.
        cluster: cluster of every device.
        clusters: number of clusters.
        available: whether each device took part; the others cost nothing. None for all devices.
    """
    seconds = np.asarray(device_seconds, dtype=np.float64)
    joules = np.asarray(device_joules, dtype=np.float64)
    present = np.ones(seconds.size, dtype=bool) if available is None else available
    member = _check_members(cluster, seconds.size, clusters)
    slowest = cluster_seconds(np.where(present, seconds, 0.0), member, clusters)
    # The first of several, so that simulator and deployment name the same straggler.
    first = _find_first_device(present & (seconds == slowest[member]), member, clusters)
    return EdgeRoundCost(slowest, first, float(np.where(present, joules, 0.0).sum()))


def global_round_cost(
    edge_rounds: Sequence[EdgeRoundCost], exchange_seconds: ArrayLike, *, every_edge_round: bool = False
) -> GlobalRoundCost:
    """Computes the cost of one global round from its edge rounds and its exchanges.

    Args:
        edge_rounds: in order; sums run in this order.
        exchange_seconds: of one exchange, per cluster.
        every_edge_round: clusters exchange after every edge round, and wait for one another there, instead
            of at the end only.
    """
    exchange = np.asarray(exchange_seconds, dtype=np.float64)
    elapsed = np.zeros_like(exchange)
    joules = makespan = 0.0
    for cost in edge_rounds:
        # Both ways of counting are summed here, in the order of the rounds: the order changes the last bits.
        elapsed = elapsed + cost.seconds
        makespan += float((cost.seconds + exchange).max())
        joules += cost.joules
    total = elapsed + exchange * (len(edge_rounds) if every_edge_round else 1)
    slowest = int(np.argmax(total))
    seconds = makespan if every_edge_round else float(total[slowest])
    return GlobalRoundCost(seconds, total, slowest, _find_straggler(edge_rounds, slowest), joules)


def _find_straggler(edge_rounds: Sequence[EdgeRoundCost], cluster: int) -> int:
    waited: dict[int, float] = {}
    for cost in edge_rounds:
        device = int(cost.slowest_device[cluster])
        if device != NO_DEVICE:
            waited[device] = waited.get(device, 0.0) + float(cost.seconds[cluster])
    return min(waited, key=lambda device: (-waited[device], device), default=NO_DEVICE)


def _find_first_device(chosen: BoolArray, member: IntArray, clusters: int) -> IntArray:
    devices = np.flatnonzero(chosen)
    first = np.full(clusters, member.size, dtype=np.int64)
    np.minimum.at(first, member[devices], devices)
    return np.where(first == member.size, NO_DEVICE, first)


def _check_members(cluster: ArrayLike, devices: int, clusters: int) -> IntArray:
    member = np.asarray(cluster)
    if member.shape != (devices,) or not np.issubdtype(member.dtype, np.integer):
        raise InputError(
            f"cluster: must be {devices} whole numbers, got {member.dtype} of shape {member.shape}"
        )
    strange = (member < 0) | (member >= validation.check_whole("clusters", clusters, least=1))
    if strange.any():
        index = int(np.argmax(strange))
        raise InputError(
            f"cluster[{index}] = {member[index]!s}: unknown cluster (allowed: 0 to {clusters - 1})"
        )
    return member.astype(np.int64, copy=False)
