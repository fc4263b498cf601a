"""Experiment files: reads one over its preset, checks every key, and writes it with every default.

TOML in general is handled in `document`; `experiment` builds what a file describes.
"""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from cfel.durable import read_bytes
from cfel.errors import ExperimentError, InputError, describe_error
from cfel.experiment.document import Table, merge, parse_assignment, resolve_paths
from cfel.experiment.experiment import Experiment, parse_sections, to_document
from cfel.experiment.sections import FILE_NAMES, PATHS
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.validation import parse_toml

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

    Otherwise like `load_experiment`; a file that cannot be read is a `StorageError`.
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
    document = _apply_changes(resolve_paths(document, Path(path).parent, PATHS), changes)
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
    return Experiment(preset="none", **parse_sections(document), code=code)


def experiment_toml(experiment: Experiment) -> str:
    """The experiment as TOML with every default; reading it gives the same experiment."""
    return tomli_w.dumps(to_document(experiment))


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
        document = merge(document, resolve_paths(parse_assignment(change), Path.cwd(), PATHS))
    return document
