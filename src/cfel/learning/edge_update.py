"""The edge model: after an edge round, in checkpoints, and as the mean over clusters.

After an edge round, an edge server aggregates its devices' updates (`aggregation`) and hands the mean to its
rules: the edge half of the local algorithm, then its own optimiser. What they return is added to the model.
Gossip is in `roles`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from cfel import validation
from cfel.arrays import IntArray
from cfel.errors import InputError, unknown_name
from cfel.learning.aggregation import AggregationParameters, aggregate
from cfel.learning.device_messages import DeviceReport
from cfel.learning.edge_rule import EdgeRound, EdgeRule, read_memory
from cfel.learning.local.algorithm import LocalAlgorithm
from cfel.learning.local.parameters import LocalParameters
from cfel.learning.models.flat import FlatModel, Tensors
from cfel.learning.roles import weighted_model
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, check_call, check_result, resolve
from cfel.runlog import Checkpoint


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """All that an edge server does with updates: aggregation, its rules in order, the average of its models.

    Each rule gets what the one before it returned.
    """

    rules: tuple[EdgeRule, ...] = ()
    aggregation: AggregationParameters = field(default_factory=AggregationParameters)

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
    rules = (algorithm.edge, build_optimiser(parameters, code))
    if rules[0] is not None and parameters.kind != "mean":
        what = f"local.algorithm = {local.algorithm!r}"
        raise InputError(f"{what}: needs aggregation.kind = 'mean', not {parameters.kind!r}")
    return EdgeRules(tuple(rule for rule in rules if rule is not None), parameters)


def update_edge_model(
    model: FlatModel,
    reports: Iterable[DeviceReport],
    weights: Mapping[int, float],
    rules: EdgeRules,
    *,
    share: float,
    rate: float,
) -> FlatModel:
    """The new edge model; simulator and deployment both call this.

    Args:
        model: the model the devices started from; not changed.
        reports: see `aggregate`.
        weights: see `aggregate`; without any the model stays the same.
        rules: what the edge server does with them.
        share: of the cluster's devices that took part.
        rate: the learning rate of the devices.
    """
    if not rules.rules or not weights:
        made = aggregate(model, reports, weights, rules.aggregation)
        return made if made is model else replace(made, memory=model.memory)
    seen = _Tally(model, weights, per_step=any(rule.per_step for rule in rules.rules))
    made = aggregate(model, seen.watch(reports), weights, rules.aggregation)
    update = made.parameters - model.parameters
    memory = model.memory.clone()
    kept = read_memory(replace(model, memory=memory), rules.names)
    for rule in rules.rules:
        found = EdgeRound(update, seen.per_step, seen.mean_steps, seen.active, share, rate)
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


def momentum(parameters: AggregationParameters) -> EdgeRule:
    """Server momentum: m ← β₁m + Δ, x ← x + ηm, with the mean update Δ. Option: `beta1` 0.9.

    Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual
    classification, 2019.
    """
    beta = _read_option(parameters, "beta1", 0.9, below=1)

    def change(found: EdgeRound, memory: Tensors) -> Tensor:
        return memory["momentum"].mul_(beta).add_(found.update) * parameters.learning_rate

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
        return mean / square.sqrt().add_(epsilon) * parameters.learning_rate

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
    {"momentum": momentum, "fedadam": fedadam, "fedyogi": fedyogi}
)
_OPTIONS = {
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
