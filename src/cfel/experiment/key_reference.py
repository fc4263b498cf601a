"""Every key of an experiment file with its values, default and meaning, as the code states them.

`cfel keys` and the reference of the documentation show these rows, so they cannot say anything else.
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cfel.control import SchemeParameters
from cfel.control.schemes import SCHEMES
from cfel.control.schemes.hcef_plus import Options
from cfel.experiment.experiment import SECTIONS
from cfel.experiment.sections import (
    CONDITIONS,
    PRESETS,
    CompressionParameters,
    ModelParameters,
)
from cfel.learning.compressors import BUILTIN as COMPRESSORS
from cfel.learning.data import BUILTIN as DATA_SETS
from cfel.learning.data.partition import DataParameters
from cfel.learning.local.algorithms import ALGORITHMS
from cfel.learning.local.parameters import LocalParameters
from cfel.learning.models.builders import BUILTIN as MODELS
from cfel.system.backhaul import KINDS as TOPOLOGIES
from cfel.system.backhaul import TopologyParameters
from cfel.system.device_classes import DeviceClass
from cfel.system.fleet import Availability

_ENTRY = re.compile(r"^ {4}(?P<names>\w+(?:, \w+)*): (?P<text>.*)$")
_FIELD = re.compile(r"(?P<name>\w+): [^#]+?(?:  # (?P<text>.*))?")
# Keys that are tables of their own.
_TABLES = {"fleet": ("conditions", "availability")}


_NAMED: Mapping[tuple[type, str], Sequence[str]] = {
    (ModelParameters, "name"): tuple(MODELS),
    (DataParameters, "name"): (*DATA_SETS, "hf:…"),
    (SchemeParameters, "name"): tuple(SCHEMES),
    (LocalParameters, "algorithm"): tuple(ALGORITHMS),
    (CompressionParameters, "kind"): tuple(COMPRESSORS),
    (TopologyParameters, "kind"): tuple(TOPOLOGIES),
}


class UndocumentedError(ValueError):
    """Something public has no words of its own."""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key."""

    key: str
    values: str  # what it may be, as a reader of TOML would say it
    default: str  # as TOML; "–" for none, "required" where there must be one
    meaning: str


_TOP = (
    KeyEntry(
        "preset",
        ", ".join(f"`{name}`" for name in PRESETS),
        "`demo`",
        "What other keys default to; of a list, later ones take precedence.",
    ),
    KeyEntry("name", "text", "the preset's", "Of the experiment, in tables and reports."),
    KeyEntry("seed", "whole number", "`0`", "Of every random stream."),
)


def list_tables() -> Iterator[tuple[str, str, list[KeyEntry]]]:
    """Every table of an experiment file: its name, when it applies, and its keys."""
    yield "", "at the top of the file", list(_TOP)
    for name, parameters in SECTIONS.items():
        yield name, "", list_keys(parameters, _TABLES.get(name, ()))
        if name == "fleet":
            for kind, conditions in CONDITIONS.items():
                yield "fleet.conditions", f'kind = "{kind}"', list_keys(conditions)
            yield "fleet.conditions.extra_classes", "a list of tables", list_keys(DeviceClass)
            yield "fleet.availability", "", list_keys(Availability)
        if name == "scheme":
            yield "scheme.options", 'name = "hcef_plus"', list_keys(Options)


def list_keys(parameters: type, without: Sequence[str] = ()) -> list[KeyEntry]:
    """The keys of the table that a dataclass describes."""
    meanings, hints = read_attributes(parameters), get_type_hints(parameters)
    return [
        KeyEntry(
            entry.metadata.get("key", entry.name),
            _list_names(parameters, entry.name) or describe_type(hints[entry.name]),
            _format_default(entry),
            find_meaning(parameters, entry, meanings),
        )
        for entry in fields(parameters)
        if entry.name not in without
    ]


def _list_names(parameters: type, name: str) -> str:
    """The built-in parts that a key may name, and where others come from; empty for other keys."""
    listed = _NAMED.get((parameters, name))
    return "" if listed is None else f"{', '.join(f'`{each}`' for each in listed)}, `module:function`"


def read_attributes(documented: type) -> dict[str, str]:
    """The meaning of each field: from `Attributes:` in the docstring, or else from the comments beside it."""
    _, _, section = inspect.cleandoc(documented.__doc__ or "").partition("Attributes:\n")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if entry := _ENTRY.match(line):
            names = entry["names"].split(", ")
            meanings |= dict.fromkeys(names, entry["text"])
        elif line.startswith("     "):
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    return meanings or _read_comments(documented)


def _read_comments(documented: type) -> dict[str, str]:
    """The comment behind each field, or the lines above it."""
    meanings: dict[str, str] = {}
    above: list[str] = []
    for line in map(str.strip, inspect.getsource(documented).splitlines()):
        if line.startswith("# "):
            above.append(line[2:])
            continue
        if (field := _FIELD.fullmatch(line)) and (words := " ".join([*above, field["text"] or ""]).strip()):
            meanings[field["name"]] = words
        above = []
    return meanings


def find_meaning(documented: type, entry: Field[Any], meanings: Mapping[str, str]) -> str:
    """What the docstring says about a field, as a sentence."""
    if entry.name not in meanings:
        raise UndocumentedError(f"{documented.__qualname__}.{entry.name}: no comment says what it is")
    text = f"{meanings[entry.name].removesuffix('.')}."
    # A Greek letter is a symbol.
    return f"{text[0].upper()}{text[1:]}" if text[0].isascii() else text


def describe_type(hint: Any) -> str:  # noqa: ANN401 — a type hint has no type
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


def _format_default(entry: Field[Any]) -> str:
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
