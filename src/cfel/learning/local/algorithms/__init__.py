"""The local algorithms that come with cfel, one file each, and how one is found by its name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from cfel.errors import InputError, unknown_name
from cfel.learning.local.algorithm import LocalAlgorithm
from cfel.learning.local.algorithms.adam import adam, adamw
from cfel.learning.local.algorithms.ditto import ditto
from cfel.learning.local.algorithms.feddyn import feddyn
from cfel.learning.local.algorithms.fednova import fednova
from cfel.learning.local.algorithms.fedprox import fedprox
from cfel.learning.local.algorithms.scaffold import scaffold
from cfel.learning.local.algorithms.sgd import sgd
from cfel.learning.local.algorithms.shared_momentum import shared_momentum
from cfel.learning.local.parameters import LocalParameters, TrainingParameters
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, check_call, check_result, resolve

AlgorithmBuilder: TypeAlias = Callable[[LocalParameters], LocalAlgorithm]

ALGORITHMS: Mapping[str, AlgorithmBuilder] = MappingProxyType(
    {
        "sgd": sgd,
        "adam": adam,
        "adamw": adamw,
        "fedprox": fedprox,
        "scaffold": scaffold,
        "feddyn": feddyn,
        "fednova": fednova,
        "ditto": ditto,
        "shared_momentum": shared_momentum,
    }
)


def build_algorithm(local: LocalParameters, code: CodePolicy = BUILT_IN_ONLY) -> LocalAlgorithm:
    """Builds the algorithm that `[local]` names: built in, an entry point, or "module:function".

    Raises:
        InputError: there is no such algorithm, it cannot be called as one, or an option is unknown.
    """
    name = local.algorithm
    builder: AlgorithmBuilder = resolve("algorithm", name, ALGORITHMS, ("local",), code=code)
    algorithm = builder(local)
    what = f"algorithm {name!r}"
    check_result(what, algorithm, LocalAlgorithm)
    if name not in ALGORITHMS:
        _check_functions(what, algorithm)
    if algorithm.train is not None and local.estimator == "fresh":
        raise InputError(
            f"local.estimator = 'fresh': {what} has a loop of its own, whose gradients cannot be seen; "
            "use 'reuse', which takes σ² and G² from what the loop returns"
        )
    for option in local.options:
        if option not in algorithm.options:
            raise InputError(unknown_name(f"local.options of {what}", option, algorithm.options))
    return algorithm


def find_algorithm(training: TrainingParameters) -> LocalAlgorithm:
    """The algorithm that devices train with."""
    return training.algorithm or build_algorithm(training.local)


def _check_functions(what: str, algorithm: LocalAlgorithm) -> None:
    hooks = (
        ("step", algorithm.step, ("x", "gradient", "memory", "rate")),
        ("train", algorithm.train, ("run",)),
        ("begin", algorithm.begin, ("run",)),
        ("change_gradient", algorithm.change_gradient, ("run", "gradient")),
        ("end", algorithm.end, ("run",)),
        ("sent", algorithm.sent, ("run", "update")),
    )
    for name, hook, takes in hooks:
        if hook is not None:
            check_call(f"{what}: {name}", hook, takes)
