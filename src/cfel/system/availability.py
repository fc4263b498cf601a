"""Which devices take part: some are absent, some batteries run out, and of the rest a sample may be asked.

Applied on top of any condition model; a device that does not take part costs nothing.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import InputError, unknown_name
from cfel.seeding import draw_uniforms
from cfel.system.conditions import round_index
from cfel.system.tables import Table, number_texts, read_table
from cfel.wording import plural, show


@dataclass(frozen=True, slots=True)
class Availability:
    """When devices are absent (`away` in the experiment file)."""

    # Chance of a device to miss a global round, drawn per device and global round.
    away_probability: float = 0.0
    # (device, from_round, to_round) triples; the device misses these global rounds, both included.
    away: tuple[tuple[int, int, int], ...] = ()
    file: str | None = None  # intervals in which devices are there (`AvailabilityTrace`); None for always
    round_seconds: float | None = None  # seconds of the file's clock that a global round stands for

    def __post_init__(self) -> None:
        validation.check_number("availability.away_probability", self.away_probability, least=0, most=1)
        given = enumerate(validation.check_list("availability.away", self.away))
        object.__setattr__(self, "away", tuple(_check_absence(i, triple) for i, triple in given))
        if self.file is not None:
            validation.check_text("availability.file", self.file)
        if self.round_seconds is not None:
            validation.check_number("availability.round_seconds", self.round_seconds, above=0)
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


def joules_left(battery_joules: ArrayLike, spent_joules: ArrayLike) -> FloatArray:
    """What each battery still holds, never below 0; a charge of infinity is mains power."""
    charge = validation.check_floats("battery", battery_joules, least=0, finite=False)
    spent = validation.check_floats("spent joules", spent_joules, length=charge.size, least=0)
    return np.maximum(charge - spent, 0.0)


def is_exhausted(battery_joules: ArrayLike, spent_joules: ArrayLike) -> BoolArray:
    """Whether each device's battery is empty (see `joules_left`)."""
    return np.asarray(joules_left(battery_joules, spent_joules) <= 0)


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


PERIODS = ("edge_round", "global_round")
CHANCES = ("uniform", "samples")


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
    per: str = "edge_round"  # "edge_round" or "global_round", how often a sample is drawn
    by: str = "uniform"  # "uniform", or "samples" for chances proportional to the number of training samples

    def __post_init__(self) -> None:
        number = isinstance(self.amount, int | float) and not isinstance(self.amount, bool)
        if not number or not (self.amount >= 1 if isinstance(self.amount, int) else 0 < self.amount <= 1):
            raise InputError(
                f"fleet.participation = {show(self.amount)}: must be a share of the devices, > 0 and ≤ 1.0, "
                "such as 0.2, or a number of devices, such as 20"
            )
        for field, allowed in (("per", PERIODS), ("by", CHANCES)):
            if getattr(self, field) not in allowed:
                raise InputError(unknown_name(f"fleet.participation_{field}", getattr(self, field), allowed))

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
