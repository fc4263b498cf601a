"""Data sets in memory, their loaders, and their partition over devices.

A loader is a function `path -> DataSet`. Built-in ones are listed below. User-defined ones are added by entry
point (`cfel.data`) or as "module:function".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from cfel.errors import InputError
from cfel.learning.data.cifar10 import cifar10
from cfel.learning.data.dataset import DataSet, Normalisation
from cfel.learning.data.embedded import digits, synthetic
from cfel.learning.data.femnist import femnist
from cfel.learning.data.hub import PREFIX, load_from_hub
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, call_part, check_result, resolve
from cfel.wording import show

__all__ = ["BUILTIN", "DataSet", "Normalisation", "cifar10", "digits", "femnist", "load", "synthetic"]

Loader: TypeAlias = Callable[[Path | None], DataSet]


@dataclass(frozen=True, slots=True)
class BuiltInData:
    """A data set that comes with cfel; shape and classes serve planning without its files."""

    load: Loader
    input_shape: tuple[int, ...]
    classes: int


BUILTIN: Mapping[str, BuiltInData] = MappingProxyType(
    {
        "cifar10": BuiltInData(cifar10, (3, 32, 32), 10),
        "digits": BuiltInData(lambda _: digits(), (1, 8, 8), 10),
        "femnist": BuiltInData(femnist, (1, 28, 28), 62),
        "synthetic": BuiltInData(lambda _: synthetic(), (1, 8, 8), 10),
    }
)


def load(name: str, path: Path | None = None, code: CodePolicy = BUILT_IN_ONLY) -> DataSet:
    """The data set called `name`: built in, "hf:…", an entry point `cfel.data`, or "module:function"."""
    if name in BUILTIN:
        return BUILTIN[name].load(path)
    if name.startswith(PREFIX):
        # The hub's package fetches what it is asked for, and some versions of it run scripts that come along.
        code.check("data", name)
        return load_from_hub(name, path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        hub = "a data set of the Hugging Face hub"
        raise InputError(f"data: unknown {show(name)}; if it is {hub}, write {show(PREFIX + name)}")
    loader: Loader = resolve("data", name, BUILTIN, ("path",), code=code)
    place = "without data.path" if path is None else f"with data.path = {str(path)!r}"
    found: DataSet = call_part(f"data {name!r}, called {place},", loader, path)
    check_result(f"data {name!r}", found, DataSet)
    return found
