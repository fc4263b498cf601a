"""The edge model after an edge round: what the edge server's rules make of the aggregated updates."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from cfel.learning.edge_rule import EdgeRound, EdgeRule, EdgeRules, read_memory
from cfel.learning.local.algorithm import LocalAlgorithm
from cfel.learning.local.parameters import LocalParameters
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import weighted_model
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, check_call, check_result, resolve
from cfel.runlog import Checkpoint

# --------------------------------------------------------------------------------------------------
# Optimisers of edge servers: the mean update of an edge round is the gradient, with its sign turned.
#
#     momentum  m ← β₁m + Δ,                                 x ← x + ηm
#     fedadam   m ← β₁m + (1 − β₁)Δ, v ← β₂v + (1 − β₂)Δ²,   x ← x + η m / (√v + ε)
#     fedyogi   the same, with v ← v − (1 − β₂)Δ² sign(v − Δ²)
#
# Options: `beta1` 0.9, `beta2` 0.99, `epsilon` 0.001.
#
# Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual
# classification,
# 2019 (momentum). Reddi et al.: Adaptive federated optimization, ICLR 2021 (FedAdam, FedYogi).


OptimiserBuilder: TypeAlias = Callable[[AggregationParameters], EdgeRule]
_OPTIONS = {"momentum": ("beta1",), "fedadam": ("beta1", "beta2", "epsilon")}
_OPTIONS["fedyogi"] = _OPTIONS["fedadam"]


def momentum(parameters: AggregationParameters) -> EdgeRule:
    """Server momentum."""
    beta = _read_option(parameters, "beta1", 0.9, below=1)

    def change(found: EdgeRound, memory: Mapping[str, Tensor]) -> Tensor:
        return memory["momentum"].mul_(beta).add_(found.update) * parameters.learning_rate

    return EdgeRule(change, memory=("momentum",))


def fedadam(parameters: AggregationParameters) -> EdgeRule:
    """FedAdam."""
    return _adaptive(parameters, lambda v, square, weight: v.lerp_(square, weight))


def fedyogi(parameters: AggregationParameters) -> EdgeRule:
    """FedYogi, whose second moment changes more slowly than FedAdam's when updates become small."""
    return _adaptive(parameters, lambda v, square, weight: v.sub_((v - square).sign() * square, alpha=weight))


def _adaptive(
    parameters: AggregationParameters, follow: Callable[[Tensor, Tensor, float], Tensor]
) -> EdgeRule:
    first = _read_option(parameters, "beta1", 0.9, below=1)
    second = _read_option(parameters, "beta2", 0.99, below=1)
    epsilon = _read_option(parameters, "epsilon", 1e-3, above=0)

    def change(found: EdgeRound, memory: Mapping[str, Tensor]) -> Tensor:
        mean = memory["mean_update"].lerp_(found.update, 1 - first)
        square = follow(memory["mean_square"], found.update.square(), 1 - second)
        return mean / square.sqrt().add_(epsilon) * parameters.learning_rate

    return EdgeRule(change, memory=("mean_update", "mean_square"))


OPTIMISERS: Mapping[str, OptimiserBuilder] = MappingProxyType(
    {"momentum": momentum, "fedadam": fedadam, "fedyogi": fedyogi}
)


def build_rules(
    local: LocalParameters,
    algorithm: LocalAlgorithm,
    parameters: AggregationParameters,
    code: CodePolicy = BUILT_IN_ONLY,
) -> EdgeRules:
    """All that edge servers do with updates: the local algorithm's part, then their own optimiser.

    Raises:
        InputError: they cannot be built, or do not go together.
    """
    rules = (algorithm.edge, build_optimiser(parameters, code))
    if rules[0] is not None and parameters.kind != "mean":
        what = f"local.algorithm = {local.algorithm!r}"
        raise InputError(f"{what}: needs aggregation.kind = 'mean', not {parameters.kind!r}")
    return EdgeRules(tuple(rule for rule in rules if rule is not None), parameters.average)


def build_optimiser(parameters: AggregationParameters, code: CodePolicy = BUILT_IN_ONLY) -> EdgeRule | None:
    """The optimiser that `[aggregation]` names: built in, an entry point or "module:function"; None for none.

    Raises:
        InputError: there is no such optimiser, it is not a rule, or an option is unknown.
    """
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


def update_edge_model(
    model: FlatModel,
    reports: Iterable[DeviceReport],
    weights: Mapping[int, float],
    aggregation: AggregationParameters,
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
        aggregation: how updates become one.
        rules: what the edge server does with it.
        share: of the cluster's devices that took part.
        rate: the learning rate of the devices.
    """
    if not rules.rules or not weights:
        made = aggregate(model, reports, weights, aggregation)
        return made if made is model else FlatModel(made.parameters, made.buffers, model.memory)
    seen = _Seen(model, weights, per_step=any(rule.per_step for rule in rules.rules))
    made = aggregate(model, seen.watch(reports), weights, aggregation)
    update = made.parameters - model.parameters
    memory = model.memory.clone()
    kept = read_memory(FlatModel(model.parameters, model.buffers, memory), rules.names)
    for rule in rules.rules:
        found = EdgeRound(update, seen.per_step, seen.mean_steps, seen.active, share, rate)
        update = rule.change(found, {name: kept[name] for name in rule.memory})
    return FlatModel(model.parameters + update, made.buffers, memory)


class _Seen:
    """What rules need to know of the reports, noted while these pass by.

    Args:
        model: the model the devices started from.
        weights: by device.
        per_step: whether updates divided by their steps are added up.
    """

    def __init__(self, model: FlatModel, weights: Mapping[int, float], *, per_step: bool) -> None:
        self._weights, self._total, self._adds = weights, math.fsum(weights.values()), per_step
        self.per_step = torch.zeros_like(model.parameters)
        self.mean_steps = self.active = 0.0

    def watch(self, reports: Iterable[DeviceReport]) -> Iterator[DeviceReport]:
        """Passes the reports on."""
        for report in reports:
            weight = self._weights.get(report.device, 0.0) / self._total
            if report.steps:
                self.mean_steps += weight * report.steps
                self.active += weight
                if self._adds:
                    report.update.add_to(self.per_step, weight / report.steps)
            yield report


# --------------------------------------------------------------------------------------------------
# All edge models of a run: as tensors of a checkpoint, read back from one, and averaged into one model.
#
# Gossip is not here: see `learning.roles`.


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
    """The edge models in a checkpoint, by cluster.

    Args:
        checkpoint: where they are.
        clusters: how many there are.
        like: any model of the experiment.

    Raises:
        InputError: one is missing, or is of another size.
    """
    models = []
    for number in range(clusters):
        parts = [
            read_vector(checkpoint.tensors, f"edge/{number}/{part}", getattr(like, part).numel())
            for part in ("parameters", "buffers", *(("memory",) if like.memory.numel() else ()))
        ]
        models.append(FlatModel(*parts))
    return tuple(models)


def read_vector(tensors: Mapping[str, np.ndarray], name: str, size: int) -> torch.Tensor:
    """A copy of a float32 vector of a checkpoint.

    Raises:
        InputError: it is missing, or of another type or size.
    """
    found = tensors.get(name)
    if found is None or found.dtype != np.float32 or found.shape != (size,):
        given = "missing" if found is None else f"{found.dtype} of shape {found.shape}"
        raise InputError(f"tensor {name!r} is {given}; this experiment has {size} float32 numbers")
    # A copy: tensors of a checkpoint may be read-only views of a file.
    return torch.from_numpy(np.array(found))


def mean_model(sizes: IntArray, models: Mapping[int, FlatModel]) -> FlatModel:
    """The averaged model u: every device counts alike, so every edge model counts N_i / N.

    Args:
        sizes: devices of each cluster.
        models: by cluster; N counts the devices of these clusters only.
    """
    devices = sum(int(sizes[i]) for i in models)
    return weighted_model(models, {i: int(sizes[i]) / devices for i in models})
