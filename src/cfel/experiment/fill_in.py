"""Completes what was given for an experiment in Python: presets, defaults, names for objects.

The counterpart of `files` for arguments instead of a file; both end with the same sections.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfel.control import Rounds
from cfel.errors import ExperimentError, unknown_name
from cfel.experiment.document import Table, merge, resolve_paths
from cfel.experiment.python_parts import name_objects
from cfel.experiment.tables import PATHS, SECTIONS, parse_sections

DEFAULT_ROUNDS = 40


def fill_in(given: Mapping[str, Any], preset: str) -> tuple[dict[str, Any], dict[str, object]]:
    """Name, seed and all sections of an experiment.

    Args:
        given: by name; sections as dataclasses, as tables, or as the value of their main key.
        preset: where everything else comes from.

    Returns:
        The parts, and the objects among them by the names that stand for them.
    """
    ready = {key: part for key, part in given.items() if isinstance(part, SECTIONS.get(key, ()))}
    ready |= {key: given[key] for key in ("name", "seed") if key in given}
    rest, objects = _name_all({key: part for key, part in given.items() if key not in ready})
    # A preset is a file: where nothing is missing, it need not be read.
    if rest or len(ready) < len(SECTIONS) + 2:
        document = resolve_paths(rest, Path.cwd(), PATHS)
        ready = parse_sections({"preset": preset, **document}) | ready
    return _defaults(ready) | ready, objects


def change_document(document: Table, changes: Mapping[str, Any]) -> tuple[Table, dict[str, object]]:
    """A document with values at dotted keys changed, and the objects among them by their names."""
    known = ("name", "seed", *SECTIONS)
    objects: dict[str, object] = {}
    for key, value in changes.items():
        first, *others = key.split(".")
        if first not in known:
            raise ExperimentError(unknown_name("experiment", first, known))
        change: object = value
        if first in SECTIONS:
            nested = value
            for name in reversed(others[1:]):
                nested = {name: nested}
            table, found = name_objects(first, {others[0]: nested} if others else nested)
            objects |= found
            change = table
        document = merge(document, resolve_paths({first: change}, Path.cwd(), PATHS))
    return document, objects


def _name_all(tables: Mapping[str, Any]) -> tuple[dict[str, Table], dict[str, object]]:
    named = {section: name_objects(section, table) for section, table in tables.items()}
    objects = {name: each for _, found in named.values() for name, each in found.items()}
    return {section: table for section, (table, _) in named.items()}, objects


def _defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given neither by the caller nor by the preset."""
    missing = [section for section in SECTIONS if section not in given]
    sections = {section: SECTIONS[section]() for section in missing if section != "rounds"}
    return {"name": "experiment", "seed": 0, "rounds": Rounds(DEFAULT_ROUNDS), **sections}
