"""Lengths of updates: whether one is finite once it is decoded, and scaling down the long ones.

A compressed update may hold finite numbers only and still decode to infinite ones: a scale times a code, or a
sum of rotated values, can exceed the largest float. So lengths are those of the decoded vector, in float64,
which no float32 vector overflows. What is too long is decided by the callers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cfel.learning.compression.compressors import DenseUpdate, SparseUpdate, Update
from cfel.learning.device_messages import DeviceReport
from cfel.learning.models.flat import FlatModel


def norm(values: Tensor) -> float:
    """Euclidean norm in float64; infinite or NaN if an entry is."""
    return float(torch.linalg.vector_norm(values.double()))


def update_norm(update: Update) -> float:
    """Euclidean norm of an update's decoded vector; infinite or NaN if it decodes to such entries."""
    if isinstance(update, DenseUpdate | SparseUpdate):
        return norm(update.values)
    dense = torch.zeros(update.size)
    update.add_to(dense, 1.0)
    return norm(dense)


def is_finite(report: DeviceReport) -> bool:
    """Whether all entries of a report's decoded update and of its batch-norm statistics are finite."""
    return math.isfinite(update_norm(report.update)) and math.isfinite(norm(report.buffers))


def clip_reports(model: FlatModel, reports: Sequence[DeviceReport], clip: float) -> list[DeviceReport]:
    """Scales long updates down to `clip` times the median length, and batch-norm statistics likewise.

    Args:
        model: the model the devices started from.
        reports: finite ones.
        clip: > 0.
    """
    if not reports:
        return []
    updates = _clip_factors([update_norm(report.update) for report in reports], clip)
    drifts = _clip_factors([norm(report.buffers - model.buffers) for report in reports], clip)
    scaled = []
    for report, factor, drift in zip(reports, updates, drifts, strict=True):
        update = report.update if factor == 1.0 else ScaledUpdate(report.update, factor)
        # Statistics are values and not differences: they move back towards the edge model's.
        buffers = report.buffers if drift == 1.0 else torch.lerp(model.buffers, report.buffers, drift)
        scaled.append(replace(report, update=update, buffers=buffers))
    return scaled


def _clip_factors(norms: Sequence[float], clip: float) -> list[float]:
    most = clip * _find_usual(norms)
    return [1.0 if each <= most else most / each for each in norms]


def _find_usual(norms: Sequence[float]) -> float:
    """The median length: a few very long updates cannot move it, as they would move the mean."""
    if len(norms) == 2:
        # The middle of two is at least half the longer one, so nothing would ever be clipped to it. A device
        # that took no step sends zeros, which says nothing about the other one.
        return min((each for each in norms if each), default=0.0)
    return float(torch.tensor(norms, dtype=torch.float64).quantile(0.5))


@dataclass(frozen=True, slots=True)
class ScaledUpdate:
    """An update times a factor; `wire_bits` stays the size that the device sent."""

    update: Update
    factor: float

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.update.size

    @property
    def wire_bits(self) -> int:
        """Size of the update that the device sent."""
        return self.update.wire_bits

    def add_to(self, dense: Tensor, weight: float) -> None:
        """Adds weight · factor · the vector."""
        self.update.add_to(dense, weight * self.factor)
