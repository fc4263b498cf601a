"""Aggregation at an edge server: the mean, or a rule that a few devices with wrong updates cannot ruin.

    mean          the paper's, `roles.edge_aggregate`
    trimmed_mean  entry by entry, without the smallest and the largest values
    median        entry by entry, the middle value
    clipped       the mean, after scaling down updates that are much longer than usual

`aggregate` is the function to call. All rules are pure and do not depend on the order in which reports
arrive. An entry that a sparse update leaves out counts as zero, as it does for the mean. Batch-norm
statistics go through the same rule: otherwise an attacker would use them. All but the mean leave out a report
that is not finite once it is decoded. No rule helps against a majority of wrong devices, or against many that
agree on a small push in one direction.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from cfel import validation
from cfel.errors import InputError, unknown_name
from cfel.learning.compressors import DenseUpdate, SampledUpdate, SparseUpdate, Update, decode, draw_places
from cfel.learning.device_messages import DeviceReport
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import add_updates, check_fits, edge_aggregate, weights_of


def norm(values: Tensor) -> float:
    """Euclidean norm in float64; infinite or NaN if an entry is."""
    return float(torch.linalg.vector_norm(values.double()))


def update_norm(update: Update) -> float:
    """Euclidean norm of an update's decoded vector; infinite or NaN if it decodes to such entries.

    Finite numbers may decode to infinite ones: a scale times a code, or a sum of rotated values, can exceed
    the largest float. In float64 no float32 vector overflows.
    """
    return norm(update.values if isinstance(update, DenseUpdate | SparseUpdate) else decode(update))


def is_finite(report: DeviceReport) -> bool:
    """Whether all entries of a report's decoded update and of its batch-norm statistics are finite."""
    return math.isfinite(update_norm(report.update)) and math.isfinite(norm(report.buffers))


def clip_reports(model: FlatModel, reports: Sequence[DeviceReport], clip: float) -> list[DeviceReport]:
    """Scales long updates down to `clip` times the median length, and batch-norm statistics likewise."""
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


Kind = Literal["mean", "trimmed_mean", "median", "clipped"]
BLOCK_ENTRIES = 1 << 16
"""Entries sorted at a time: memory per device grows by this much, and not by a whole model."""

Rule: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(devices × entries, weight per device) → one value per entry, all float64."""


@dataclass(frozen=True, slots=True)
class AggregationParameters:
    """The experiment file's `[aggregation]` section.

    Attributes:
        kind: how an edge server combines updates; "mean" is the paper's.
        trim: for `trimmed_mean`: share of the devices left out at each end, in [0, 0.5), rounded down.
        optimiser: what an edge server makes of the mean update: "none", "momentum", "fedadam", "fedyogi", an
            entry point's name, or "module:function".
        learning_rate: of the optimiser, > 0.
        options: settings of this optimiser.
        average: share of every global round's model in an average over rounds, which is evaluated and
            exported instead of the last model, in [0, 1); 0 for none.
        clip: for `clipped`: longest update, relative to the median length (of two, the shorter), > 0.
        buffer: an edge server aggregates as soon as it has this many updates, and discounts those that come
            later, ≥ 1; 0 for waiting for all. In simulations only.
    """

    kind: Kind = "mean"
    trim: float = 0.2
    clip: float = 2.0
    optimiser: str = "none"
    learning_rate: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    average: float = 0.0
    buffer: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(unknown_name("aggregation.kind", self.kind, get_args(Kind)))
        if validation.check_number("aggregation.trim", self.trim, least=0) >= 0.5:
            raise InputError(f"aggregation.trim = {self.trim}: must be less than 0.5, or no device is left")
        validation.check_number("aggregation.clip", self.clip, above=0)
        validation.check_text("aggregation.optimiser", self.optimiser)
        validation.check_number("aggregation.learning_rate", self.learning_rate, above=0)
        if not isinstance(self.options, Mapping):
            raise InputError(f"aggregation.options = {self.options!r}: must be a table")
        validation.check_number("aggregation.average", self.average, least=0, below=1)
        validation.check_whole("aggregation.buffer", self.buffer, least=0)


def aggregate(
    model: FlatModel,
    reports: Iterable[DeviceReport],
    weights: Mapping[int, float],
    parameters: AggregationParameters,
) -> FlatModel:
    """The new edge model by the rule that the experiment asks for; simulator and deployment both call this.

    The mean uses each report when it arrives and keeps none; the other rules need all of them at once.

    Args:
        model: the model the devices started from; not changed.
        reports: of the devices in `weights`, by ascending id.
        weights: by device id, > 0, of the devices that take part; with none the model stays the same.
        parameters: which rule.
    """
    if not weights:
        return model
    devices = sorted(weights)
    expected = _check_senders(reports, devices)
    # Not collected in a list: with a million devices the reports would not fit into memory.
    if parameters.kind == "mean":
        return add_updates(model, expected, weights_of(devices, weights))
    return robust_aggregate(model, list(expected), weights, parameters)


def _check_senders(reports: Iterable[DeviceReport], devices: Sequence[int]) -> Iterator[DeviceReport]:
    """Passes the reports on; a sum in another order than by id would have other bits."""
    expected = iter(devices)
    for report in reports:
        if report.device != next(expected, None):
            raise InputError(f"report of device {report.device}: unexpected, or out of order")
        yield report
    for device in expected:
        raise InputError(f"report of device {device}: missing")


def robust_aggregate(
    model: FlatModel,
    reports: Sequence[DeviceReport],
    weights: Mapping[int, float] | None,
    parameters: AggregationParameters,
) -> FlatModel:
    """Adds what the rule makes of the updates to the edge model.

    When a rule has nothing to leave out, the result has the same bits as the mean. With no report that is
    finite the model stays the same.
    """
    for report in reports:
        check_fits(model, report)
    # Infinity times zero is not a number: no weight and no clipping would make such a report harmless.
    ordered = [each for each in sorted(reports, key=lambda report: report.device) if is_finite(each)]
    trimmed = math.floor(parameters.trim * len(ordered))
    match parameters.kind:
        case "clipped":
            return edge_aggregate(model, clip_reports(model, ordered, parameters.clip), weights)
        case "trimmed_mean" if trimmed:
            return _aggregate_by_entry(
                model, ordered, weights, lambda values, each: trimmed_mean(values, each, trimmed)
            )
        case "median" if len(ordered) > 2:
            return _aggregate_by_entry(model, ordered, weights, weighted_median)
    return edge_aggregate(model, ordered, weights)


def trimmed_mean(values: Tensor, weights: Tensor, trimmed: int) -> Tensor:
    """The weighted mean of each column without its `trimmed` smallest and largest values."""
    # Stable: among equal values the device with the lowest id comes first, so results repeat bit for bit.
    ranked, order = torch.sort(values, dim=0, stable=True)
    kept = slice(trimmed, len(values) - trimmed)
    share = weights[order][kept]
    return (ranked[kept] * share).sum(0) / share.sum(0)


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """The value of each column with half the weight on either side, or the middle between two such values."""
    ranked, order = torch.sort(values, dim=0, stable=True)
    below = weights[order].cumsum(0)
    half = below[-1] / 2
    # The first places where the weight reaches half, and where it exceeds half. They differ only in a tie.
    low = (below >= half).to(torch.int8).argmax(0, keepdim=True)
    high = (below > half).to(torch.int8).argmax(0, keepdim=True)
    return ((ranked.gather(0, low) + ranked.gather(0, high)) / 2)[0]


def _aggregate_by_entry(
    model: FlatModel, ordered: Sequence[DeviceReport], weights: Mapping[int, float] | None, rule: Rule
) -> FlatModel:
    devices = [report.device for report in ordered]
    each = torch.tensor(weights_of(devices, weights), dtype=torch.float64)
    readers = [_make_reader(report.update) for report in ordered]
    parameters = model.parameters.clone()
    # Sorting all entries of all devices at once would take the memory of one model per device.
    for start in range(0, parameters.numel(), BLOCK_ENTRIES):
        stop = min(start + BLOCK_ENTRIES, parameters.numel())
        values = torch.stack([read(start, stop) for read in readers]).double()
        parameters[start:stop] += rule(values, each).float()
    buffers = torch.stack([report.buffers for report in ordered]).double()
    return FlatModel(parameters, rule(buffers, each).float() if model.buffers.numel() else model.buffers)


Reader: TypeAlias = Callable[[int, int], Tensor]
"""(start, stop) → these entries of an update, dense."""


def _make_reader(update: Update) -> Reader:
    """A function that reads an update block by block; other kinds of updates are made dense once."""
    match update:
        case DenseUpdate(values):
            return lambda start, stop: values[start:stop]
        case SparseUpdate(_, indices, values):
            return _make_sparse_reader(indices, values)
        case SampledUpdate(size, key, values, None):
            return _make_sparse_reader(draw_places(key, size, values.numel()), values)
        case _:
            dense = decode(update)
            return lambda start, stop: dense[start:stop]


def _make_sparse_reader(indices: Tensor, values: Tensor) -> Reader:
    def read(start: int, stop: int) -> Tensor:
        bounds = torch.tensor([start, stop], dtype=indices.dtype)
        first, last = torch.searchsorted(indices, bounds).tolist()
        block = torch.zeros(stop - start)
        block[indices[first:last].long() - start] = values[first:last]
        return block

    return read
