"""Reads a round problem: from a CSV or Parquet table of devices, a JSON document, or a table in memory.

The JSON document holds the fields of `RoundProblem`, with the devices under `devices`, as a list of objects
or as columns. A table holds the devices only; the rest comes from options. Options override the document.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cfel.control import Budget, RoundProblem, Rounds, round_caps
from cfel.cost import open_ledger
from cfel.errors import FleetFileError, InputError, describe_error, unknown_name
from cfel.system.device_tables import COSTS, NAMES, OPTIONAL, read_devices
from cfel.wording import escape_control, show

DEVICE_FIELDS = (*COSTS, "cluster")
ROUND_FIELDS = ("tau", "sigma2", "g2", "time_cap", "energy_cap", "noise_weight", "on_unreachable")
COLUMNS = (*DEVICE_FIELDS, *OPTIONAL, *NAMES)
BOUND_FIELDS = ("rho_min", "rho_max", "theta_min", "theta_max")
DEFAULTS: Mapping[str, Any] = {"tau": 5, "sigma2": 1.0, "g2": 1.0, "time_cap": np.inf, "energy_cap": np.inf}


@dataclass(frozen=True, slots=True, eq=False)
class NamedProblem:
    """A problem, with the names of devices and clusters in its file."""

    problem: RoundProblem
    device_names: tuple[str, ...]
    cluster_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunLength:
    """Total budgets and the number of rounds that share them."""

    time_budget: float | None
    energy_budget: float | None
    rounds: int
    edge_rounds: int

    def compute_caps(self, clusters: int) -> dict[str, Any]:
        """Computes the caps of the first edge round of such a run, for the budgets that were given."""
        budget = Budget(
            np.inf if self.time_budget is None else self.time_budget,
            np.inf if self.energy_budget is None else self.energy_budget,
        )
        rounds = Rounds(self.rounds, self.edge_rounds)
        seconds, joules = round_caps(budget, open_ledger(clusters), rounds, 0, 0, np.zeros(clusters))
        caps = {} if self.time_budget is None else {"time_cap": seconds}
        return caps if self.energy_budget is None else {**caps, "energy_cap": joules}


Found = tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]
"""Fields of `RoundProblem`, names of devices, names of clusters."""

OptionName = Callable[[str], str]
"""What the user knows a field by, for error messages."""


def make_length(given: Mapping[str, Any], option_name: OptionName = str) -> RunLength | None:
    """The budgets of a whole run among the options that were given, or None if there are none."""
    budgets = f"{option_name('time_budget')} or {option_name('energy_budget')}"
    if "time_budget" not in given and "energy_budget" not in given:
        for field in ("rounds", "edge_rounds"):
            if field in given:
                raise InputError(f"{option_name(field)}: only with {budgets}")
        return None
    if "rounds" not in given:
        raise InputError(f"{option_name('rounds')}: required with {budgets}")
    for cap, budget in (("time_cap", "time_budget"), ("energy_cap", "energy_budget")):
        if cap in given and budget in given:
            raise InputError(
                f"{option_name(cap)}: give a cap for the round or a budget for the run, not both"
            )
    return RunLength(
        given.get("time_budget"), given.get("energy_budget"), given["rounds"], given.get("edge_rounds", 5)
    )


def read_problem(
    source: object,
    options: Mapping[str, Any],
    length: RunLength | None = None,
    option_name: OptionName = str,
) -> NamedProblem:
    """Reads devices (and, from JSON, the rest) and builds the problem.

    The source is a path (.json, .csv or .parquet), or a table in memory (`_to_columns`); a mapping with
    `devices` is read like a JSON document. Options override the document; budgets of a run replace caps.
    """
    place, (fields, device_names, cluster_names) = _read_source(source)
    _check_names(place, (*device_names, *cluster_names))
    # Options override the file, the file overrides the defaults.
    given = {**DEFAULTS, **fields, **options}
    if length is not None:
        given |= length.compute_caps(len(cluster_names))
    try:
        problem = RoundProblem(**given)
    except InputError as error:
        raise _locate_error(place, error, options, option_name) from error
    names = cluster_names if len(cluster_names) == problem.clusters else _number_names(problem.clusters)
    return NamedProblem(problem, device_names, names)


def _read_source(source: object) -> tuple[str | Path, Found]:
    if isinstance(source, Mapping) and "devices" in source:
        return "table", _read_document("table", {**source, "devices": _to_columns(source["devices"])})
    if not isinstance(source, str | Path):
        return "table", _read_document("table", {"devices": _to_columns(source)})
    suffix = Path(source).suffix.lower()
    if suffix == ".toml":
        raise FleetFileError(f"{source}: is not a table of devices: must be .csv, .parquet or .json")
    if suffix == ".json":
        return source, _read_document(source, _load_document(source))
    table = read_devices(source)
    return source, ({**table.columns}, table.names, table.cluster_labels)


def _to_columns(table: Any) -> dict[str, list[Any]] | list[dict[str, Any]]:  # noqa: ANN401 — a table of any library
    """The known columns of a table as lists of Python values; others are ignored, as in a file.

    A table is a mapping of columns, a list of mappings, a pandas or polars frame, or an Arrow table.
    """
    if isinstance(table, list | tuple) and all(isinstance(row, Mapping) for row in table):
        return [{key: _to_plain(key, row[key]) for key in row if key in COLUMNS} for row in table]
    if isinstance(table, Mapping):
        return {key: _to_list(key, table[key]) for key in table if key in COLUMNS}
    names = getattr(table, "column_names", getattr(table, "columns", None))
    if names is None:
        raise InputError(
            f"table: is a {type(table).__name__}; must be a path, a mapping of columns, a list of mappings, "
            "a pandas or polars frame, or an Arrow table"
        )
    return {name: _to_list(name, table[name]) for name in map(str, names) if name in COLUMNS}


def _to_list(key: str, column: Any) -> list[Any]:  # noqa: ANN401 — a column of any library
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(column, method):
            column = getattr(column, method)()
            break
    if not isinstance(column, list | tuple):
        raise InputError(f"table[{key!r}]: is a {type(column).__name__}, must have one entry per device")
    return [_to_plain(key, value) for value in column]


def _to_plain(key: str, value: Any) -> Any:  # noqa: ANN401 — a cell of any type
    """A number or text of Python; libraries write an empty cell as NaN, which stands for no battery limit."""
    plain = value.item() if hasattr(value, "item") else value
    return None if key == "battery" and isinstance(plain, float) and math.isnan(plain) else plain


def _check_names(path: str | Path, names: tuple[str, ...]) -> None:
    """Raises for a name that could draw on the terminal."""
    # Most have nothing of the kind, and there may be millions.
    if not "".join(names).isprintable():
        for name in names:
            if escape_control(name) != name:
                raise FleetFileError(f"{path}: the name {show(name)} must not contain control characters")


def _locate_error(
    path: str | Path, error: InputError, options: Mapping[str, Any], option_name: OptionName
) -> InputError:
    """Adds to an error where its field comes from: an option, or the file."""
    # Error messages begin with the field's name, see `validation`.
    found = re.match(r"(\w+)(?:\[(\d+)\])?(.*)", str(error), re.DOTALL)
    if found is None or found[1] not in options:
        return FleetFileError(f"{path}: {error}")
    field, device, rest = found.groups()
    at = "" if device is None else f" (device {device})"
    return InputError(f"{option_name(field)}{rest}{at}")


def _read_document(path: str | Path, document: dict[str, Any]) -> Found:
    for key in document:
        if key not in (*ROUND_FIELDS, *BOUND_FIELDS, "devices"):
            raise FleetFileError(
                f"{path}: {unknown_name('top level', key, (*ROUND_FIELDS, *BOUND_FIELDS, 'devices'))}"
            )
    columns = _check_columns(path, document.get("devices"))
    device_names = _pop_names(path, columns)
    caps = document.get("time_cap")
    columns["cluster"], labels = _number_clusters(
        path, columns["cluster"], len(caps) if isinstance(caps, list) else 0
    )
    rest = {key: _read_cap(key, value) for key, value in document.items() if key != "devices"}
    return {**rest, **columns}, device_names, labels


def _load_document(path: str | Path) -> dict[str, Any]:
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FleetFileError(f"{path}: cannot be read: {describe_error(error)}") from error
    if not isinstance(document, dict):
        raise FleetFileError(f"{path}: must be an object with `devices`, got a {type(document).__name__}")
    return document


def _check_columns(path: str | Path, devices: object) -> dict[str, Any]:
    """Returns the devices as columns, whether written as rows or as columns."""
    if isinstance(devices, list) and all(isinstance(row, dict) for row in devices):
        keys = list(dict.fromkeys(key for row in devices for key in row)) or list(DEVICE_FIELDS)
        for number, row in enumerate(devices):
            for key in keys:
                if key not in row:
                    raise FleetFileError(f"{path}: devices[{number}].{key}: is missing")
        devices = {key: [row[key] for row in devices] for key in keys}
    if not isinstance(devices, dict):
        raise FleetFileError(f"{path}: devices: must be a list of objects or an object of columns")
    for key in devices:
        if key not in COLUMNS:
            raise FleetFileError(f"{path}: {unknown_name('devices', key, COLUMNS)}")
    for key in dict.fromkeys((*DEVICE_FIELDS, *devices)):
        if not isinstance(devices.get(key), list):
            raise FleetFileError(f"{path}: devices.{key}: is missing or not a list")
        count, found = len(devices["mu"]), len(devices[key])
        if found != count or not count:
            wanted = f"as many as mu, {count}" if count else "at least 1"
            raise FleetFileError(f"{path}: devices.{key}: has {found} entries, must have {wanted}")
    return {key: _check_column(path, key, values) for key, values in devices.items()}


def _check_column(path: str | Path, key: str, values: list[Any]) -> list[Any]:
    """Checks one column: all but clusters and names must be numbers; `null` for a battery means no limit."""
    if key in ("cluster", *NAMES):
        return values
    if key == "battery":
        values = [np.inf if joules is None else joules for joules in values]
    for number, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FleetFileError(f"{path}: devices[{number}].{key} = {show(value)}: must be a number")
    return values


def _pop_names(path: str | Path, columns: dict[str, Any]) -> tuple[str, ...]:
    """Takes the names out of the columns; devices without a name get their number."""
    given = {key: columns.pop(key) for key in NAMES if key in columns}
    if not given:
        return _number_names(len(columns["mu"]))
    key, values = next(iter(given.items()))
    seen: set[str] = set()
    for number, name in enumerate(map(str, values)):
        if name in seen:
            found = f"devices[{number}].{key} = {show(name)}"
            raise FleetFileError(f"{path}: {found}: must be different for every device, it occurs twice")
        seen.add(name)
    return tuple(map(str, values))


def _number_clusters(path: str | Path, given: list[Any], caps: int) -> tuple[list[int], tuple[str, ...]]:
    """Returns clusters by number, and their names; names are numbered in order of appearance.

    Numbers count from 0 and stay below the number of devices, or of time caps; a larger one must be a name.
    """
    for number, cluster in enumerate(given):
        whole = isinstance(cluster, int) and not isinstance(cluster, bool) and cluster >= 0
        if not whole and not (isinstance(cluster, str) and cluster):
            found = f"devices[{number}].cluster = {show(cluster)}"
            raise FleetFileError(f"{path}: {found}: must be a whole number ≥ 0 or a name")
    if not any(isinstance(cluster, str) for cluster in given):
        most = max(len(given), caps)
        for number, cluster in enumerate(given):
            if cluster >= most:
                raise FleetFileError(
                    f"{path}: devices[{number}].cluster = {cluster}: clusters are numbered from 0 and below "
                    f"the number of devices, {most}; put it in quotes if it is a name"
                )
        return given, _number_names(max(given) + 1)
    labels = {label: number for number, label in enumerate(dict.fromkeys(map(str, given)))}
    return [labels[str(cluster)] for cluster in given], tuple(labels)


def _read_cap(key: str, value: object) -> object:
    """Replaces `null` and "inf" by infinity, which JSON cannot write: a cap without limit."""
    if key not in ("time_cap", "energy_cap"):
        return value
    if isinstance(value, list):
        return [_read_cap(key, entry) for entry in value]
    return np.inf if value is None or value == "inf" else value


def _number_names(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))
