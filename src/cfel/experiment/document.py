"""TOML documents: laid over one another, changed from the command line, turned into parameters and back.

It knows tables, keys and fields, but not a single section of an experiment.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar

from cfel.errors import ExperimentError, unknown_name

Table = Mapping[str, Any]
Parameters = TypeVar("Parameters")


def section(parameters: type[Parameters], place: str, table: Table) -> Parameters:
    """A section whose keys are the fields of its parameters, or what a field's metadata calls its `key`."""
    known = keys_of(parameters)
    refuse_unknown(place, table, known)
    for key, entry in known.items():
        needed = entry.default is MISSING and entry.default_factory is MISSING
        if needed and key not in table:
            raise ExperimentError(f"{place}.{key}: is missing")
    return parameters(**{known[key].name: _frozen(value) for key, value in table.items()})


def keys_of(parameters: Any) -> dict[str, Field[Any]]:  # noqa: ANN401 — a dataclass or an instance of one
    """The fields of parameters by their keys in the file, without those that another section gives."""
    own = (entry for entry in fields(parameters) if "section" not in entry.metadata)
    return {entry.metadata.get("key", entry.name): entry for entry in own}


def _frozen(value: object) -> object:
    """TOML's lists as tuples, at every depth."""
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list) else value


def as_table(place: str, value: object) -> Table:
    """The value, if it is a table."""
    if not isinstance(value, Mapping):
        raise ExperimentError(f"{place} = {value!r}: must be a table")
    return value


def placed_beside(document: Table, folder: Path, places: Sequence[tuple[str, ...]]) -> Table:
    """The document with file names at the given places made absolute, relative ones taken from a folder."""
    for *tables, key in places:
        inner: Any = document
        for name in tables:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping) and isinstance(inner.get(key), str):
            located: Table = {key: str(folder.absolute() / inner[key])}
            for name in reversed(tables):
                located = {name: located}
            document = merged(document, located)
    return document


def refuse_unknown(place: str, table: Table, allowed: Sequence[str] | Mapping[str, Any]) -> None:
    """Raises for the first key that is not allowed, naming the nearest one that is."""
    for key in table:
        if key not in allowed:
            raise ExperimentError(unknown_name(f"[{place}]" if place else "top level", key, allowed))


def merged(below: Table, above: Table) -> dict[str, Any]:
    """`above` laid over `below`, table by table; conditions of another kind replace those below."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = dict(value) if _are_other_conditions(key, old, value) else merged(old, value)
        else:
            result[key] = value
    return result


def _are_other_conditions(key: str, old: Table, new: Table) -> bool:
    """Each kind of conditions has keys of its own, so those of another kind mean nothing to it."""
    kind = old.get("kind", "random")
    return key == "conditions" and new.get("kind", kind) != kind


def assignment(change: str) -> Table:
    """An assignment `a.b=value` as a table; a bare word is taken as text."""
    name, sign, text = change.partition("=")
    if not sign or not name.strip():
        raise ExperimentError(f"--set {change!r}: must look like section.key=value")
    try:
        return tomllib.loads(f"{name} = {text}")
    except tomllib.TOMLDecodeError:
        quoted = text.strip().replace("\\", "\\\\").replace('"', '\\"')
        try:
            return tomllib.loads(f'{name} = "{quoted}"')
        except tomllib.TOMLDecodeError as error:
            raise ExperimentError(f"--set {change!r}: {error}") from error


def table_of(parameters: object) -> dict[str, Any]:
    """The fields of parameters as a TOML table; what is `None` is left out, as TOML has no word for it."""
    values = {key: getattr(parameters, entry.name) for key, entry in keys_of(parameters).items()}
    return {key: _writable(value) for key, value in values.items() if value is not None}


def _writable(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_writable(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: _writable(entry) for key, entry in value.items()}
    return value
