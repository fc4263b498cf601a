"""The fleet of an experiment: how many devices, in which clusters, under which conditions.

`FleetParameters` is the experiment file's `[fleet]`; `build_fleet` turns it into a `Fleet`, which gives the
conditions of any edge round. Tables of devices for planning a single round are in `traces`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import InputError
from cfel.membership import FleetChange, Membership, RoundLoss, list_memberships, start_membership
from cfel.seeding import draw_uniforms
from cfel.system.availability import (
    Availability,
    AvailabilityTrace,
    Participation,
    is_exhausted,
    read_availability,
)
from cfel.system.conditions import ConditionModel, Conditions, RandomConditions
from cfel.system.device_classes import HardwareConditions
from cfel.system.device_tables import TraceParameters, read_trace

ConditionParameters = RandomConditions | HardwareConditions | TraceParameters


MAX_DEVICES = 10**7
MAX_CLUSTERS = 4096
"""Mixing weights are a square matrix of this size."""


@dataclass(frozen=True, slots=True)
class FleetParameters:
    """Devices and clusters.

    Attributes:
        devices: N, number of devices, ≥ 1.
        clusters: number of clusters, filled as evenly as possible, or the size of each.
        conditions: where conditions come from.
        availability: which devices are absent when.
        battery_joules: charge of every battery, one number for all or one per device; None for mains power.
        participation: devices asked in an edge round, a share in (0, 1] or a whole number; 1.0 for all.
        participation_per: how often they are drawn, per "edge_round" or per "global_round".
        participation_by: chances of devices, all alike ("uniform") or by their training "samples".
        estimate_error: how wrong plans are about μ, α and ν of every device, in [0, 1): each is taken to be
            up to that share more or less, the same throughout the run. Costs are those of the true values.
        changes: how the fleet changes in the course of the run: tables with `round` (the first that a change
            holds for) and `what` ("add device", "remove device", "move device", "add edge", "remove edge",
            "drain edge", "extend", "pause" or "resume"), and `device`, `edge`, `rounds`, `seconds` or
            `joules`.
        losses: who was missing when, to repeat the run of a federation: tables with `round`, `edge_round`
            and `absent`, `lost` and `trained` devices, or `step`, `rows` and `mixed` of gossip.
            `cfel fleet replay` writes them.
    """

    devices: int = 64
    clusters: int | tuple[int, ...] = 8
    conditions: ConditionParameters = field(default_factory=RandomConditions)
    availability: Availability = field(default_factory=Availability)
    battery_joules: float | tuple[float, ...] | None = None
    participation: float = 1.0
    participation_per: str = "edge_round"
    participation_by: str = "uniform"
    estimate_error: float = 0.0
    changes: tuple[FleetChange, ...] = ()
    losses: tuple[RoundLoss, ...] = ()

    def __post_init__(self) -> None:
        validation.check_whole("fleet.devices", self.devices, least=1, most=MAX_DEVICES)
        if isinstance(self.clusters, Sequence):
            object.__setattr__(self, "clusters", _check_sizes(self.clusters, self.devices))
        else:
            most = min(self.devices, MAX_CLUSTERS)
            validation.check_whole("fleet.clusters", self.clusters, least=1, most=most)
        if isinstance(self.battery_joules, Sequence):
            battery = validation.check_floats(
                "fleet.battery_joules", self.battery_joules, length=self.devices, least=0, finite=False
            )
            object.__setattr__(self, "battery_joules", tuple(battery.tolist()))
        elif self.battery_joules is not None:
            validation.check_number("fleet.battery_joules", self.battery_joules, least=0, finite=False)
        validation.check_number("fleet.estimate_error", self.estimate_error, least=0, below=1)
        self.availability.check_devices(self.devices)
        if isinstance(self.conditions, HardwareConditions):
            self.conditions.check_devices(self.devices)
            if self.conditions.battery_share and self.battery_joules is not None:
                raise InputError("fleet.battery_joules: not together with conditions.battery_share")
        # Also rejects a number of devices that does not fit the clusters.
        self.sampling().count(cluster_sizes(self.devices, self.clusters))
        if self.changes:
            self.list_memberships()

    def list_memberships(self) -> tuple[tuple[int, Membership], ...]:
        """Who belongs to the fleet from which global round, from 0, on."""
        return list_memberships(start_membership(self.assign_clusters().tolist()), self.changes)

    def assign_clusters(self) -> IntArray:
        """The cluster of every device; devices of a cluster have consecutive ids."""
        sizes = cluster_sizes(self.devices, self.clusters)
        return validation.make_read_only(np.repeat(np.arange(sizes.size), sizes))

    def sampling(self) -> Participation:
        """Which of the available devices are asked."""
        return Participation(self.participation, self.participation_per, self.participation_by)


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """The fleet, built."""

    cluster: IntArray  # cluster of every device, or the last one of a device that has left
    sizes: IntArray  # devices per cluster, without those that have left
    model: ConditionModel  # where conditions come from
    availability: Availability  # which devices are absent when
    # Charge per device, infinity for mains power; None if no device has a limit.
    battery_joules: FloatArray | None = None
    trace: AvailabilityTrace | None = None  # when devices are there, or None for always
    # Which of the available devices are asked.
    participation: Participation = field(default_factory=Participation)
    samples: FloatArray | None = None  # training samples per device; None where no data has been loaded
    estimate_error: float = 0.0  # how wrong plans are about μ, α and ν
    members: BoolArray | None = None  # whether each device belongs to the fleet now; None for all
    edges: tuple[int, ...] | None = None  # numbers of the edge servers that do; None for all

    @property
    def devices(self) -> int:
        """Number of devices N, those that have left included: their numbers are not reused."""
        return self.cluster.size

    def list_members(self) -> list[int]:
        """The devices that belong to the fleet now."""
        return [n for n in range(self.devices) if self.members is None or self.members[n]]

    def list_edges(self) -> list[int]:
        """The edge servers that belong to the fleet now."""
        return list(range(self.clusters) if self.edges is None else self.edges)

    def change(self, membership: Membership) -> "Fleet":
        """The fleet with other members; the others keep their numbers, conditions and batteries."""
        cluster = np.array(membership.edge_of, dtype=np.int64)
        members = np.isin(np.arange(cluster.size), list(membership.devices))
        battery = self.battery_joules
        if battery is not None:
            # A battery is given per number; one that is not listed is mains power.
            battery = np.append(battery, np.full(cluster.size, np.inf))[: cluster.size]
        return replace(
            self,
            cluster=validation.make_read_only(cluster),
            sizes=validation.make_read_only(np.bincount(cluster[members], minlength=membership.clusters)),
            battery_joules=battery,
            members=validation.make_read_only(members),
            edges=membership.edges,
        )

    @property
    def clusters(self) -> int:
        """Number of clusters m."""
        return self.sizes.size

    def conditions(
        self,
        seed: int,
        global_round: int,
        edge_round: int,
        model_bits: float,
        spent_joules: ArrayLike | None = None,
    ) -> Conditions:
        """Conditions of one edge round; devices that are absent, empty or not sampled do not take part.

        `spent_joules` is what each device has spent so far; without it, batteries do not count.
        """
        validation.check_number("model_bits", model_bits, least=0)
        found = self.model.conditions(seed, global_round, edge_round, self.devices, model_bits)
        # Absence is drawn per global round: a device does not come and go within one.
        absent = self.availability.is_absent(seed, global_round, self.devices)
        if self.members is not None:
            absent = absent | ~self.members
        if self.trace is not None:
            absent = absent | self.trace.is_absent(global_round, self.devices)
        if self.battery_joules is not None and spent_joules is not None:
            absent = absent | is_exhausted(self.battery_joules, spent_joules)
        # The usual case returns the model's own arrays, without a copy.
        found = found.without(absent) if absent.any() else found
        if not self.participation.is_sampled:
            return found
        counts, key = self.participation.count(self.sizes), (seed, global_round, edge_round)
        sample = self.participation.draw(key, self.cluster, counts, found.available, self.samples)
        return replace(found, available=sample.chosen, weight=sample.weight)

    def misjudge(self, seed: int, conditions: Conditions) -> Conditions:
        """The conditions as plans see them: each device's μ, α and ν times a factor of its own."""
        if not self.estimate_error:
            return conditions
        # Without a round: who judges a device wrongly does so all the time.
        draws = draw_uniforms(seed, "estimate error", (), self.devices, 3).T
        mu, alpha, nu = 1.0 + self.estimate_error * (2.0 * draws - 1.0)
        return replace(
            conditions, mu=mu * conditions.mu, alpha=alpha * conditions.alpha, nu=nu * conditions.nu
        )


def build_fleet(parameters: FleetParameters, seed: int = 0) -> Fleet:
    """Builds the fleet that the parameters describe; reads the trace if there is one.

    The experiment's seed decides which device has the battery of which class.
    """
    given = parameters.conditions
    return Fleet(
        cluster=parameters.assign_clusters(),
        sizes=cluster_sizes(parameters.devices, parameters.clusters),
        model=read_trace(given.file, hold=given.after_end == "hold")
        if isinstance(given, TraceParameters)
        else given,
        availability=parameters.availability,
        battery_joules=_find_batteries(parameters, seed),
        trace=_read_trace(parameters.availability),
        participation=parameters.sampling(),
        estimate_error=parameters.estimate_error,
    )


def _read_trace(given: Availability) -> AvailabilityTrace | None:
    if given.file is None or given.round_seconds is None:
        return None
    return read_availability(given.file, given.round_seconds)


def _find_batteries(parameters: FleetParameters, seed: int) -> FloatArray | None:
    if isinstance(parameters.conditions, HardwareConditions) and parameters.conditions.battery_share:
        return parameters.conditions.battery_joules(seed, parameters.devices)
    given = parameters.battery_joules
    return None if given is None else np.broadcast_to(np.asarray(given, dtype=np.float64), parameters.devices)


def cluster_sizes(devices: int, clusters: int | Sequence[int]) -> IntArray:
    """Devices per cluster: as given, or as evenly as possible with the larger clusters first."""
    if isinstance(clusters, Sequence):
        return validation.make_read_only(np.array(_check_sizes(clusters, devices), dtype=np.int64))
    share, rest = divmod(devices, validation.check_whole("fleet.clusters", clusters, least=1, most=devices))
    return validation.make_read_only(share + (np.arange(clusters) < rest).astype(np.int64))


def _check_sizes(sizes: Sequence[int], devices: int) -> tuple[int, ...]:
    counts = tuple(
        validation.check_whole(f"fleet.clusters[{i}]", size, least=1) for i, size in enumerate(sizes)
    )
    if sum(counts) != devices:
        raise InputError(f"fleet.clusters: sizes sum to {sum(counts)}, must be fleet.devices = {devices}")
    return counts
