"""Experiment files: reads one over its preset, checks every key, and writes it with every default.

It knows which section of the file belongs to which dataclass. What the keys mean is checked in those classes,
TOML in general is handled in `document`, and `experiment` builds what a file describes.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from cfel import validation
from cfel.control import Rounds, SchemeParameters
from cfel.deployment.parameters import DeploymentParameters
from cfel.durable import read_bytes
from cfel.errors import ExperimentError, InputError, describe_error, unknown_name
from cfel.experiment.document import (
    Table,
    check_table,
    keys_of,
    merge,
    parse_assignment,
    parse_section,
    reject_unknown,
    resolve_paths,
    to_table,
)
from cfel.experiment.experiment import Experiment
from cfel.experiment.sections import BudgetParameters, CompressionParameters, DataParameters, ModelParameters
from cfel.learning.aggregation import AggregationParameters
from cfel.learning.local.sgd import LocalParameters
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.rounds.parameters import SimulationParameters
from cfel.runlog.toml_text import parse_toml
from cfel.system import (
    Availability,
    DeviceClass,
    FleetParameters,
    HardwareConditions,
    RandomConditions,
    TopologyParameters,
    TraceParameters,
)

PRESETS = ("demo", "paper-cifar10", "paper-femnist", "none")
CONDITIONS = {"random": RandomConditions, "classes": HardwareConditions, "trace": TraceParameters}
# In the order in which `experiment_toml` writes them.
SECTIONS: Mapping[str, type[Any]] = {
    "rounds": Rounds,
    "fleet": FleetParameters,
    "topology": TopologyParameters,
    "data": DataParameters,
    "model": ModelParameters,
    "local": LocalParameters,
    "scheme": SchemeParameters,
    "compression": CompressionParameters,
    "aggregation": AggregationParameters,
    "budget": BudgetParameters,
    "simulation": SimulationParameters,
    "deployment": DeploymentParameters,
}
FILE_NAMES = (("topology", "file"), ("fleet", "conditions", "file"), ("data", "path"), ("model", "init"))
# Keys that may differ between the nodes of a federation.
NODE_KEYS = (
    *FILE_NAMES,
    *(("preset",), ("name",)),
    *(("simulation", key) for key in ("workers", "checkpoint_every", "engine", "device")),
)
_MAX_BYTES = 64 * 1024**2


def load_experiment(
    path: str | Path, changes: Sequence[str] = (), code: CodePolicy = BUILT_IN_ONLY
) -> Experiment:
    """Reads an experiment file.

    Args:
        path: the TOML file.
        changes: assignments like "rounds.global=3" that override the file. File names in them are relative
            to the current folder, those in the file to the file's folder.
        code: whether names in it may refer to code from outside the package.

    Raises:
        ExperimentError: the file cannot be read, or a key or value is unknown or not allowed.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read: {describe_error(error)}") from error
    return _read_experiment(content, path, changes, code)


def load_directory_experiment(
    directory: Path, changes: Sequence[str] = (), code: CodePolicy = BUILT_IN_ONLY
) -> Experiment:
    """Reads the experiment in a directory of unknown origin: the file must not be a link or a pipe.

    Args:
        directory: a run directory, or a folder with an `experiment.toml`.
        changes: see `load_experiment`.
        code: see `load_experiment`.

    Raises:
        StorageError: the file cannot be read.
        ExperimentError: a key or value is unknown or not allowed.
    """
    path = directory / "experiment.toml"
    return _read_experiment(read_bytes(path, max_bytes=_MAX_BYTES), path, changes, code)


def _read_experiment(
    content: bytes, path: str | Path, changes: Sequence[str], code: CodePolicy
) -> Experiment:
    try:
        document: Table = parse_toml(content.decode())
    except ValueError as error:
        raise ExperimentError(f"{path}: cannot be read: {describe_error(error)}") from error
    # In this order: paths in the file are relative to the file, those in --set to the current folder.
    document = _apply_changes(resolve_paths(document, Path(path).parent, FILE_NAMES), changes)
    try:
        return parse_experiment(document, code)
    except InputError as error:
        blamed = next((change for change in changes if str(error).startswith(f"{_key(change)} ")), None)
        place = path if blamed is None else f"--set {blamed}"
        raise ExperimentError(f"{place}: {error}") from error


def _key(change: str) -> str:
    return change.partition("=")[0].strip()


def preset_experiment(name: str, changes: Sequence[str] = (), code: CodePolicy = BUILT_IN_ONLY) -> Experiment:
    """The experiment of a preset, with changes."""
    return parse_experiment(_apply_changes({"preset": name}, changes), code)


def parse_experiment(document: Table, code: CodePolicy = BUILT_IN_ONLY) -> Experiment:
    """The experiment that a TOML document describes."""
    preset = document.get("preset", "demo")
    if preset not in PRESETS:
        raise ExperimentError(unknown_name("preset", preset, PRESETS))
    given = {key: value for key, value in document.items() if key != "preset"}
    whole = merge(_load_preset(preset), given)
    reject_unknown("", whole, ["name", "seed", "preset", *SECTIONS])
    parts: dict[str, Any] = {key: whole[key] for key in ("name", "seed") if key in whole}
    for name, parameters in SECTIONS.items():
        if name in whole:
            table = check_table(name, whole[name])
            _reject_misplaced(name, table)
            parts[name] = _parse_fleet(table) if name == "fleet" else parse_section(parameters, name, table)
    return Experiment(**parts, code=code)


def _reject_misplaced(name: str, table: Table) -> None:
    """Raises for a key that is unlike any of this section but known in another, naming that one."""
    known = keys_of(SECTIONS[name])
    for key in table.keys() - known.keys():
        homes = [other for other, parameters in SECTIONS.items() if key in keys_of(parameters)]
        # A key that resembles one of this section is more likely misspelt than misplaced.
        if len(homes) == 1 and not get_close_matches(key, known):
            raise ExperimentError(f"{name}.{key}: belongs in [{homes[0]}]")


def experiment_toml(experiment: Experiment) -> str:
    """The experiment as TOML with every default; reading it gives the same experiment."""
    head = {"preset": "none", "name": experiment.name, "seed": experiment.seed}
    tables = {name: to_table(getattr(experiment, name)) for name in SECTIONS}
    return tomli_w.dumps(head | tables | {"fleet": _fleet_to_table(experiment.fleet)})


def digest_shared_parts(experiment: Experiment) -> dict[str, str]:
    """A digest of each section that all nodes of a federation must share, by name.

    Paths may differ from host to host, and so may the way in which a node does its work.
    """
    document = tomllib.loads(experiment_toml(experiment))
    # Deadlines and limits may differ from node to node; where conditions come from changes the plans.
    document["deployment"] = {"conditions": document["deployment"]["conditions"]}
    for *path, key in NODE_KEYS:
        table = document
        for name in path:
            table = table.get(name, {})
        place = table.pop(key, None)
        # A node may hold its own samples; the content of all other files must be the same everywhere.
        if (*path, key) in FILE_NAMES and key != "path" and place is not None:
            table[key] = hashlib.sha256(Path(place).read_bytes()).hexdigest()
    return {
        name: hashlib.sha256(json.dumps(_to_floats(part), sort_keys=True).encode()).hexdigest()[:16]
        for name, part in document.items()
    }


def _to_floats(value: Any) -> Any:  # noqa: ANN401 — any value of a TOML document
    """The value with all numbers as floats: 1 and 1.0 are the same experiment."""
    if isinstance(value, dict):
        return {key: _to_floats(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_to_floats(each) for each in value]
    return float(value) if type(value) is int else value


def _apply_changes(document: Table, changes: Sequence[str]) -> Table:
    for change in changes:
        document = merge(document, resolve_paths(parse_assignment(change), Path.cwd(), FILE_NAMES))
    return document


def _load_preset(name: str) -> Table:
    if name == "none":
        return {}
    return tomllib.loads(files("cfel").joinpath(f"presets/{name}.toml").read_text(encoding="utf-8"))


def _parse_fleet(table: Table) -> FleetParameters:
    parts = dict(table)
    if "conditions" in parts:
        parts["conditions"] = _parse_conditions(check_table("fleet.conditions", parts["conditions"]))
    if "availability" in parts:
        availability = check_table("fleet.availability", parts["availability"])
        parts["availability"] = parse_section(Availability, "fleet.availability", availability)
    return parse_section(FleetParameters, "fleet", parts)


def _parse_conditions(table: Table) -> RandomConditions | HardwareConditions | TraceParameters:
    kind = table.get("kind", "random")
    if not isinstance(kind, str) or kind not in CONDITIONS:
        raise ExperimentError(unknown_name("fleet.conditions.kind", kind, CONDITIONS))
    rest = {key: value for key, value in table.items() if key != "kind"}
    if "extra_classes" in rest:
        place = "fleet.conditions.extra_classes"
        rows = enumerate(validation.check_list(place, rest["extra_classes"]))
        places = ((f"{place}[{i}]", row) for i, row in rows)
        rest["extra_classes"] = [parse_section(DeviceClass, at, check_table(at, row)) for at, row in places]
    return parse_section(CONDITIONS[kind], "fleet.conditions", rest)


def _fleet_to_table(fleet: FleetParameters) -> dict[str, Any]:
    kind = next(name for name, parameters in CONDITIONS.items() if isinstance(fleet.conditions, parameters))
    conditions = to_table(fleet.conditions)
    if "extra_classes" in conditions:
        conditions["extra_classes"] = [to_table(row) for row in fleet.conditions.extra_classes]  # type: ignore[union-attr]
    rest = {key: value for key, value in to_table(fleet).items() if key not in ("conditions", "availability")}
    return {**rest, "conditions": {"kind": kind, **conditions}, "availability": to_table(fleet.availability)}
