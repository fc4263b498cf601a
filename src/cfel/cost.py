"""What a round costs in seconds and joules: pure functions, no state. Budgets become caps in `control`.

Symbols: ρ local update probability, θ share of the model that is sent, τ local iterations, μ seconds per
step, α joules per step, ν seconds per full upload, p watts while sending. They are numbers, or arrays with
one entry per device, of `Conditions` and plans, which are checked where they are made.

    global round = max over clusters of ( Σ over edge rounds of max over the cluster's devices + backhaul )

Clusters run side by side within a global round, so an edge round has one time per cluster and no common one.
With gossip after every edge round they wait for each other each time, and sum and first maximum swap places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import InputError, unknown_name

if TYPE_CHECKING:
    import networkx as nx


BITS_PER_SECOND = 50e6
"""Rate of every backhaul link in the paper's evaluation."""


def backhaul_seconds(graph: "nx.Graph[int]", model_bits: float) -> FloatArray:
    """Seconds of one gossip step, per cluster: max over i′ ∈ N_i of T_{i,i′} in the paper's equation (time).

    Every edge server sends its full model to all its neighbours at once; without one it takes 0 seconds.
    """
    seconds = validation.check_number("model_bits", model_bits, least=0) / BITS_PER_SECOND
    return np.array([seconds if graph.degree(node) else 0.0 for node in range(len(graph))])


def device_seconds(rho: ArrayLike, theta: ArrayLike, tau: int, mu: ArrayLike, nu: ArrayLike) -> FloatArray:
    """Expected seconds: ρτμ + θν."""
    return realised_seconds(np.multiply(rho, float(tau)), theta, mu, nu)


def device_joules(
    rho: ArrayLike, theta: ArrayLike, tau: int, alpha: ArrayLike, nu: ArrayLike, power: ArrayLike
) -> FloatArray:
    """Expected joules: ρτα + pθν."""
    return realised_joules(np.multiply(rho, float(tau)), theta, alpha, nu, power)


def realised_seconds(steps: ArrayLike, share_sent: ArrayLike, mu: ArrayLike, nu: ArrayLike) -> FloatArray:
    """Realised seconds, from the steps computed instead of ρτ and the share of bits sent instead of θ.

    The share may exceed 1 where indices are sent, too.
    """
    return np.add(np.multiply(steps, mu, dtype=np.float64), np.multiply(share_sent, nu, dtype=np.float64))


def realised_joules(
    steps: ArrayLike, share_sent: ArrayLike, alpha: ArrayLike, nu: ArrayLike, power: ArrayLike
) -> FloatArray:
    """Realised joules (arguments: see `realised_seconds`, with α and p)."""
    sending = np.multiply(share_sent, nu, dtype=np.float64)
    return np.add(np.multiply(steps, alpha, dtype=np.float64), np.multiply(power, sending))


NO_DEVICE = -1
"""In place of a device where none took part."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRoundCost:
    """Cost of one edge round."""

    seconds: FloatArray  # per cluster, that of its slowest device; 0 if none took part
    # Per cluster, the device that took longest (the first of several), or `NO_DEVICE`.
    slowest_device: IntArray
    joules: float  # of all devices together
    cluster_joules: FloatArray | None = None  # per cluster, where they were added up by cluster


@dataclass(frozen=True, slots=True, eq=False)
class GlobalRoundCost:
    """Cost of one global round."""

    seconds: float  # the makespan, that of the slowest cluster with its backhaul
    cluster_seconds: FloatArray  # per cluster, edge rounds and backhaul together, without waiting for others
    slowest_cluster: int  # the first of those that took longest
    # The device that the slowest cluster waited for longest, in all edge rounds, or `NO_DEVICE`.
    straggler: int
    joules: float  # of all devices together


def cluster_seconds(device_seconds: ArrayLike, cluster: ArrayLike, clusters: int) -> FloatArray:
    """Seconds of each cluster's slowest device; 0 for a cluster without devices.

    A device that takes no part has 0 seconds; `cluster` is that of every device, 0 … clusters−1.
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
    *,
    by_cluster: bool = False,
) -> EdgeRoundCost:
    """Computes the cost of one edge round from the cost of its devices; unavailable ones cost nothing.

    `by_cluster` adds joules up by cluster first: the sum is then that of clusters which count by themselves.
    """
    seconds = np.asarray(device_seconds, dtype=np.float64)
    joules = np.asarray(device_joules, dtype=np.float64)
    present = np.ones(seconds.size, dtype=bool) if available is None else available
    member = _check_members(cluster, seconds.size, clusters)
    slowest = cluster_seconds(np.where(present, seconds, 0.0), member, clusters)
    # The first of several, so that simulator and deployment name the same straggler.
    first = _find_first_device(present & (seconds == slowest[member]), member, clusters)
    spent = np.where(present, joules, 0.0)
    if by_cluster:
        by_clusters = np.asarray(np.bincount(member, spent, clusters), dtype=np.float64)
        return EdgeRoundCost(slowest, first, float(by_clusters.sum()), by_clusters)
    return EdgeRoundCost(slowest, first, float(spent.sum()))


def global_round_cost(
    edge_rounds: Sequence[EdgeRoundCost], exchange_seconds: ArrayLike, *, every_edge_round: bool = False
) -> GlobalRoundCost:
    """Computes the cost of one global round from its edge rounds, in order, and the seconds of one exchange.

    With `every_edge_round`, clusters wait for one another after every edge round, instead of at the end only.
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


@dataclass(frozen=True, slots=True)
class Ledger:
    """Time and energy spent so far, as far as the caps of the next edge round depend on it.

    The budgets and caps belong to `control`. A ledger survives a round trip through JSON unchanged.
    """

    seconds: float  # makespans of the finished global rounds, summed
    joules: float  # energy of the finished global rounds
    elapsed_seconds: tuple[float, ...]  # per cluster, edge rounds of the current global round so far
    elapsed_joules: float  # energy of the current global round so far

    def __post_init__(self) -> None:
        for field in ("seconds", "joules", "elapsed_joules"):
            amount = validation.check_number(f"ledger.{field}", getattr(self, field), least=0)
            object.__setattr__(self, field, amount)
        elapsed = validation.check_floats("ledger.elapsed_seconds", self.elapsed_seconds, least=0)
        object.__setattr__(self, "elapsed_seconds", tuple(elapsed.tolist()))

    @property
    def clusters(self) -> int:
        return len(self.elapsed_seconds)

    @property
    def total_joules(self) -> float:
        """Energy of finished rounds and of the current one."""
        return self.joules + self.elapsed_joules

    def to_dict(self) -> dict[str, Any]:
        """Returns plain numbers and lists; `from_dict` restores an equal ledger, also from JSON."""
        return {**asdict(self), "elapsed_seconds": list(self.elapsed_seconds)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Ledger":
        allowed = cls.__dataclass_fields__
        for name in fields:
            if name not in allowed:
                raise InputError(unknown_name("ledger", name, allowed))
        # No defaults: a ledger that lost a field would let the next round use what is spent already.
        for name in allowed:
            if name not in fields:
                raise InputError(f"ledger.{name}: is missing")
        return cls(**fields)


def open_ledger(clusters: int) -> Ledger:
    return Ledger(0.0, 0.0, (0.0,) * validation.check_whole("clusters", clusters, least=1), 0.0)


def after_edge_round(ledger: Ledger, cost: EdgeRoundCost) -> Ledger:
    """Returns the ledger with one more edge round of the current global round."""
    seconds = validation.check_floats("cost.seconds", cost.seconds, length=ledger.clusters, least=0)
    elapsed = np.add(ledger.elapsed_seconds, seconds)
    return Ledger(ledger.seconds, ledger.joules, tuple(elapsed.tolist()), ledger.elapsed_joules + cost.joules)


def after_exchange(ledger: Ledger, exchange_seconds: ArrayLike) -> Ledger:
    """Returns the ledger after an exchange within a global round, which all clusters end at the same time."""
    exchange = validation.check_floats("exchange_seconds", exchange_seconds, length=ledger.clusters, least=0)
    # An exchange ends when the last model has arrived; no cluster starts its next edge round before that.
    latest = float(np.add(ledger.elapsed_seconds, exchange).max())
    return Ledger(ledger.seconds, ledger.joules, (latest,) * ledger.clusters, ledger.elapsed_joules)


def after_global_round(ledger: Ledger, exchange_seconds: ArrayLike, backhaul_joules: float = 0.0) -> Ledger:
    """Returns the ledger after the exchange that ends the global round, ready for the next.

    `backhaul_joules` are those of all exchanges of the global round, where they are charged.
    """
    exchange = validation.check_floats("exchange_seconds", exchange_seconds, length=ledger.clusters, least=0)
    makespan = float(np.add(ledger.elapsed_seconds, exchange).max())
    joules = ledger.total_joules + validation.check_number("backhaul_joules", backhaul_joules, least=0)
    return Ledger(ledger.seconds + makespan, joules, (0.0,) * ledger.clusters, 0.0)
