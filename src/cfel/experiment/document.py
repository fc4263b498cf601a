"""TOML documents: merged, changed from the command line, converted to dataclasses and back.

It knows tables, keys and fields, and of the sections of an experiment only which key a bare name stands for.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar

from cfel.errors import ExperimentError, unknown_name
from cfel.wording import show

Table = Mapping[str, Any]
Parameters = TypeVar("Parameters")

MAIN_KEYS: Mapping[str, str] = {
    "data": "name",
    "model": "name",
    "scheme": "name",
    "compression": "kind",
    "topology": "kind",
}
"""The key that a section stands for where it is given as a name or an object instead of a table."""


def parse_section(parameters: type[Parameters], place: str, table: Table) -> Parameters:
    """Converts a table to its dataclass.

    A key is the name of a field, or the `key` in the field's metadata where the file uses another name.
    """
    known = keys_of(parameters)
    reject_unknown(place, table, known)
    for key, entry in known.items():
        needed = entry.default is MISSING and entry.default_factory is MISSING
        if needed and key not in table:
            raise ExperimentError(f"{place}.{key}: is missing")
    return parameters(**{known[key].name: _freeze(value) for key, value in table.items()})


def keys_of(parameters: Any) -> dict[str, Field[Any]]:  # noqa: ANN401 — a dataclass or an instance of one
    """The fields of parameters by their keys in the file."""
    return {entry.metadata.get("key", entry.name): entry for entry in fields(parameters)}


def _freeze(value: object) -> object:
    """TOML's lists as tuples, at every depth."""
    return tuple(_freeze(entry) for entry in value) if isinstance(value, list) else value


def check_table(place: str, value: object) -> Table:
    """Returns the value if it is a table, else raises."""
    if not isinstance(value, Mapping):
        key = MAIN_KEYS.get(place)
        hint = f"; write {place}.{key} = {show(value)}" if key and isinstance(value, str) else ""
        raise ExperimentError(f"{place} = {show(value)}: must be a table{hint}")
    return value


def resolve_paths(document: Table, folder: Path, places: Sequence[tuple[str, ...]]) -> Table:
    """Makes the file names at the given places absolute; relative ones start from the folder."""
    for *tables, key in places:
        inner: Any = document
        for name in tables:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        named = inner.get(key) if isinstance(inner, Mapping) else None
        if isinstance(named, str | list):
            located: Table = {key: _locate(named, folder.absolute())}
            for name in reversed(tables):
                located = {name: located}
            document = merge(document, located)
    return document


def _locate(named: Any, folder: Path) -> Any:  # noqa: ANN401 — any value of a TOML document
    """A file name, or a list of them; what is neither is left to the check of its section."""
    if isinstance(named, list):
        return [_locate(each, folder) for each in named]
    return str(folder / named) if isinstance(named, str) else named


def reject_unknown(place: str, table: Table, allowed: Sequence[str] | Mapping[str, Any]) -> None:
    """Raises for the first key that is not allowed, naming the nearest allowed one."""
    for key in table:
        if key not in allowed:
            raise ExperimentError(unknown_name(f"[{place}]" if place else "top level", key, allowed))


def merge(below: Table, above: Table) -> dict[str, Any]:
    """Lays `above` over `below`, table by table; conditions of another kind replace those below."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = dict(value) if _are_other_conditions(key, old, value) else merge(old, value)
        else:
            result[key] = value
    return result


def _are_other_conditions(key: str, old: Table, new: Table) -> bool:
    """Each kind of conditions has its own keys, so the keys of another kind must not be merged in."""
    kind = old.get("kind", "random")
    return key == "conditions" and new.get("kind", kind) != kind


def parse_assignment(change: str) -> Table:
    """Reads an assignment `a.b=value` as a table; a bare word counts as text."""
    name, sign, text = change.partition("=")
    if not sign or not name.strip():
        raise ExperimentError(f"--set {change!r}: must look like section.key=value")
    try:
        return tomllib.loads(f"{name} = {text}")
    except tomllib.TOMLDecodeError:
        # So that `--set scheme.name=cef` works without quotes that a shell would take away.
        quoted = text.strip().replace("\\", "\\\\").replace('"', '\\"')
        try:
            return tomllib.loads(f'{name} = "{quoted}"')
        except tomllib.TOMLDecodeError as error:
            raise ExperimentError(f"--set {change!r}: {error}") from error


def to_table(parameters: object) -> dict[str, Any]:
    """Converts a dataclass to a TOML table; leaves `None` out, as TOML has no null."""
    values = {key: getattr(parameters, entry.name) for key, entry in keys_of(parameters).items()}
    return {key: _to_toml(value) for key, value in values.items() if value is not None}


def _to_toml(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_to_toml(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: _to_toml(entry) for key, entry in value.items()}
    return value
