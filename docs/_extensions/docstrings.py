"""What the code says about itself, as rows of Markdown tables: fields, keys, commands, codes and names.

Pages of the reference consist of these rows, so they cannot say anything else than the code. It knows nothing
of Sphinx; `code_reference` puts the rows on the pages.
"""

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from importlib import import_module
from itertools import pairwise
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Row = tuple[str, ...]
_ENTRY = re.compile(r"^ {4}(?P<names>\w+(?:, \w+)*): (?P<text>.*)$")


class UndocumentedError(ValueError):
    """Something public has no words of its own."""


def find(path: str) -> Any:
    """What a dotted path names: `cfel.runlog.RoundRecord`."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def read_attributes(documented: type) -> dict[str, str]:
    """The meaning of each attribute, from the section `Attributes:` of the docstring."""
    _, _, section = inspect.cleandoc(documented.__doc__ or "").partition("Attributes:\n")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if entry := _ENTRY.match(line):
            names = entry["names"].split(", ")
            meanings |= dict.fromkeys(names, entry["text"])
        elif line.startswith("     "):
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    return meanings


def list_fields(documented: type) -> list[Row]:
    """One row per field of a dataclass: name and meaning."""
    meanings = read_attributes(documented)
    return [(f"`{entry.name}`", _meaning(documented, entry, meanings)) for entry in fields(documented)]


def list_keys(parameters: type, without: Sequence[str] = ()) -> list[Row]:
    """One row per key of a section of the experiment file: key, values, default and meaning."""
    meanings, hints = read_attributes(parameters), get_type_hints(parameters)
    return [
        (
            f"`{entry.metadata.get('key', entry.name)}`",
            describe_type(hints[entry.name]),
            _default(entry),
            _meaning(parameters, entry, meanings),
        )
        for entry in fields(parameters)
        if entry.name not in without
    ]


def _meaning(documented: type, entry: Field[Any], meanings: Mapping[str, str]) -> str:
    if entry.name not in meanings:
        raise UndocumentedError(f"{documented.__qualname__}.{entry.name}: `Attributes:` does not mention it")
    text = meanings[entry.name]
    return f"{text[0].upper()}{text[1:]}"


def describe_type(hint: Any) -> str:
    """The values of a key, as a reader of TOML would say it."""
    if get_origin(hint) in (Union, UnionType):
        parts = [describe_type(each) for each in get_args(hint) if each is not type(None)]
        return " or ".join(dict.fromkeys(parts))
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        return "[low, high]" if inner == (float, float) else "list"
    names = {bool: "true, false", int: "whole number", float: "number", str: "text"}
    return names.get(hint, "table")


def _default(entry: Field[Any]) -> str:
    value = entry.default_factory() if entry.default_factory is not MISSING else entry.default
    if value is MISSING:
        return "required"
    if value is None:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if isinstance(value, Mapping):
        return "`{}`"
    if isinstance(value, float) and abs(value) >= 1e16:
        return f"`{value}`"
    return f"`{int(value)}`" if isinstance(value, float) and value.is_integer() else f"`{value}`"


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
