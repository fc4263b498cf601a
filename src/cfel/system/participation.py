"""Which of the available devices are asked in an edge round: all of them, or a random sample per cluster.

A sample is a function of the experiment's seed and the round, so that all schemes, simulator and deployment
ask the same devices. Sizes of samples are fixed: the number asked for is spread over clusters by their size,
with at least one device each. Sampled by `samples`, a device's chance is proportional to its training
samples, and `Sample.weight` makes the average of the sample an unbiased estimate of the average by samples.
Who is absent anyway is decided in `availability`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import InputError, unknown_name
from cfel.seeding import draw_uniforms
from cfel.system.conditions import round_index

PERIODS = ("edge_round", "global_round")
CHANCES = ("uniform", "samples")


class Sample(NamedTuple):
    """Whether each device is asked, and how much it counts within its cluster; None: as the scheme says."""

    chosen: BoolArray
    weight: FloatArray | None


@dataclass(frozen=True, slots=True)
class Participation:
    """How many devices are asked, how often they are drawn, and with which chances.

    Attributes:
        amount: a share of all devices in (0, 1], or a whole number of them.
        per: "edge_round" or "global_round", how often a sample is drawn.
        by: "uniform", or "samples" for chances proportional to the number of training samples.
    """

    amount: float = 1.0
    per: str = "edge_round"
    by: str = "uniform"

    def __post_init__(self) -> None:
        if isinstance(self.amount, int) and not isinstance(self.amount, bool):
            validation.check_whole("fleet.participation", self.amount, least=1)
        else:
            validation.check_number("fleet.participation", self.amount, above=0, most=1)
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
        """Devices to ask in each cluster.

        Args:
            sizes: devices per cluster, each at least 1.

        Raises:
            InputError: there are fewer devices to ask than clusters, or more than devices.
        """
        devices, clusters = int(sizes.sum()), sizes.size
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
        return _apportion(total, sizes)

    def draw(
        self,
        seed: int,
        global_round: int,
        edge_round: int,
        cluster: IntArray,
        counts: IntArray,
        present: BoolArray,
        samples: FloatArray | None,
    ) -> Sample:
        """Draws the devices to ask, of those that are present.

        Args:
            seed: the experiment's.
            global_round: l, from 0.
            edge_round: r, from 0.
            cluster: cluster of every device.
            counts: devices to ask per cluster; where fewer are present, all of them are asked.
            present: whether each device is available.
            samples: training samples per device; needed for `by = "samples"`.
        """
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
    """Chances proportional to sizes that sum to `count`; what would exceed 1 is 1, the rest shares the rest.

    Args:
        sizes: > 0.
        count: how many to choose; at most all.
    """
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
