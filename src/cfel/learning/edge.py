"""What an edge server does: aggregate, apply its rules, gossip. Simulator and deployment share it.

    update_edge_model  the next edge model: the devices' updates aggregated, then the edge server's rules
    edge_aggregate     adds the weighted mean of updates to a model: the paper's rule
    robust_aggregate   trimmed mean, median, clipped mean, Krum and others: a few devices with wrong updates
                       cannot ruin them; or a user-defined rule over single updates
    gossip_mix         replaces each edge model by a weighted average with its neighbours' models
    mean_model         the mean over clusters

Sums run in the order of ids, so results do not depend on the order in which reports arrive. An entry that a
sparse update leaves out counts as zero. Batch-norm statistics go through the same rule: otherwise an attacker
would use them. All rules but the mean leave out a report that is not finite once it is decoded. No rule helps
against a majority of wrong devices, or against many that agree on a small push in one direction.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cfel import validation
from cfel.arrays import FloatArray, IntArray
from cfel.errors import InputError, unknown_name
from cfel.learning.compressors import DenseUpdate, SampledUpdate, SparseUpdate, Update, decode, draw_places
from cfel.learning.device_messages import DeviceReport
from cfel.learning.edge_rule import EdgeRound, EdgeRule, read_memory
from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters, lower_rate
from cfel.learning.models.flat import FlatModel, Slot, Tensors
from cfel.learning.torch_state import map_in_threads
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, call_part, check_call, check_result, resolve
from cfel.runlog import Checkpoint

# The mean of updates, and gossip.


def edge_aggregate(
    model: FlatModel, reports: Sequence[DeviceReport], weights: Mapping[int, float] | None = None
) -> FlatModel:
    """Adds the weighted mean of the updates to the edge model (Algorithm 1, line 12)."""
    # Floating-point sums depend on their order, and reports arrive in any.
    ordered = sorted(reports, key=lambda report: report.device)
    if not ordered:
        return model
    return add_updates(model, ordered, weights_of([report.device for report in ordered], weights))


def add_updates(model: FlatModel, reports: Iterable[DeviceReport], weights: Sequence[float]) -> FlatModel:
    """`edge_aggregate` of a stream of reports: each is used when it arrives, and none is kept."""
    # Each weight is divided by the total first: then a report is complete once it has been added.
    total = math.fsum(weights)
    parameters, buffers = model.parameters.clone(), torch.zeros_like(model.buffers)
    for report, weight in zip(reports, weights, strict=True):
        check_fits(model, report)
        report.update.add_to(parameters, weight / total)
        # Batch-norm statistics are averaged as they are: they are values, not differences.
        buffers.add_(report.buffers, alpha=weight / total)
    return FlatModel(parameters, buffers)


def check_fits(model: FlatModel, report: DeviceReport) -> None:
    """Checks that a report is about a model of this size."""
    if report.update.size != model.parameters.numel():
        raise InputError(
            f"report of device {report.device}: {report.update.size} entries, the model has "
            f"{model.parameters.numel()}"
        )


def weights_of(devices: Iterable[int], weights: Mapping[int, float] | None) -> list[float]:
    """The weight of each device, not scaled."""
    return [1.0 if weights is None else _check_weight(weights, device) for device in devices]


def _check_weight(weights: Mapping[int, float], device: int) -> float:
    weight = weights.get(device, math.nan)
    if not (weight > 0 and math.isfinite(weight)):
        raise InputError(f"weights: device {device} must have a positive number, got {weight}")
    return weight


def weighted_model(models: Mapping[int, FlatModel], weights: Mapping[int, float]) -> FlatModel:
    """Σ over ids of weight · model, summed by ascending id; models with weight zero are skipped."""
    # Only neighbours have weight, and only their models need to be in `models`.
    ids = sorted(i for i, weight in weights.items() if weight != 0)
    if not ids:
        raise InputError("weights: all are zero")
    parameters = models[ids[0]].parameters * weights[ids[0]]
    buffers = models[ids[0]].buffers * weights[ids[0]]
    memory = models[ids[0]].memory * weights[ids[0]]
    for i in ids[1:]:
        parameters.add_(models[i].parameters, alpha=weights[i])
        buffers.add_(models[i].buffers, alpha=weights[i])
        memory.add_(models[i].memory, alpha=weights[i])
    return FlatModel(parameters, buffers, memory)


def gossip_mix(models: Sequence[FlatModel], mixing: FloatArray, workers: int = 0) -> list[FlatModel]:
    """One gossip step: y_i ← Σ_j W_ij y_j (Algorithm 1, line 14)."""
    if mixing.shape != (len(models), len(models)):
        raise InputError(f"mixing matrix: shape {mixing.shape} for {len(models)} edge models")
    by_id = dict(enumerate(models))

    def mix(row: FloatArray) -> FlatModel:
        return weighted_model(by_id, {j: float(w) for j, w in enumerate(row)})

    return map_in_threads(mix, list(mixing), workers)


# Rules beside the mean, which a few devices with wrong updates cannot ruin:
#
#     trimmed_mean  entry by entry, without the smallest and the largest values
#     median        entry by entry, the middle value, without weights
#     clipped       the mean, after scaling down updates that are much longer than usual
#
# and those of `UPDATE_RULES`, which compare whole updates.


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
        return self.update.size

    @property
    def wire_bits(self) -> int:
        """Size of the update that the device sent."""
        return self.update.wire_bits

    def add_to(self, dense: Tensor, weight: float) -> None:
        self.update.add_to(dense, weight * self.factor)


SCHEDULES = ("constant", "linear", "cosine")
BLOCK_ENTRIES = 1 << 16
"""Entries sorted at a time: memory per device grows by this much, and not by a whole model."""

Rule: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(devices × entries, weight per device) → one value per entry, all float64."""


@dataclass(frozen=True, slots=True)
class AggregationParameters:
    """The experiment file's `[aggregation]` section.

    Attributes:
        kind: how an edge server combines updates: "mean" (the paper's), "trimmed_mean", "median", "clipped",
            "krum", "geometric_median", an entry point's name, or "module:function".
        trim: share of the devices left out, in [0, 0.5), rounded down: for `trimmed_mean` at each end, for
            `krum` in all.
        optimiser: what an edge server makes of the mean update: "none", "orthogonal", "momentum", "fedadam",
            "fedyogi", an entry point's name, or "module:function".
        learning_rate: of the optimiser, > 0.
        schedule: how that rate changes in the course of the run: "constant", "linear" or "cosine"; counted as
            `local.schedule_by` says.
        final_rate: share of the rate that `linear` and `cosine` end with, in [0, 1].
        options: settings of this optimiser, or of a user-defined kind.
        average: share of every global round's model in an average over rounds, which is evaluated and
            exported instead of the last model, in [0, 1); 0 for none.
        clip: for `clipped`: longest update, relative to the median length (of two, the shorter), > 0.
        buffer: an edge server aggregates as soon as it has this many updates, and discounts those that come
            later, ≥ 1; 0 for waiting for all. In simulations only.
    """

    kind: str = "mean"
    trim: float = 0.2
    clip: float = 2.0
    optimiser: str = "none"
    learning_rate: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    final_rate: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    average: float = 0.0
    buffer: int = 0

    def __post_init__(self) -> None:
        validation.check_text("aggregation.kind", self.kind)
        if validation.check_number("aggregation.trim", self.trim, least=0) >= 0.5:
            raise InputError(f"aggregation.trim = {self.trim}: must be less than 0.5, or no device is left")
        validation.check_number("aggregation.clip", self.clip, above=0)
        validation.check_text("aggregation.optimiser", self.optimiser)
        validation.check_number("aggregation.learning_rate", self.learning_rate, above=0)
        if self.schedule not in SCHEDULES:
            raise InputError(unknown_name("aggregation.schedule", self.schedule, SCHEDULES))
        validation.check_number("aggregation.final_rate", self.final_rate, least=0, most=1)
        if not isinstance(self.options, Mapping):
            raise InputError(f"aggregation.options = {self.options!r}: must be a table")
        validation.check_number("aggregation.average", self.average, least=0, below=1)
        validation.check_whole("aggregation.buffer", self.buffer, least=0)

    def find_rate(self, used: float) -> float:
        """The share of the optimiser's learning rate that is left when a share `used` of the run is over."""
        return lower_rate(self.schedule, self.final_rate, used)


def aggregate(
    model: FlatModel,
    reports: Iterable[DeviceReport],
    weights: Mapping[int, float],
    parameters: AggregationParameters,
    rule: "UpdateRule | None" = None,
) -> FlatModel:
    """The new edge model by the rule that the experiment asks for; simulator and deployment both call this.

    The mean uses each report when it arrives and keeps none; the other rules need all of them at once.
    Reports are those of the devices in `weights`, which are > 0, by ascending id; without any, the model
    stays the same. A user-defined rule is passed as `rule`.
    """
    if not weights:
        return model
    devices = sorted(weights)
    expected = _check_senders(reports, devices)
    # Not collected in a list: with a million devices the reports would not fit into memory.
    if parameters.kind == "mean":
        return add_updates(model, expected, weights_of(devices, weights))
    return robust_aggregate(model, list(expected), weights, parameters, rule)


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
    rule: "UpdateRule | None" = None,
) -> FlatModel:
    """Adds what the rule makes of the updates to the edge model.

    When trimmed mean, median or clipped mean have nothing to leave out, the result has the same bits as the
    mean. With no report that is finite the model stays the same.
    """
    for report in reports:
        check_fits(model, report)
    # Infinity times zero is not a number: no weight and no clipping would make such a report harmless.
    ordered = [each for each in sorted(reports, key=lambda report: report.device) if is_finite(each)]
    trimmed = math.floor(parameters.trim * len(ordered))
    rule = rule or UPDATE_RULES.get(parameters.kind)
    if rule is not None and ordered:
        return _aggregate_by_update(model, ordered, weights, parameters, rule)
    match parameters.kind:
        case "clipped":
            return edge_aggregate(model, clip_reports(model, ordered, parameters.clip), weights)
        case "trimmed_mean" if trimmed:
            return _aggregate_by_entry(
                model, ordered, weights, lambda values, each: trimmed_mean(values, each, trimmed)
            )
        case "median" if len(ordered) > 2:
            return _aggregate_by_entry(model, ordered, None, lambda values, _: median(values))
    return edge_aggregate(model, ordered, weights)


def trimmed_mean(values: Tensor, weights: Tensor, trimmed: int) -> Tensor:
    """The weighted mean of each column without its `trimmed` smallest and largest values."""
    # Stable: among equal values the device with the lowest id comes first, so results repeat bit for bit.
    ranked, order = torch.sort(values, dim=0, stable=True)
    kept = slice(trimmed, len(values) - trimmed)
    share = weights[order][kept]
    return (ranked[kept] * share).sum(0) / share.sum(0)


def median(values: Tensor) -> Tensor:
    """The middle value of each column, or the middle between the two middle values.

    Every device counts once: by weights that devices report, one could choose the result.
    """
    ranked, last = torch.sort(values, dim=0).values, len(values) - 1
    return (ranked[last // 2] + ranked[last - last // 2]) / 2


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


# Rules that compare whole updates. A user-defined one is used like those that come with cfel.


UpdateRule: TypeAlias = Callable[[Tensor, Tensor, AggregationParameters], Tensor]
"""(devices × entries, weight per device, parameters) → the update that the edge server applies.

Devices come in the order of their ids. The entries are float32: those of the update, with zeros for what was
not sent, and then the change of the batch-norm statistics. Weights are float64.
"""


def krum(updates: Tensor, weights: Tensor, parameters: AggregationParameters) -> Tensor:
    """Multi-Krum: the mean without the ⌊trim · n⌋ updates that are farthest from their neighbours.

    The distance of an update is the sum of its squared distances to the n − ⌊trim · n⌋ − 2 nearest others.
    Blanchard et al.: Machine learning with adversaries, NIPS 2017.
    """
    count = len(updates)
    wrong = math.floor(parameters.trim * count)
    # The nearest of all is the update itself.
    nearest = _squared_distances(updates).sort(1).values[:, 1 : max(2, count - wrong - 1)]
    # Stable: among equals the device with the lowest id is kept.
    kept = nearest.sum(1).argsort(stable=True)[: count - wrong]
    return _weigh(updates, torch.zeros_like(weights).index_copy_(0, kept, weights[kept]))


def geometric_median(updates: Tensor, weights: Tensor, _: AggregationParameters) -> Tensor:
    """The point with the smallest sum of distances to the updates, by Weiszfeld's iteration.

    Every device counts once: by weights that devices report, one could choose the result. Pillutla, Kakade,
    Harchaoui: Robust aggregation for federated learning, IEEE Transactions on Signal Processing, 2022.
    """
    point = _weigh(updates, torch.ones_like(weights))
    for _step in range(_WEISZFELD_STEPS):
        distances = torch.stack([(row - point).norm() for row in updates])
        # An update at the very point must not get infinite weight. Relative to the median: a wrong update
        # could make the largest distance as large as it likes.
        least = distances.median() * _SMOOTHING
        # Half of the updates are at the point.
        if not least:
            break
        point, before = _weigh(updates, 1 / distances.clamp(min=least)), point
        if (point - before).norm() <= least:
            break
    return point


_WEISZFELD_STEPS = 50
_SMOOTHING = 1e-6
"""Of distances, relative to the median; also where the iteration ends."""


def _squared_distances(updates: Tensor) -> Tensor:
    """Squared distance between each two updates, in float64."""
    distances = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for start in range(0, updates.shape[1], BLOCK_ENTRIES):
        block = updates[:, start : start + BLOCK_ENTRIES].double()
        for number, row in enumerate(block):
            distances[number] += (block - row).square().sum(1)
    return distances


def _weigh(updates: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of the updates, in float64, summed by id."""
    total = torch.zeros(updates.shape[1], dtype=torch.float64)
    for row, share in zip(updates, (weights / weights.sum()).tolist(), strict=True):
        if share:
            total.add_(row, alpha=share)
    return total


UPDATE_RULES: Mapping[str, UpdateRule] = MappingProxyType(
    {"krum": krum, "geometric_median": geometric_median}
)
_BY_ENTRY = ("mean", "trimmed_mean", "median", "clipped")


def find_update_rule(kind: str, code: CodePolicy = BUILT_IN_ONLY) -> UpdateRule | None:
    """The user-defined rule that `aggregation.kind` names; None for one that comes with cfel."""
    built_in = {**dict.fromkeys(_BY_ENTRY), **dict.fromkeys(UPDATE_RULES)}
    found = resolve("aggregation", kind, built_in, ("updates", "weights", "parameters"), code=code)
    if found is None:
        return None

    def apply(updates: Tensor, weights: Tensor, parameters: AggregationParameters) -> Tensor:
        made = call_part(f"aggregation {kind!r}", found, updates, weights, parameters)
        check_result(f"aggregation {kind!r}", made, Tensor)
        if made.shape != updates.shape[1:]:
            raise InputError(
                f"aggregation {kind!r} returned a tensor of shape {tuple(made.shape)}; must be "
                f"{tuple(updates.shape[1:])}, one number per entry of an update"
            )
        return torch.as_tensor(made)

    return apply


def _aggregate_by_update(
    model: FlatModel,
    ordered: Sequence[DeviceReport],
    weights: Mapping[int, float] | None,
    parameters: AggregationParameters,
    rule: UpdateRule,
) -> FlatModel:
    each = torch.tensor(weights_of([report.device for report in ordered], weights), dtype=torch.float64)
    # Statistics are values and not differences: to compare them with updates, they are made differences.
    rows = [torch.cat([decode(report.update), report.buffers - model.buffers]) for report in ordered]
    change = rule(torch.stack(rows), each, parameters).float()
    size = model.parameters.numel()
    return FlatModel(model.parameters + change[:size], model.buffers + change[size:])


# The edge model after an edge round. The mean goes through the edge server's rules: the edge half of the
# local algorithm, then its own optimiser. What they return is added to the model.


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """All that an edge server does with updates: aggregation, its rules in order, the average of its models.

    Each rule gets what the one before it returned, and may look at `matrices`, see `EdgeRound`.
    """

    rules: tuple[EdgeRule, ...] = ()
    aggregation: AggregationParameters = field(default_factory=AggregationParameters)
    update_rule: UpdateRule | None = None
    matrices: tuple[Slot, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            raise InputError(f"edge server: two rules remember the same name: {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """What the edge server remembers, in the order of the vector."""
        return tuple(name for rule in self.rules for name in rule.memory)

    @property
    def vectors(self) -> int:
        """How many more vectors of the model's size an edge server gossips."""
        return len(self.names) + (1 if self.aggregation.average else 0)

    def add_memory(self, model: FlatModel) -> FlatModel:
        """The model with the memory before the first round; the average is the model itself."""
        kept = [model.parameters, model.buffers] if self.aggregation.average else []
        memory = torch.cat([torch.zeros(len(self.names) * model.parameters.numel()), *kept])
        return replace(model, memory=memory)

    def add_to_average(self, model: FlatModel) -> FlatModel:
        """The model after a global round: it is part of the average now."""
        if not self.aggregation.average:
            return model
        start = len(self.names) * model.parameters.numel()
        memory = model.memory.clone()
        memory[start:].lerp_(torch.cat([model.parameters, model.buffers]), self.aggregation.average)
        return replace(model, memory=memory)

    def read_average(self, model: FlatModel) -> FlatModel:
        """The model to evaluate and export: the average, where there is one."""
        if not self.aggregation.average:
            return model
        size = model.parameters.numel()
        average = model.memory[len(self.names) * size :]
        return FlatModel(average[:size], average[size:])


def build_rules(
    local: LocalParameters,
    algorithm: LocalAlgorithm,
    parameters: AggregationParameters,
    code: CodePolicy = BUILT_IN_ONLY,
) -> EdgeRules:
    """The rules of an experiment: the local algorithm's part, then the edge servers' own optimiser."""
    update_rule = find_update_rule(parameters.kind, code)
    rules = (algorithm.edge, build_optimiser(parameters, code))
    if rules[0] is not None and parameters.kind != "mean" and not rules[0].any_aggregate:
        what = f"local.algorithm = {local.algorithm!r}"
        raise InputError(f"{what}: needs aggregation.kind = 'mean', not {parameters.kind!r}")
    return EdgeRules(tuple(rule for rule in rules if rule is not None), parameters, update_rule)


def update_edge_model(
    model: FlatModel,
    reports: Iterable[DeviceReport],
    weights: Mapping[int, float],
    rules: EdgeRules,
    *,
    share: float,
    rate: float,
    used: float = 0.0,
) -> FlatModel:
    """The new edge model; simulator and deployment both call this.

    `model`, `reports` and `weights` are as in `aggregate`; `share` of the cluster's devices took part, at
    this learning `rate`, when a share `used` of the run was over.
    """
    if not rules.rules or not weights:
        made = aggregate(model, reports, weights, rules.aggregation, rules.update_rule)
        return made if made is model else replace(made, memory=model.memory)
    seen = _Tally(model, weights, per_step=any(rule.per_step for rule in rules.rules))
    made = aggregate(model, seen.watch(reports), weights, rules.aggregation, rules.update_rule)
    update = made.parameters - model.parameters
    memory = model.memory.clone()
    kept = read_memory(replace(model, memory=memory), rules.names)
    for rule in rules.rules:
        found = EdgeRound(
            *(update, seen.per_step, seen.mean_steps, seen.active, share, rate),
            server_rate=rules.aggregation.find_rate(used),
            matrices=rules.matrices,
        )
        update = rule.change(found, {name: kept[name] for name in rule.memory})
    return FlatModel(model.parameters + update, made.buffers, memory)


class _Tally:
    """What rules need to know of the reports, noted while these pass by, as none is kept."""

    def __init__(self, model: FlatModel, weights: Mapping[int, float], *, per_step: bool) -> None:
        self._weights, self._total, self._adds = weights, math.fsum(weights.values()), per_step
        self.per_step = torch.zeros_like(model.parameters)
        self.mean_steps = self.active = 0.0

    def watch(self, reports: Iterable[DeviceReport]) -> Iterator[DeviceReport]:
        for report in reports:
            weight = self._weights.get(report.device, 0.0) / self._total
            if report.steps:
                self.mean_steps += weight * report.steps
                self.active += weight
                if self._adds:
                    report.update.add_to(self.per_step, weight / report.steps)
            yield report


def orthogonal(parameters: AggregationParameters) -> EdgeRule:
    """The mean update with every weight matrix replaced by its polar factor, at the length it had.

    The step of Muon (Jordan et al., 2024), taken once per edge round by the edge server: it costs devices
    nothing, and nothing is remembered. Biases, norms, embeddings and the last layer are added as they are.
    """

    def change(found: EdgeRound, _memory: Tensors) -> Tensor:
        return orthogonalise(found.update, found.matrices).mul_(parameters.learning_rate * found.server_rate)

    return EdgeRule(change)


def momentum(parameters: AggregationParameters) -> EdgeRule:
    """Server momentum: m ← β₁m + Δ, x ← x + ηm, with the mean update Δ. Option: `beta1` 0.9.

    Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual
    classification, 2019.
    """
    beta = _read_option(parameters, "beta1", 0.9, below=1)

    def change(found: EdgeRound, memory: Tensors) -> Tensor:
        return memory["momentum"].mul_(beta).add_(found.update) * (
            parameters.learning_rate * found.server_rate
        )

    return EdgeRule(change, memory=("momentum",))


def fedadam(parameters: AggregationParameters) -> EdgeRule:
    """FedAdam: m ← β₁m + (1 − β₁)Δ, v ← β₂v + (1 − β₂)Δ², x ← x + η m / (√v + ε).

    Options: `beta1` 0.9, `beta2` 0.99, `epsilon` 0.001. Reddi et al.: Adaptive federated optimization, ICLR
    2021.
    """
    return _build_adaptive(parameters, lambda v, square, weight: v.lerp_(square, weight))


def fedyogi(parameters: AggregationParameters) -> EdgeRule:
    """FedAdam with v ← v − (1 − β₂)Δ² sign(v − Δ²), which changes more slowly when updates become small."""
    return _build_adaptive(
        parameters, lambda v, square, weight: v.sub_((v - square).sign() * square, alpha=weight)
    )


def _build_adaptive(
    parameters: AggregationParameters, follow: Callable[[Tensor, Tensor, float], Tensor]
) -> EdgeRule:
    first = _read_option(parameters, "beta1", 0.9, below=1)
    second = _read_option(parameters, "beta2", 0.99, below=1)
    epsilon = _read_option(parameters, "epsilon", 1e-3, above=0)

    def change(found: EdgeRound, memory: Tensors) -> Tensor:
        mean = memory["mean_update"].lerp_(found.update, 1 - first)
        square = follow(memory["mean_square"], found.update.square(), 1 - second)
        return mean / square.sqrt().add_(epsilon) * (parameters.learning_rate * found.server_rate)

    return EdgeRule(change, memory=("mean_update", "mean_square"))


def _read_option(
    parameters: AggregationParameters,
    name: str,
    default: float,
    *,
    above: float | None = None,
    below: float | None = None,
) -> float:
    value = parameters.options.get(name, default)
    least = 0.0 if above is None else None
    return validation.check_number(
        f"aggregation.options.{name}", value, above=above, least=least, below=below
    )


OptimiserBuilder: TypeAlias = Callable[[AggregationParameters], EdgeRule]

OPTIMISERS: Mapping[str, OptimiserBuilder] = MappingProxyType(
    {"orthogonal": orthogonal, "momentum": momentum, "fedadam": fedadam, "fedyogi": fedyogi}
)
_OPTIONS = {
    "orthogonal": (),
    "momentum": ("beta1",),
    "fedadam": ("beta1", "beta2", "epsilon"),
    "fedyogi": ("beta1", "beta2", "epsilon"),
}


def build_optimiser(parameters: AggregationParameters, code: CodePolicy = BUILT_IN_ONLY) -> EdgeRule | None:
    """The optimiser that `[aggregation]` names: built in, an entry point or "module:function"; or None."""
    name = parameters.optimiser
    if name == "none":
        return None
    what = f"edge optimiser {name!r}"
    builder = resolve("edge optimiser", name, OPTIMISERS, ("aggregation",), code=code)
    if name in OPTIMISERS:
        for option in parameters.options:
            if option not in _OPTIONS[name]:
                raise InputError(unknown_name(f"aggregation.options of {what}", option, _OPTIONS[name]))
    rule = builder(parameters)
    check_result(what, rule, EdgeRule)
    assert isinstance(rule, EdgeRule)  # noqa: S101 — just checked
    check_call(f"{what}: change", rule.change, ("round", "memory"))
    return rule


def mean_model(sizes: IntArray, models: Mapping[int, FlatModel]) -> FlatModel:
    """The averaged model u: every device counts alike, so every edge model counts N_i / N.

    `sizes` has the devices of every cluster; N counts those of the clusters in `models` only.
    """
    devices = sum(int(sizes[i]) for i in models)
    return weighted_model(models, {i: int(sizes[i]) / devices for i in models})


def edge_tensors(models: Sequence[FlatModel]) -> dict[str, np.ndarray]:
    """The edge models, in cluster order, as named tensors of a checkpoint."""
    tensors: dict[str, np.ndarray] = {}
    for number, model in enumerate(models):
        tensors[f"edge/{number}/parameters"] = model.parameters.numpy()
        tensors[f"edge/{number}/buffers"] = model.buffers.numpy()
        if model.memory.numel():
            tensors[f"edge/{number}/memory"] = model.memory.numpy()
    return tensors


def read_edge_models(checkpoint: Checkpoint, clusters: int, like: FlatModel) -> tuple[FlatModel, ...]:
    """The edge models in a checkpoint, by cluster; each must have the size of `like`."""
    models = []
    for number in range(clusters):
        parts = [
            read_vector(checkpoint.tensors, f"edge/{number}/{part}", getattr(like, part).numel())
            for part in ("parameters", "buffers", *(("memory",) if like.memory.numel() else ()))
        ]
        models.append(FlatModel(*parts))
    return tuple(models)


def read_vector(tensors: Mapping[str, np.ndarray], name: str, size: int) -> torch.Tensor:
    """A copy of a float32 vector of a checkpoint; an `InputError` if it is missing or of another kind."""
    found = tensors.get(name)
    if found is None or found.dtype != np.float32 or found.shape != (size,):
        given = "missing" if found is None else f"{found.dtype} of shape {found.shape}"
        raise InputError(f"tensor {name!r} is {given}; this experiment has {size} float32 numbers")
    # A copy: tensors of a checkpoint may be read-only views of a file.
    return torch.from_numpy(np.array(found))


# Updates whose weight matrices have singular values of one size: the polar factor, by Newton–Schulz steps.
# The mean update of a cluster has few large singular values, the directions that all batches share, and many
# small ones. Its polar factor UVᵀ (of UΣVᵀ) moves as far in every direction. Muon (Jordan et al., 2024)
# takes such steps instead of momentum steps; an edge server takes them with the mean of its devices' updates.


# Five steps with Muon's polynomial bring every singular value above a hundredth of the norm to 0.7 … 1.2.
POLAR_STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# A matrix with more rows (of its smaller side) is orthogonalised in blocks of at most so many: the work grows
# with the square of the rows, and LEAF's layer of 2048 × 3136 would take 350 GFLOP, instead of 34 in blocks.
MOST_ROWS = 256


def orthogonalise(update: Tensor, matrices: Iterable[Slot]) -> Tensor:
    """A copy of the update in which every matrix is replaced by its polar factor, at the length it had."""
    result = update.clone()
    for slot in matrices:
        # Rows are outputs. The order of columns does not matter: it stays the same in the polar factor.
        matrix = result[slot.start : slot.stop].view(slot.shape[0], -1)
        length = torch.linalg.vector_norm(matrix)
        if length > 0 and torch.isfinite(length):
            factor = find_polar_factor(matrix)
            matrix.copy_(factor * (length / torch.linalg.vector_norm(factor)))
    return result


def find_polar_factor(matrix: Tensor) -> Tensor:
    """UVᵀ of a matrix UΣVᵀ, nearly; block by block where it is large."""
    if matrix.shape[0] > matrix.shape[1]:
        return find_polar_factor(matrix.T).T
    blocks = torch.tensor_split(matrix, -(-matrix.shape[0] // MOST_ROWS))
    return torch.cat([_iterate(block) for block in blocks])


def _iterate(block: Tensor) -> Tensor:
    first, second, third = COEFFICIENTS
    x: Tensor = block / torch.linalg.vector_norm(block).clamp_min(torch.finfo(block.dtype).tiny)
    for _ in range(POLAR_STEPS):
        square = x @ x.T
        x = first * x + (second * square + third * (square @ square)) @ x
    return x
