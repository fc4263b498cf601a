"""Data sets in memory, their loaders, and their partition over devices.

A loader is a function `path -> DataSet`. User-defined loaders are added by entry point (`cfel.data`) or as
"module:function".
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from cfel.learning.data.cifar10 import cifar10
from cfel.learning.data.dataset import DataSet, Normalisation
from cfel.learning.data.embedded import digits, synthetic
from cfel.learning.data.femnist import femnist
from cfel.learning.data.hub import PREFIX, load_from_hub
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, call_part, check_result, resolve

__all__ = [
    "BUILTIN",
    "SHAPES",
    "DataSet",
    "Loader",
    "Normalisation",
    "cifar10",
    "digits",
    "femnist",
    "load",
    "load_from_hub",
    "synthetic",
]

Loader: TypeAlias = Callable[[Path | None], DataSet]

BUILTIN: Mapping[str, Loader] = MappingProxyType(
    {
        "cifar10": cifar10,
        "digits": lambda _: digits(),
        "femnist": femnist,
        "synthetic": lambda _: synthetic(),
    }
)

SHAPES: Mapping[str, tuple[tuple[int, ...], int]] = MappingProxyType(
    {
        "cifar10": ((3, 32, 32), 10),
        "digits": ((1, 8, 8), 10),
        "femnist": ((1, 28, 28), 62),
        "synthetic": ((1, 8, 8), 10),
    }
)
"""Input shape and classes of every built-in data set, for planning without its files."""


def load(name: str, path: Path | None = None, code: CodePolicy = BUILT_IN_ONLY) -> DataSet:
    """The data set called `name`: built in, "hf:…", an entry point `cfel.data`, or "module:function"."""
    if name.startswith(PREFIX):
        # The hub's package fetches what it is asked for, and some versions of it run scripts that come along.
        code.check("data", name)
        return load_from_hub(name, path)
    loader: Loader = resolve("data", name, BUILTIN, ("path",), code=code)
    if name in BUILTIN:
        return loader(path)
    place = "without data.path" if path is None else f"with data.path = {str(path)!r}"
    found: DataSet = call_part(f"data {name!r}, called {place},", loader, path)
    check_result(f"data {name!r}", found, DataSet)
    return found
