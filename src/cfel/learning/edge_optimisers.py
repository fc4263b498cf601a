"""Optimisers of edge servers: the mean update of an edge round is the gradient, with its sign turned.

    momentum  m ← β₁m + Δ,                                 x ← x + ηm
    fedadam   m ← β₁m + (1 − β₁)Δ, v ← β₂v + (1 − β₂)Δ²,   x ← x + η m / (√v + ε)
    fedyogi   the same, with v ← v − (1 − β₂)Δ² sign(v − Δ²)

Options: `beta1` 0.9, `beta2` 0.99, `epsilon` 0.001.

Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual classification,
2019 (momentum). Reddi et al.: Adaptive federated optimization, ICLR 2021 (FedAdam, FedYogi).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from torch import Tensor

from cfel import validation
from cfel.errors import InputError, unknown_name
from cfel.learning.aggregation import AggregationParameters
from cfel.learning.edge_rule import EdgeRound, EdgeRule, EdgeRules
from cfel.learning.local.algorithms import build_algorithm
from cfel.learning.local.parameters import LocalParameters
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, check_call, check_result, resolve

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
    local: LocalParameters, parameters: AggregationParameters, code: CodePolicy = BUILT_IN_ONLY
) -> EdgeRules:
    """All that edge servers do with updates: the local algorithm's part, then their own optimiser.

    Raises:
        InputError: they cannot be built, or do not go together.
    """
    rules = (build_algorithm(local, code).edge, build_optimiser(parameters, code))
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
