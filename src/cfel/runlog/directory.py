"""The run directory: `RunDirectory` reads it, `RunWriter` creates and resumes it.

    DIR/
    ├── experiment.toml      resolved: every default spelled out
    ├── environment.json     versions, commit, machine, schema of this directory
    ├── fleet.json           clusters, backhaul, mixing weights, budgets
    ├── rounds.jsonl         one line per global round; DIR is a run directory if it has this file
    ├── plans/               one table per global round
    └── checkpoint/          see `checkpoint`

A reader changes nothing, so it may read a run in progress. A writer holds the lock of the log. A round's
table is written before its line, and its line before any checkpoint that includes it: whenever the process
dies, every logged round has its table and every checkpoint its lines.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cfel.durable import (
    make_directory,
    read_bytes,
    remove_leftovers,
    remove_quietly,
    replace_file,
    sync_directory,
    translate_os_errors,
    translate_parse_errors,
)
from cfel.errors import InputError, RunDirectoryError, StorageError
from cfel.runlog.background import CheckpointWriter
from cfel.runlog.checkpoint import SHARD_BYTES, Checkpoint, read_checkpoint, remove_old_files
from cfel.runlog.environment import Environment
from cfel.runlog.fleet import FleetDescription
from cfel.runlog.log import RoundLog, read_log
from cfel.runlog.plans import PlanTable, plan_paths, read_plan, write_plan
from cfel.runlog.record import RoundRecord
from cfel.wording import plural

_LOG = "rounds.jsonl"
_EXPERIMENT = "experiment.toml"
_ENVIRONMENT = "environment.json"
_FLEET = "fleet.json"


def holds_run(path: Path) -> bool:
    """Whether `path` is a run directory (of any schema)."""
    # Links and pipes count, so that they are rejected by name when they are read.
    return os.path.lexists(path / _LOG)


def reject_existing_run(path: Path) -> None:
    """Raises if a new run in `path` would overwrite one."""
    if holds_run(path) or (path / "checkpoint" / "manifest.json").exists():
        raise RunDirectoryError(
            f"{path} holds a run already: resume it (--resume, in Python resume=True), or choose another "
            "directory"
        )


def write_descriptions(
    path: Path, *, experiment_toml: str, fleet: FleetDescription, environment: Environment
) -> None:
    """Creates `path` when missing and writes what does not change in the course of a run.

    Raises:
        StorageError: the files cannot be written.
    """
    with translate_os_errors("create", path):
        path.mkdir(parents=True, exist_ok=True)
        sync_directory(path.parent)
    replace_file(path / _FLEET, fleet.to_json().encode())
    replace_file(path / _ENVIRONMENT, environment.to_json().encode())
    # The last of them: an edge server takes a directory with an experiment as complete.
    replace_file(path / _EXPERIMENT, experiment_toml.encode())


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run to read, finished or not.

    Attributes:
        path: the directory.
    """

    path: Path

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Opens the run in `path`.

        Raises:
            RunDirectoryError: there is none, or it comes from a newer cfel.
        """
        if not path.exists():
            raise RunDirectoryError(f"{path} does not exist")
        if not holds_run(path):
            raise RunDirectoryError(f"{path} holds no run: it has no {_LOG}")
        run = cls(path)
        run.environment()
        return run

    def experiment_toml(self) -> str:
        """The resolved experiment, as text."""
        return self._text(_EXPERIMENT)

    def environment(self) -> Environment:
        """What the run was made with."""
        with translate_parse_errors(self.path / _ENVIRONMENT):
            return Environment.from_json(self._text(_ENVIRONMENT))

    def fleet(self) -> FleetDescription:
        """Who took part."""
        with translate_parse_errors(self.path / _FLEET):
            return FleetDescription.from_json(self._text(_FLEET))

    def records(self) -> tuple[RoundRecord, ...]:
        """The rounds so far; a line that is still being written is skipped."""
        return read_log(self.path / _LOG).records

    def plan_rounds(self) -> tuple[int, ...]:
        """The global rounds that have a plan table."""
        return tuple(number for number, _ in plan_paths(self.path))

    def plan(self, global_round: int, devices: int) -> PlanTable:
        """The plan table of one global round, whose devices have numbers below `devices`."""
        plan = read_plan(self.path, global_round)
        if plan.device.max(initial=-1) >= devices:
            raise RunDirectoryError(
                f"{self.path}: the plan of round {global_round} names device {plan.device.max()}, but the "
                f"run has {plural(devices, 'device')}"
            )
        return plan

    def checkpoint(self) -> Checkpoint | None:
        """The last complete checkpoint, or None."""
        return read_checkpoint(self.path / "checkpoint")

    def _text(self, name: str) -> str:
        content = read_bytes(self.path / name)
        with translate_parse_errors(self.path / name):
            return content.decode()


class RunWriter:
    """Writes a run; as a context manager it waits for the last checkpoint at the end.

    Use `RunWriter.create` or `RunWriter.resume`.

    Args:
        path: the directory; its files exist.
        shard_bytes: size at which a checkpoint file is closed.
    """

    def __init__(self, path: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self.path = path
        make_directory(path / "plans")
        # Models, and what devices remember: both can reveal training data.
        make_directory(path / "checkpoint", private=True)
        self._log = RoundLog(path / _LOG)
        self._checkpoints = CheckpointWriter(path / "checkpoint", shard_bytes)
        with translate_os_errors("create", path):
            sync_directory(path)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        experiment_toml: str,
        fleet: FleetDescription,
        environment: Environment,
        shard_bytes: int = SHARD_BYTES,
    ) -> "RunWriter":
        """Starts a run in `path`, which is created when missing.

        Raises:
            StorageError: `path` holds a run already, or cannot be written.
        """
        reject_existing_run(path)
        write_descriptions(path, experiment_toml=experiment_toml, fleet=fleet, environment=environment)
        return cls(path, shard_bytes)

    @classmethod
    def resume(
        cls, path: Path, *, experiment_toml: str | None = None, shard_bytes: int = SHARD_BYTES
    ) -> "tuple[RunWriter, Checkpoint | None]":
        """Resumes the run in `path`; the log then ends with the checkpoint's round.

        Rounds after the checkpoint are removed, to be computed again; so are leftovers of a killed write.

        Args:
            path: the directory.
            experiment_toml: replaces the one in the directory; None leaves it.
            shard_bytes: size at which a checkpoint file is closed.

        Returns:
            The writer, and the checkpoint to resume from; None means from the beginning.

        Raises:
            StorageError: there is no run, another process is writing it, or a file is damaged; nothing
                was changed then.
        """
        # Rejects a newer schema before anything is changed.
        RunDirectory.open(path)
        writer = cls(path, shard_bytes)
        try:
            checkpoint = read_checkpoint(path / "checkpoint")
            writer._truncate(checkpoint.round if checkpoint else None)
            if experiment_toml is not None:
                replace_file(path / _EXPERIMENT, experiment_toml.encode())
        except StorageError:
            writer.close()
            raise
        return writer, checkpoint

    def _truncate(self, last_round: int | None) -> None:
        self._log.truncate(last_round)
        remove_old_files(self.path / "checkpoint")
        for number, plan in plan_paths(self.path):
            if last_round is None or number > last_round:
                remove_quietly(plan)
        remove_leftovers(self.path)
        remove_leftovers(self.path / "plans")

    @property
    def last_round(self) -> int | None:
        """The last logged round; None before the first."""
        return self._log.last_round

    def append(self, record: RoundRecord, plan: PlanTable | None = None) -> None:
        """Logs a round; when this returns, the round survives a power cut.

        Raises:
            InputError: the plan is of another round.
            StorageError: the round does not follow the last one, or the file cannot be written; everything
                logged before is as it was, and the call may be repeated.
        """
        if plan is not None:
            if plan.round != record.round:
                raise InputError(f"plan.round: {plan.round}, but the record is of round {record.round}")
            write_plan(self.path, plan)
        self._log.append(record)

    def save_checkpoint(self, checkpoint: Checkpoint, *, copy: bool = True) -> None:
        """Starts writing a checkpoint of the last logged round and returns (see `CheckpointWriter.submit`).

        Raises:
            InputError: the checkpoint is of another round.
            StorageError: the previous checkpoint could not be written.
        """
        if checkpoint.round != self.last_round:
            raise InputError(f"checkpoint.round: {checkpoint.round}, but the log ends with {self.last_round}")
        self._checkpoints.submit(checkpoint, copy=copy)

    def wait(self) -> None:
        """Returns when no checkpoint is in flight; raises if the last one failed."""
        self._checkpoints.wait()

    def close(self) -> None:
        """Waits for the last checkpoint and releases the directory."""
        try:
            self._checkpoints.close()
        finally:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StorageError as failure:
            if error is None:
                raise
            error.add_note(f"also, the last checkpoint could not be written: {failure}")
