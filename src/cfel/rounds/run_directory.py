"""Creates or resumes a run directory, for simulations, federations and single edge servers alike.

It decides what a directory says about its run, and whether a run may be resumed with an experiment. Files are
written by `runlog`.
"""

import time
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfel.control.setting import Setting
from cfel.durable import read_bytes, translate_parse_errors
from cfel.errors import RunDirectoryError
from cfel.runlog import (
    Checkpoint,
    FleetDescription,
    RunWriter,
    describe_environment,
    holds_run,
    reject_existing_run,
    write_descriptions,
)
from cfel.validation import parse_toml
from cfel.wording import show

MAY_DIFFER = (
    "name",
    "simulation.workers",
    "simulation.checkpoint_every",
    "simulation.device_accuracy",
    "rounds.stop",
    "rounds.target",
)
"""Keys that change no round, only how a run is carried out and when it ends: a resumed run may change them.

`rounds.global` is not among them: plans share what is left of the budgets among the rounds that are left.
"""

SAME_BITS = {"ray": "threads", "processes": "threads"}
"""Engines that compute what another one does: a run may move from one machine to a cluster, and back."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run directory as it is asked for."""

    path: Path  # the directory
    experiment_toml: str  # the experiment; of a simulation, resolved
    command: Sequence[str] = ()  # the command line, for the record
    resume: bool = False  # resume the run that `path` holds, if it holds one
    may_differ: Collection[str] = ()  # further keys that may have another value in a run that is resumed


def open_run(request: RunRequest, setting: Setting) -> tuple[RunWriter, Checkpoint | None]:
    """Resumes the run in a directory if asked to and there is one; else creates a run directory.

    Returns:
        The writer, and the checkpoint to resume from: None means from the beginning.

    Raises:
        RunDirectoryError: it holds a run and `resume` is not set, or it holds one of another experiment.
    """
    path, text = request.path, request.experiment_toml
    reject_unusable(path, text, request.resume, request.may_differ)
    if request.resume and holds_run(path):
        return RunWriter.resume(path, experiment_toml=text)
    return create_run(path, setting, text, request.command), None


def reject_unusable(path: Path, experiment_toml: str, resume: bool, may_differ: Collection[str] = ()) -> None:
    """Raises if a run cannot start in `path`, or be resumed there; arguments as in `RunRequest`."""
    if resume and holds_run(path):
        reject_other_experiment(path, experiment_toml, may_differ)
    else:
        reject_existing_run(path)


def create_run(path: Path, setting: Setting, experiment_toml: str, command: Sequence[str]) -> RunWriter:
    """Creates a run directory; arguments as in `RunRequest`."""
    return RunWriter.create(
        path,
        experiment_toml=experiment_toml,
        fleet=describe_fleet(setting),
        environment=describe_environment(command, started=_now()),
    )


def describe_run(path: Path, setting: Setting, experiment_toml: str) -> None:
    """Writes what a run directory says about its run into an edge server's directory."""
    write_descriptions(
        path,
        experiment_toml=experiment_toml,
        fleet=describe_fleet(setting),
        environment=describe_environment(started=_now()),
    )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def reject_other_experiment(path: Path, experiment_toml: str, may_differ: Collection[str] = ()) -> None:
    """Raises unless the run in `path` is of this experiment, up to the keys in `MAY_DIFFER` and `may_differ`.

    Raises:
        RunDirectoryError: naming the first key that differs, and both values.
    """
    content = read_bytes(path / "experiment.toml")
    with translate_parse_errors(path / "experiment.toml"):
        then = flatten(parse_toml(content.decode()))
    now = flatten(tomllib.loads(experiment_toml))
    for key in sorted(then.keys() | now.keys()):
        before, asked = then.get(key, ADDED.get(key)), now.get(key)
        # Deadlines and addresses of a deployment change no model.
        ignored = key in MAY_DIFFER or key in may_differ or key.startswith("deployment.")
        if not ignored and _meaning(key, before) != _meaning(key, asked):
            raise RunDirectoryError(
                f"{path} holds a run with {key} = {show(before)}, not {show(asked)}: "
                "resume it as it was, or choose another directory"
            )


ADDED: Mapping[str, Any] = {"compression.download_theta": 1.0, "compression.download_bits": 32}
"""What keys mean where an older run directory does not have them."""


def _meaning(key: str, value: Any) -> Any:  # noqa: ANN401 — any value of a TOML document
    return SAME_BITS.get(value, value) if key == "simulation.engine" else value


def flatten(table: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """A document's values by their dotted keys."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flatten(value, f"{place}{key}.") if isinstance(value, dict) else {f"{place}{key}": value}
    return values


def describe_fleet(setting: Setting) -> FleetDescription:
    """Clusters, backhaul, budgets and metrics, as a report needs them."""
    return FleetDescription(
        cluster=tuple(setting.fleet.cluster.tolist()),
        edges=tuple(setting.backhaul.edges),
        mixing=tuple(tuple(row) for row in setting.backhaul.weights.tolist()),
        seconds_budget=setting.budget.seconds,
        joules_budget=setting.budget.joules,
        metrics=setting.metrics,
    )
