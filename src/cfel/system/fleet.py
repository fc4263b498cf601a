"""The fleet of an experiment: its devices and clusters, their conditions, and who takes part.

`FleetParameters` is the experiment file's `[fleet]`; `build_fleet` turns it into a `Fleet`, which gives the
conditions of any edge round. Applied on top of any condition model: some devices are absent, some batteries
run out, and of the rest a sample may be asked; a device that does not take part costs nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import InputError
from cfel.membership import FleetChange, Membership, RoundLoss, list_memberships, start_membership
from cfel.seeding import draw_uniforms
from cfel.system.conditions import ConditionModel, Conditions, RandomConditions, round_index
from cfel.system.device_classes import HardwareConditions
from cfel.system.device_tables import TraceParameters, read_trace
from cfel.system.tables import Table, number_texts, read_table
from cfel.validation import Range, check_fields
from cfel.wording import plural, show


@dataclass(frozen=True, slots=True)
class Availability:
    """When devices are absent (`away` in the experiment file)."""

    # Chance of a device to miss a global round, drawn per device and global round.
    away_probability: Annotated[float, Range(least=0, most=1)] = 0.0
    # (device, from_round, to_round) triples; the device misses these global rounds, both included.
    away: tuple[tuple[int, int, int], ...] = ()
    file: str | None = None  # intervals in which devices are there (`AvailabilityTrace`); None for always
    # Seconds of the file's clock that a global round stands for.
    round_seconds: Annotated[float, Range(above=0)] | None = None

    def __post_init__(self) -> None:
        check_fields("availability", self)
        given = enumerate(validation.check_list("availability.away", self.away))
        object.__setattr__(self, "away", tuple(_check_absence(i, triple) for i, triple in given))
        if (self.file is None) != (self.round_seconds is None):
            raise InputError("availability.file: needs round_seconds, and round_seconds needs a file")

    def check_devices(self, devices: int) -> None:
        """Raises an `InputError` if the absence of an unknown device is listed."""
        for i, (device, _, _) in enumerate(self.away):
            if device >= devices:
                raise InputError(
                    f"availability.away[{i}]: unknown device {device} (allowed: 0 to {devices - 1})"
                )

    def is_absent(self, seed: int, global_round: int, devices: int) -> BoolArray:
        """Whether each device misses this global round."""
        self.check_devices(devices)
        absent = np.zeros(devices, dtype=bool)
        # Streams are keyed by purpose, so leaving out this draw does not shift any other.
        if self.away_probability > 0:
            drawn = draw_uniforms(seed, "availability", (global_round,), devices, 1)[:, 0]
            absent = drawn < self.away_probability
        absent[[device for device, first, last in self.away if first <= global_round <= last]] = True
        return absent


def _check_absence(index: int, triple: object) -> tuple[int, int, int]:
    field = f"availability.away[{index}]"
    if not isinstance(triple, list | tuple) or len(triple) != 3:
        raise InputError(f"{field} = {triple!r}: must be device, first and last global round")
    device, first, last = (validation.check_whole(field, part, least=0) for part in triple)
    if first > last:
        raise InputError(f"{field} = {triple!r}: the first round must not be after the last")
    return device, first, last


def is_exhausted(battery_joules: ArrayLike, spent_joules: ArrayLike) -> BoolArray:
    """Whether each device has spent the charge of its battery; infinity is mains power."""
    charge = validation.check_floats("battery", battery_joules, least=0, finite=False)
    spent = validation.check_floats("spent joules", spent_joules, length=charge.size, least=0)
    return np.asarray(spent >= charge)


_NUMBER = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True, eq=False)
class AvailabilityTrace:
    """When devices were there: one entry per interval, and how long a global round is on its clock.

    After its last end a trace starts again.
    """

    source: str  # the file, for messages
    device: IntArray  # whose interval it is
    # start and end: seconds since the first start.
    start: FloatArray
    end: FloatArray
    round_seconds: float  # seconds of the trace that a global round stands for
    # Number of named devices; None if the file has numbers, where a device without a row is absent.
    named: int | None

    def is_absent(self, global_round: int, devices: int) -> BoolArray:
        """Whether each device is absent at the beginning of a global round."""
        if self.named is not None and devices > self.named:
            raise InputError(
                f"fleet.devices = {devices}: {self.source} has only {plural(self.named, 'device')}"
            )
        now = (global_round * self.round_seconds) % float(self.end.max())
        there = self.device[(self.start <= now) & (now < self.end)]
        absent = np.ones(devices, dtype=bool)
        absent[there[there < devices]] = False
        return absent


def read_availability(path: str | Path, round_seconds: float) -> AvailabilityTrace:
    """Reads an availability trace, CSV or Parquet, with a row per interval.

    Columns: `device`, `start` and `end` (seconds; a device is there from the start until just before the
    end). Devices are numbers 0 … N−1, or names, which are numbered in order of first appearance. The form
    with a row per device and round is a trace of conditions (`device_tables`, column `available`).
    """
    table = read_table(path, ("device", "start", "end"), ("start", "end"), ("device",))
    start, end = table.floats("start"), table.floats("end")
    wrong = end <= start
    if wrong.any():
        row = int(np.argmax(wrong))
        raise table.error("end", row, f"after the start, which is {start[row]:g} there")
    first = float(start.min())
    device, named = _number_devices(table)
    return AvailabilityTrace(str(path), device, start - first, end - first, round_seconds, named)


def _number_devices(table: Table) -> tuple[IntArray, int | None]:
    codes, labels = number_texts(table.texts("device"))
    if all(_NUMBER.fullmatch(label) for label in labels):
        return np.array([int(label) for label in labels], dtype=np.int64)[codes], None
    return codes, len(labels)


Period = Literal["edge_round", "global_round"]
Chances = Literal["uniform", "samples"]


class Sample(NamedTuple):
    """Whether each device is asked, and how much it counts within its cluster; None: as the scheme says."""

    chosen: BoolArray
    weight: FloatArray | None


@dataclass(frozen=True, slots=True)
class Participation:
    """Which of the available devices are asked in an edge round: all of them, or a random sample per cluster.

    A sample is a function of the experiment's seed and the round, so that all schemes, simulator and
    deployment ask the same devices. Sizes of samples are fixed: the number asked for is spread over
    clusters by their size, with at least one device each. Sampled by `samples`, a device's chance is
    proportional to its training samples, and `Sample.weight` makes the average of the sample an unbiased
    estimate of the average by samples.
    """

    amount: float = 1.0  # a share of all devices in (0, 1], or a whole number of them
    per: Period = "edge_round"  # how often a sample is drawn
    by: Chances = "uniform"  # "samples" for chances proportional to the number of training samples

    def __post_init__(self) -> None:
        number = isinstance(self.amount, int | float) and not isinstance(self.amount, bool)
        if not number or not (self.amount >= 1 if isinstance(self.amount, int) else 0 < self.amount <= 1):
            raise InputError(
                f"fleet.participation = {show(self.amount)}: must be a share of the devices, > 0 and ≤ 1.0, "
                "such as 0.2, or a number of devices, such as 20"
            )

    @property
    def is_sampled(self) -> bool:
        """Whether fewer than all devices are asked; a whole number always counts as such."""
        return isinstance(self.amount, int) or self.amount < 1

    @property
    def needs_samples(self) -> bool:
        """Whether the numbers of training samples decide who is asked."""
        return self.is_sampled and self.by == "samples"

    def count(self, sizes: IntArray) -> IntArray:
        """Devices to ask in each cluster, given the sizes of the clusters."""
        # An edge server that has just joined has no devices yet.
        devices, clusters = int(sizes.sum()), int(np.count_nonzero(sizes))
        total = self.amount
        if isinstance(total, int):
            if not clusters <= total <= devices:
                hint = "; write 1.0 for all devices" if total == 1 else ""
                raise InputError(
                    f"fleet.participation = {total}: must be a number of devices from {clusters}, one in "
                    f"each cluster, to {devices}{hint}"
                )
        else:
            total = max(clusters, round(total * devices))
        counts = np.zeros_like(sizes)
        counts[sizes > 0] = _apportion(total, sizes[sizes > 0])
        return counts

    def draw(
        self,
        key: tuple[int, int, int],
        cluster: IntArray,
        counts: IntArray,
        present: BoolArray,
        samples: FloatArray | None,
    ) -> Sample:
        """Draws the devices to ask, of those that are present; where these are too few, all of them.

        The key is the experiment's seed, global round and edge round.
        """
        seed, global_round, edge_round = key
        index = round_index(self.per, global_round, edge_round)
        # Always two draws per device, so that both ways of sampling use the same stream.
        order, start = draw_uniforms(seed, "participation", index, cluster.size, 2).T
        chosen, weight = np.zeros(cluster.size, dtype=bool), np.ones(cluster.size)
        by_samples = self.by == "samples"
        if by_samples and samples is None:
            raise InputError("fleet.participation_by = 'samples': the numbers of samples are not known")
        ranked = np.lexsort((order, cluster))
        ranked = ranked[present[ranked]]
        ends = np.searchsorted(cluster[ranked], np.arange(1, counts.size))
        for who, count in zip(np.split(ranked, ends), counts.tolist(), strict=True):
            if by_samples and samples is not None and who.size:
                chances = inclusion_chances(samples[who], count)
                chosen[who[_draw_systematically(chances, float(start[who[0]]))]] = True
                weight[who] = samples[who] / chances
            else:
                chosen[who[:count]] = True
        return Sample(chosen, weight if by_samples else None)


def inclusion_chances(sizes: FloatArray, count: int) -> FloatArray:
    """Chances that sum to `count`, proportional to sizes > 0; those above 1 are 1, others share the rest."""
    chances, free = np.ones(sizes.size), np.ones(sizes.size, dtype=bool)
    left = min(count, sizes.size)
    while left and free.any():
        shares = left * sizes / sizes[free].sum()
        certain = free & (shares >= 1)
        chances[free] = shares[free]
        if not certain.any():
            break
        chances[certain] = 1.0
        free &= ~certain
        left -= int(certain.sum())
    return chances


def _draw_systematically(chances: FloatArray, start: float) -> IntArray:
    """Systematic sampling: exactly Σ chances entries, each with its own chance, from one uniform draw."""
    total = round(float(chances.sum()))
    # One pointer in every unit interval of the running sum; rounding must not push the last one off its end.
    ends = np.cumsum(chances)
    ends[-1] = max(ends[-1], float(total))
    return np.searchsorted(ends, np.arange(total) + start, side="right").astype(np.int64)


def _apportion(total: int, sizes: IntArray) -> IntArray:
    """Spreads a number of devices over clusters by size: at least one each, never more than there are."""
    wanted = sizes * (total / sizes.sum())
    counts: IntArray = np.maximum(1, np.floor(wanted)).astype(np.int64)
    for _ in range(total - int(counts.sum())):
        counts[int(np.argmax(np.where(counts < sizes, wanted - counts, -np.inf)))] += 1
    for _ in range(int(counts.sum()) - total):
        counts[int(np.argmax(np.where(counts > 1, counts - wanted, -np.inf)))] -= 1
    return counts


ConditionParameters = RandomConditions | HardwareConditions | TraceParameters
MAX_DEVICES = 10**7
MAX_CLUSTERS = 4096
"""Mixing weights are a square matrix of this size."""


@dataclass(frozen=True, slots=True)
class FleetParameters:
    """Devices and clusters."""

    devices: Annotated[int, Range(least=1, most=MAX_DEVICES)] = 64  # N, number of devices, ≥ 1
    # Number of clusters, filled as evenly as possible, or the size of each.
    clusters: int | tuple[int, ...] = 8
    conditions: ConditionParameters = field(default_factory=RandomConditions)  # where conditions come from
    availability: Availability = field(default_factory=Availability)  # which devices are absent when
    # Charge of every battery, one number for all or one per device; None for mains power.
    battery_joules: float | tuple[float, ...] | None = None
    # Devices asked in an edge round, a share in (0, 1] or a whole number; 1.0 for all.
    participation: float = 1.0
    participation_per: Period = "edge_round"  # how often they are drawn
    # Chances of devices, all alike ("uniform") or by their training "samples".
    participation_by: Chances = "uniform"
    # How wrong plans are about μ, α and ν of every device, in [0, 1): each is taken to be up to that share
    # more or less, the same throughout the run. Costs are those of the true values.
    estimate_error: Annotated[float, Range(least=0, below=1)] = 0.0
    # How the fleet changes in the course of the run: tables with `round` (the first that a change holds for)
    # and `what` ("add device", "remove device", "move device", "add edge", "remove edge", "drain edge",
    # "extend", "pause" or "resume"), and `device`, `edge`, `rounds`, `seconds` or `joules`.
    changes: tuple[FleetChange, ...] = ()
    # Who was missing when, to repeat the run of a federation: tables with `round`, `edge_round` and `absent`,
    # `lost` and `trained` devices, or `step`, `rows` and `mixed` of gossip. `cfel fleet replay` writes them.
    losses: tuple[RoundLoss, ...] = ()

    def __post_init__(self) -> None:
        sampling = self.sampling()
        check_fields("fleet", self)
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
        self.availability.check_devices(self.devices)
        if isinstance(self.conditions, HardwareConditions):
            self.conditions.check_devices(self.devices)
            if self.conditions.battery_share and self.battery_joules is not None:
                raise InputError("fleet.battery_joules: not together with conditions.battery_share")
        # Also rejects a number of devices that does not fit the clusters.
        sampling.count(cluster_sizes(self.devices, self.clusters))
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
        return [n for n in range(self.devices) if self.members is None or self.members[n]]

    def list_edges(self) -> list[int]:
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
    given, away, battery = parameters.conditions, parameters.availability, parameters.battery_joules
    joules = None if battery is None else np.broadcast_to(np.asarray(battery, float), parameters.devices)
    if isinstance(given, HardwareConditions) and given.battery_share:
        joules = given.battery_joules(seed, parameters.devices)
    return Fleet(
        cluster=parameters.assign_clusters(),
        sizes=cluster_sizes(parameters.devices, parameters.clusters),
        model=read_trace(given.file, hold=given.after_end == "hold")
        if isinstance(given, TraceParameters)
        else given,
        availability=away,
        battery_joules=joules,
        trace=read_availability(away.file, away.round_seconds) if away.file and away.round_seconds else None,
        participation=parameters.sampling(),
        estimate_error=parameters.estimate_error,
    )


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
