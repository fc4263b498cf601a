"""The run directory: `RunDirectory` reads it, `RunWriter` creates and resumes it.

    DIR/
    ├── experiment.toml      resolved: every default spelled out
    ├── environment.json     versions, commit, machine, schema of this directory
    ├── fleet.json           clusters, backhaul, mixing weights, budgets
    ├── rounds.jsonl         one line per global round; DIR is a run directory if it has this file
    ├── plans/               one table per global round: a row per device and edge round
    └── checkpoint/          see `checkpoint`

A reader changes nothing, so it may read a run in progress. A writer holds the lock of the log. A round's
table is written before its line, and its line before any checkpoint that includes it: whenever the process
dies, every logged round has its table and every checkpoint its lines.
"""

import json
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from cfel import validation
from cfel.durable import (
    check_directory,
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
from cfel.metric import ACCURACY, Metric
from cfel.runlog.checkpoint import Checkpoint, CheckpointWriter, read_checkpoint, remove_old_files
from cfel.runlog.records import RoundLog, RoundRecord, read_log
from cfel.validation import check_keys, check_unpacked_size, convert_document, parse_json
from cfel.wording import plural

_WHOLE = ("edge_round", "device", "cluster", "steps")
_SHARES = ("rho", "theta", "speed")
_NAME = re.compile(r"round-([0-9]{5,9})\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanTable:
    """Columns of equal length, one row per device and edge round of one global round."""

    round: int  # number of the global round
    edge_round: NDArray[Any]  # edge round within it
    device: NDArray[Any]  # device number
    cluster: NDArray[Any]  # its cluster
    rho: NDArray[Any]  # ρ, ordered share of local iterations
    theta: NDArray[Any]  # θ, ordered share of entries to upload
    mu: NDArray[Any]  # seconds per step
    alpha: NDArray[Any]  # joules per step
    nu: NDArray[Any]  # seconds per full upload
    power: NDArray[Any]  # watts while uploading
    steps: NDArray[Any]  # local steps actually taken
    seconds: NDArray[Any]  # time this device took in this edge round
    joules: NDArray[Any]  # energy it took
    speed: NDArray[Any] | None = None  # share of its clock that the device ran at; all 1 if not given

    def __post_init__(self) -> None:
        """Converts every column to its type and checks the lengths."""
        rows = len(self.device)
        if self.speed is None:
            object.__setattr__(self, "speed", np.ones(rows))
        for name in column_names():
            column = np.asarray(getattr(self, name), dtype=np.int32 if name in _WHOLE else np.float64)
            if column.shape != (rows,):
                raise InputError(f"{name}: shape {column.shape}, but device has {rows} entries")
            object.__setattr__(self, name, column)

    def keep(self, rows: NDArray[np.bool_]) -> "PlanTable":
        return replace(self, **{name: getattr(self, name)[rows] for name in column_names()})


def column_names() -> tuple[str, ...]:
    """The columns besides `round`, in file order."""
    return tuple(field.name for field in fields(PlanTable) if field.name != "round")


def plan_path(directory: Path, global_round: int) -> Path:
    """Where the table of a global round is stored in the run directory."""
    return directory / "plans" / f"round-{global_round:05d}.parquet"


def plan_paths(directory: Path) -> Iterator[tuple[int, Path]]:
    """The existing tables as (global round, path), in order of rounds."""
    check_directory(directory / "plans")
    names = ((_NAME.fullmatch(path.name), path) for path in (directory / "plans").glob("round-*.parquet"))
    found = [(int(name[1]), path) for name, path in names if name]
    return iter(sorted((number, path) for number, path in found if path == plan_path(directory, number)))


def encode_plan(plan: PlanTable) -> bytes:
    """The content of the table's file."""
    # Here and below, because devices write no tables.
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"round": np.full(len(plan.device), plan.round, dtype=np.int32)}
    columns |= {name: getattr(plan, name) for name in column_names()}
    buffer = BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def read_plan(directory: Path, global_round: int) -> PlanTable:
    """Reads the table of one global round; a `StorageError` says if it is missing or damaged."""
    path = plan_path(directory, global_round)
    check_directory(path.parent)
    return decode_plan(path, global_round, read_bytes(path))


def decode_plan(path: Path, global_round: int, content: bytes) -> PlanTable:
    """The table in the content of its file; a `StorageError` says if it is damaged."""
    with translate_parse_errors(path):
        return PlanTable(round=global_round, **_read_columns(content))


def _read_columns(content: bytes) -> dict[str, NDArray[Any]]:
    """The columns of a table, after a look at how large they will be: a small file can hold a huge table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(BytesIO(content))
    # Tables written before clocks could be turned down have no speeds.
    names = [name for name in column_names() if name != "speed" or name in file.schema_arrow.names]
    check_unpacked_size(file, len(names), len(content))
    for name in names:
        wanted = pa.int32() if name in _WHOLE else pa.float64()
        if file.schema_arrow.field(name).type != wanted:
            raise InputError(f"{name}: is {file.schema_arrow.field(name).type}, not {wanted}")
    table = file.read(columns=names, use_threads=False)
    columns = {name: table.column(name).to_numpy() for name in names}
    for name in names:
        _check_range(name, columns[name], table.column(name).null_count)
    return columns


def _check_range(name: str, column: NDArray[Any], missing: int) -> None:
    if missing or (name in _SHARES and not ((column >= 0) & (column <= 1)).all()):
        raise InputError(f"{name}: has an entry that is missing or outside of 0 to 1")
    if name in _WHOLE and (column < 0).any():
        raise InputError(f"{name}: has an entry below 0")


SCHEMA = 1
"""Layout of a run directory; raised when an older reader would misread a newer directory."""

# The directories of an absolute path, at the beginning of a word or of a value in it.
_DIRECTORIES = re.compile(r"(?<![\w./…~-])(?:~|/)(?:[^\s\"',;=/]*/)*")
_PACKAGES = ("cfel", "numpy", "torch", "pyarrow", "safetensors", "ray")
_LOG = "rounds.jsonl"
_EXPERIMENT = "experiment.toml"
_ENVIRONMENT = "environment.json"
_FLEET = "fleet.json"
_TOLERANCE = 1e-6
"""How far rounding may take a mixing weight out of [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The software and the machine a run was made with; nothing that identifies a person or a host.

    For information only, apart from the schema, which is here because this file is read first.
    """

    schema: int  # layout of the run directory
    python: str
    packages: dict[str, str]  # versions of the installed packages that results depend on
    commit: str | None  # commit of the source tree cfel runs from; None when it is an installed package
    modified: bool | None  # whether that tree had uncommitted changes; None when there is no commit
    cpu: str
    cores: int  # logical cores this process may use
    platform: str  # operating system and architecture
    # The command line of the run, as words; only the last part of absolute paths.
    command: tuple[str, ...] = ()
    started: str = ""  # when it started, in ISO 8601; may be empty

    def __post_init__(self) -> None:
        validation.check_whole("cores", self.cores, least=0)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Environment":
        document = parse_json(text)
        if not isinstance(document, dict):
            raise InputError(f"not a JSON object but {type(document).__name__}")
        # Checked first, so that the message is about the version and not about the first field that differs.
        schema = validation.check_whole("schema", document.get("schema"), least=0)
        if schema > SCHEMA:
            raise RunDirectoryError(
                f"this run directory has schema {schema}, this cfel reads up to schema {SCHEMA}: "
                "please use a newer cfel; nothing was changed"
            )
        check_keys(document, cls)
        return convert_document(document, cls)


def describe_environment(command: Sequence[str] = (), started: str = "") -> Environment:
    """Describes the environment of this process; `started` is a time in ISO 8601, if it should be stored."""
    commit, modified = _find_commit(Path(__file__).resolve().parents[1])
    return Environment(
        schema=SCHEMA,
        python=platform.python_version(),
        packages=_list_versions(),
        commit=commit,
        modified=modified,
        cpu=_find_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        command=_strip_directories(command),
        started=started,
    )


def _strip_directories(words: Sequence[str]) -> tuple[str, ...]:
    """The words without the directories of absolute paths, which often name a person."""
    return tuple(_DIRECTORIES.sub("" if place == 0 else "…/", word) for place, word in enumerate(words))


def _list_versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _find_cpu_model(source: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _find_commit(package: Path) -> tuple[str | None, bool | None]:
    """Commit of the tree that holds `package` as src/<package>, and whether the tree was changed since."""
    root = package.parents[1]
    if package.parent.name != "src" or not (root / ".git").exists():
        return None, None  # a package installed below somebody's repository is not that repository
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return (commit, bool(changes)) if commit else (None, None)


def _git(root: Path, *words: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 — fixed words, no shell
            [program, "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDescription:
    """Clusters, backhaul and budgets of one run, for readers; conditions and classes stay in `system`."""

    cluster: tuple[int, ...]  # cluster of each device, by device number
    # Links of the backhaul between edge servers, each once, as pairs of cluster numbers.
    edges: tuple[tuple[int, int], ...]
    mixing: tuple[tuple[float, ...], ...]  # the mixing matrix W, one row per cluster; rows sum to 1
    seconds_budget: float | None = None  # time budget, or None for no limit
    joules_budget: float | None = None  # energy budget of all devices together, or None for no limit
    # What the task measures: first the metric that records call accuracy, then further ones.
    metrics: tuple[Metric, ...] = (ACCURACY,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cluster", tuple(int(number) for number in self.cluster))
        object.__setattr__(self, "edges", tuple((int(a), int(b)) for a, b in self.edges))
        object.__setattr__(self, "mixing", tuple(tuple(float(w) for w in row) for row in self.mixing))
        self._check_clusters()
        if not self.metrics:
            raise InputError("metrics: must name at least one metric")
        for name in ("seconds_budget", "joules_budget"):
            value = getattr(self, name)
            limit = None if value in (None, math.inf) else validation.check_number(name, value, above=0)
            object.__setattr__(self, name, limit)

    def _check_clusters(self) -> None:
        count = self.clusters
        for index, row in enumerate(self.mixing):
            if len(row) != count:
                raise InputError(f"mixing[{index}]: {len(row)} weights, but there are {count} clusters")
            if not all(-_TOLERANCE <= weight <= 1 + _TOLERANCE for weight in row):
                raise InputError(f"mixing[{index}]: has a weight outside of 0 to 1")
        for index, number in enumerate(self.cluster):
            if not 0 <= number < count:
                raise InputError(f"cluster[{index}] = {number}: must be one of the {count} clusters")
        for index, edge in enumerate(self.edges):
            if not all(0 <= end < count for end in edge):
                raise InputError(f"edges[{index}] = {edge}: must join two of the {count} clusters")

    @property
    def clusters(self) -> int:
        return len(self.mixing)

    @property
    def devices(self) -> int:
        return len(self.cluster)

    def to_json(self) -> str:
        document = {"clusters": self.clusters, "devices": self.devices, **msgspec.to_builtins(self)}
        document["metrics"] = list_metrics(self.metrics)
        return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "FleetDescription":
        return convert_document(parse_json(text), cls)


def list_metrics(metrics: Sequence[Metric]) -> list[dict[str, str]]:
    return [{"name": each.name, "unit": each.unit, "better": each.better} for each in metrics]


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
    """Creates `path` when missing and writes what does not change in the course of a run."""
    with translate_os_errors("create", path):
        path.mkdir(parents=True, exist_ok=True)
        sync_directory(path.parent)
    replace_file(path / _FLEET, fleet.to_json().encode())
    replace_file(path / _ENVIRONMENT, environment.to_json().encode())
    # The last of them: an edge server takes a directory with an experiment as complete.
    replace_file(path / _EXPERIMENT, experiment_toml.encode())


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run to read, finished or not."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        if not path.exists():
            raise RunDirectoryError(f"{path} does not exist")
        if not holds_run(path):
            raise RunDirectoryError(f"{path} holds no run: it has no {_LOG}")
        run = cls(path)
        run.environment()
        return run

    def experiment_toml(self) -> str:
        return self._text(_EXPERIMENT)

    def environment(self) -> Environment:
        with translate_parse_errors(self.path / _ENVIRONMENT):
            return Environment.from_json(self._text(_ENVIRONMENT))

    def fleet(self) -> FleetDescription:
        with translate_parse_errors(self.path / _FLEET):
            return FleetDescription.from_json(self._text(_FLEET))

    def records(self) -> tuple[RoundRecord, ...]:
        """The rounds so far; a line that is still being written is skipped."""
        return read_log(self.path / _LOG).records

    def plan_rounds(self) -> tuple[int, ...]:
        return tuple(number for number, _ in plan_paths(self.path))

    def plan(self, global_round: int, devices: int) -> PlanTable:
        """The plan table of one global round, whose devices have numbers below `devices`.

        Those that joined later, by the log, are left out.
        """
        plan = read_plan(self.path, global_round)
        if plan.device.max(initial=-1) < devices:
            return plan
        changes = (change for record in self.records() for change in record.changes)
        joined = {n for change in changes if change.what == "add device" for n in change.device}
        if not set(plan.device[plan.device >= devices].tolist()) <= joined:
            raise RunDirectoryError(
                f"{self.path}: the plan of round {global_round} names device {plan.device.max()}, but the "
                f"run has {plural(devices, 'device')}"
            )
        return plan.keep(plan.device < devices)

    def checkpoint(self) -> Checkpoint | None:
        return read_checkpoint(self.path / "checkpoint")

    def _text(self, name: str) -> str:
        content = read_bytes(self.path / name)
        with translate_parse_errors(self.path / name):
            return content.decode()


class RunWriter:
    """Writes a run; as a context manager it waits for the last checkpoint. Use `create` or `resume`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make_directory(path / "plans")
        # Models, and what devices remember: both can reveal training data.
        make_directory(path / "checkpoint", private=True)
        self._log = RoundLog(path / _LOG)
        self._checkpoints = CheckpointWriter(path / "checkpoint")
        with translate_os_errors("create", path):
            sync_directory(path)

    @classmethod
    def create(
        cls, path: Path, *, experiment_toml: str, fleet: FleetDescription, environment: Environment
    ) -> "RunWriter":
        """Starts a run in `path`, which is created when missing."""
        reject_existing_run(path)
        write_descriptions(path, experiment_toml=experiment_toml, fleet=fleet, environment=environment)
        return cls(path)

    @classmethod
    def resume(
        cls, path: Path, *, experiment_toml: str | None = None
    ) -> "tuple[RunWriter, Checkpoint | None]":
        """Resumes the run in `path`; the log then ends with the checkpoint's round.

        Rounds after the checkpoint are removed, to be computed again; so are leftovers of a killed write. If
        there is no run, another process is writing it, or a file is damaged, nothing is changed. Returns the
        writer, and the checkpoint to resume from; None means from the beginning.
        """
        # Rejects a newer schema before anything is changed.
        RunDirectory.open(path)
        writer = cls(path)
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

        If it cannot be written, everything logged before is as it was, and the call may be repeated.
        """
        if plan is not None:
            if plan.round != record.round:
                raise InputError(f"plan.round: {plan.round}, but the record is of round {record.round}")
            replace_file(plan_path(self.path, plan.round), encode_plan(plan))
        self._log.append(record)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Starts writing a checkpoint of the last logged round (see `CheckpointWriter.submit`)."""
        if checkpoint.round != self.last_round:
            raise InputError(f"checkpoint.round: {checkpoint.round}, but the log ends with {self.last_round}")
        self._checkpoints.submit(checkpoint)

    def wait(self) -> None:
        self._checkpoints.wait()

    def close(self) -> None:
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
