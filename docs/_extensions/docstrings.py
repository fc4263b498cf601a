"""What the code says about itself, as rows of Markdown tables: fields, keys, commands, codes and names.

Pages of the reference consist of these rows, so they cannot say anything else than the code. It knows nothing
of Sphinx; `code_reference` puts the rows on the pages.
"""

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from itertools import pairwise
from typing import Any

from cfel.experiment import key_reference
from cfel.experiment.key_reference import UndocumentedError, find_meaning, read_attributes

Row = tuple[str, ...]


def find(path: str) -> Any:
    """What a dotted path names: `cfel.runlog.RoundRecord`."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def list_fields(documented: type) -> list[Row]:
    """One row per field of a dataclass: name and meaning."""
    meanings = read_attributes(documented)
    return [(f"`{entry.name}`", find_meaning(documented, entry, meanings)) for entry in fields(documented)]


def list_keys(parameters: type, without: Sequence[str] = ()) -> list[Row]:
    """One row per key of a section of the experiment file: key, values, default and meaning."""
    entries = key_reference.list_keys(parameters, without)
    return [(f"`{each.key}`", each.values, each.default, each.meaning) for each in entries]


def list_names(registry: Mapping[str, Any]) -> list[Row]:
    """One row per built-in part: its name and the first sentence of its docstring."""
    return [(f"`{name}`", _first_sentence(name, part)) for name, part in registry.items()]


def _first_sentence(name: str, part: Any) -> str:
    words = inspect.getdoc(part)
    if not words:
        raise UndocumentedError(f"{name}: has no docstring")
    return words.partition("\n\n")[0].replace("\n", " ")


def list_constants(module: str) -> list[Row]:
    """One row per constant that a docstring follows: its value and that docstring."""
    body = ast.parse(inspect.getsource(import_module(module))).body
    rows = []
    for statement, after in pairwise(body):
        match statement, after:
            case ast.Assign(value=ast.Constant(value=value)), ast.Expr(value=ast.Constant(value=str(words))):
                rows.append((f"`{value}`", " ".join(words.split())))
    return rows
