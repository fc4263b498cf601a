"""Reports runs to experiment trackers: TensorBoard, MLflow, Weights & Biases, trackio, or a sink of your own.

A tracker may be slow, wait for a network or fail; the run must not, so a thread tells the trackers what
happens. Each sink imports its package in that thread: some take seconds. What each tracker has been told is
kept in `tracking.json` in the run directory, so that a resumed run continues there, and a run started
without a tracker can be resumed with one.
"""

import json
import math
import os
import re
import shutil
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Protocol

from cfel.durable import make_directory, read_bytes, replace_file, translate_parse_errors
from cfel.errors import CfelError, InputError, unknown_name
from cfel.extras import MissingExtraError, install_command
from cfel.report.load import Run, load_run, load_runs
from cfel.report.summary import measure
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from cfel.runlog.records import read_metrics
from cfel.validation import parse_json

Status = Literal["finished", "interrupted", "failed"]

FOLDER = "tensorboard"
"""The folder of event files in a run directory, or in a tree of them."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run that starts, or that is resumed."""

    project: str  # name of the experiment; the runs of a comparison or a sweep share it
    name: str  # of this run
    directory: Path
    settings: Mapping[str, Any]  # the experiment's values by dotted keys
    earlier: str | None = None  # the `run_id` of the sink that tracked the run before it was resumed, or None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run."""

    status: Status  # whether all rounds are done, Ctrl-C was pressed, or an error ended the run
    summary: Mapping[str, float]  # its final values by name, as in `summary.json`
    files: tuple[Path, ...]  # what is worth keeping besides the rounds: experiment, environment, fleet, log


class RunSink(Protocol):
    """Where one run is reported to. All methods are called from one thread, which is not the run's.

    An exception ends this sink, not the run; the user reads it once.
    """

    @property
    def run_id(self) -> str:
        """What the tracker calls this run; a resumed run is reported to the same one."""

    def log_round(self, record: RoundRecord) -> None:
        """Takes a round. Each arrives once, in order, also if the run was resumed in between."""

    def finish(self, end: RunEnd) -> None:
        """Takes the end of the run, and releases whatever the sink holds."""


Tracker = Callable[[TrackedRun], RunSink]
"""Opens a sink for a run."""


class _TensorBoardSink:
    """Event files in the run directory (`tensorboard --logdir DIR`) that grow with the run."""

    run_id = FOLDER  # event files have no names of their own

    def __init__(self, run: TrackedRun) -> None:
        self._directory = run.directory
        self._file: Path | None = None
        self._last = 0

    def log_round(self, record: RoundRecord) -> None:
        if self._file is None:
            # The log may have more rounds already: this thread follows the run.
            run = load_run(self._directory)
            self._file = write_run_events(self._directory / FOLDER, run)
            self._last = run.records[-1].round
        elif record.round > self._last:
            with self._file.open("ab") as stream:
                stream.write(encode_round(record))

    def finish(self, end: RunEnd) -> None:
        """All events are written already."""


class _MlflowSink:
    """One MLflow experiment per project, metrics by global round, the run's files as artifacts.

    Where they are stored is up to MLflow: MLFLOW_TRACKING_URI, or a database in the current folder.
    """

    _STATUS: Mapping[Status, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
    # MLflow's limits: parameters in one call, and characters of a parameter's value.
    _MOST_PARAMETERS = 100
    _MOST_CHARACTERS = 6000

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        self._client, self._step = MlflowClient(), 0
        if run.earlier is None:
            self.run_id = self._create(run)
        else:
            self.run_id = run.earlier
            self._client.update_run(run.earlier, status="RUNNING")

    def _create(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        client = self._client
        found = client.get_experiment_by_name(run.project)
        experiment = client.create_experiment(run.project) if found is None else found.experiment_id
        tags = {"cfel.directory": str(run.directory)}
        run_id = str(client.create_run(experiment, run_name=run.name, tags=tags).info.run_id)
        values = [Param(name, str(value)[: self._MOST_CHARACTERS]) for name, value in run.settings.items()]
        for begin in range(0, len(values), self._MOST_PARAMETERS):
            client.log_batch(run_id, params=values[begin : begin + self._MOST_PARAMETERS])
        return run_id

    def log_round(self, record: RoundRecord) -> None:
        self._step = record.round
        self._log(read_metrics(record))

    def finish(self, end: RunEnd) -> None:
        self._log({f"summary.{name}": value for name, value in end.summary.items()})
        for path in end.files:
            self._client.log_artifact(self.run_id, str(path))
        self._client.set_terminated(self.run_id, self._STATUS[end.status])

    def _log(self, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, self._step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)


class _WandbSink:
    """Weights & Biases, offline unless WANDB_MODE says otherwise: `wandb sync DIR` uploads runs later."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        # Nothing leaves this machine without being asked to.
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            # For reports of errors and usage, wandb looks up its server in offline runs, too.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.earlier,
            resume="allow" if run.earlier else None,
            config=dict(run.settings),
            mode=mode,
            # Other runs may be in progress: those of a comparison on a cluster, or the user's own.
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        self.run_id = str(self._run.id)

    def log_round(self, record: RoundRecord) -> None:
        self._run.log({"round": record.round, **read_metrics(record)}, step=record.round)

    def finish(self, end: RunEnd) -> None:
        self._run.summary.update(dict(end.summary))
        for path in end.files:
            # Whatever is in this folder at the end belongs to the run.
            shutil.copy(path, self._run.dir)
        self._run.finish(exit_code=0 if end.status == "finished" else 1)


class _TrackioSink:
    """trackio, on this machine: `trackio show` opens its dashboard. It has no files, only numbers."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        # trackio prints; standard output is for results alone.
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=run.project,
                name=run.earlier or run.name,
                resume="must" if run.earlier else "never",
                config=dict(run.settings),
                embed=False,
            )
        # The name, by which trackio finds a run again.
        self.run_id = str(self._run.name)
        self._step = 0

    def log_round(self, record: RoundRecord) -> None:
        self._step = record.round
        self._run.log(read_metrics(record), step=record.round)

    def finish(self, end: RunEnd) -> None:
        self._run.log({f"summary/{name}": value for name, value in end.summary.items()}, step=self._step)
        with redirect_stdout(sys.stderr):
            self._run.finish()


_SINKS: Mapping[str, Tracker] = {
    "tensorboard": _TensorBoardSink,
    "mlflow": _MlflowSink,
    "wandb": _WandbSink,
    "trackio": _TrackioSink,
}
TRACKERS = tuple(_SINKS)
"""The names of the trackers; each is that of its package, except that "tensorboard" needs none."""


def choose_trackers(wanted: Sequence[str | Tracker]) -> dict[str, Tracker]:
    """The trackers with some names; functions are kept as they are, under their own names."""
    return dict(_choose(each) for each in wanted)


def _choose(wanted: str | Tracker) -> tuple[str, Tracker]:
    if not isinstance(wanted, str):
        if not callable(wanted):
            raise InputError(f"track: {wanted!r} is neither the name of a tracker nor a function")
        return getattr(wanted, "__qualname__", type(wanted).__qualname__), wanted
    if wanted not in TRACKERS:
        raise InputError(unknown_name("track", wanted, TRACKERS))
    if wanted != "tensorboard" and find_spec(wanted) is None:
        raise MissingExtraError(
            f"track {wanted!r}: {wanted} is not installed; install it with {install_command(wanted)}"
        )
    return wanted, _SINKS[wanted]


STATE_FILE = "tracking.json"
FINISH_SECONDS = 60.0
"""How long the end of a run waits for trackers that are still busy."""
_FILES = ("experiment.toml", "environment.json", "fleet.json", "rounds.jsonl")

Notify = Callable[[str], None]
OnRecord = Callable[[RoundRecord], None]


@dataclass(frozen=True, slots=True)
class _Told:
    """What a tracker has been told about a run: the fields of `tracking.json`."""

    run_id: str = ""
    rounds: int = 0
    finished: bool = False


class _Feed:
    """One tracker of one run: tells it each thing once; after an error nothing more."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, told: _Told, notify: Notify) -> None:
        self.name, self.told = name, told
        self._tracker, self._run, self._notify = tracker, run, notify
        self._sink: RunSink | None = None
        self._failed = False

    def start(self) -> None:
        """Opens the sink, unless its run is known to be over: nothing may be left to say."""
        if not self.told.finished:
            self._attempt(self._open)

    def log_round(self, record: RoundRecord) -> None:
        if record.round > self.told.rounds:
            self._attempt(partial(self._log, record))

    def finish(self, end: RunEnd) -> None:
        if self._sink is not None:
            self._attempt(partial(self._sink.finish, end))
            self.told = replace(self.told, finished=end.status == "finished" and not self._failed)

    def _open(self) -> RunSink:
        self._sink = self._tracker(replace(self._run, earlier=self.told.run_id or None))
        self.told = _Told(self._sink.run_id, self.told.rounds)
        return self._sink

    def _log(self, record: RoundRecord) -> None:
        (self._sink or self._open()).log_round(record)
        self.told = replace(self.told, rounds=record.round)

    def _attempt(self, action: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 — another package's; whatever it is, the run continues
            self._failed = True
            words = f"{type(error).__name__}: {error}"
            self._notify(f"tracker {self.name} failed and is off; {self._run.name} continues: {words}")


class _Follower:
    """The thread that feeds the trackers of one run."""

    def __init__(self, run: TrackedRun, trackers: Mapping[str, Tracker], notify: Notify) -> None:
        self._run, self._notify = run, notify
        resumed = holds_run(run.directory)
        told = _read_told(run) if resumed else {}
        self._feeds = [
            _Feed(name, tracker, run, told.get(name, _Told()), notify) for name, tracker in trackers.items()
        ]
        self._others = {name: each for name, each in told.items() if name not in trackers}
        self._events: SimpleQueue[RoundRecord | Status] = SimpleQueue()
        # Rounds from before the run was tracked.
        for record in RunDirectory.open(run.directory).records() if resumed else ():
            self._events.put(record)
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        self._thread.start()

    def put(self, record: RoundRecord) -> None:
        self._events.put(record)

    def end(self, status: Status) -> None:
        """Reports the end and waits until the trackers know all, but not forever."""
        self._events.put(status)
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            self._notify(
                f"trackers of {self._run.name} are still busy after {FINISH_SECONDS:g} s: left alone"
            )

    def _work(self) -> None:
        try:
            for feed in self._feeds:
                feed.start()
            while isinstance(event := self._events.get(), RoundRecord):
                for feed in self._feeds:
                    feed.log_round(event)
                self._write_told()
            end = _describe_end(self._run, event)
            for feed in self._feeds:
                feed.finish(end)
            # A run that failed at once has no directory.
            if holds_run(self._run.directory):
                self._write_told()
        except CfelError as error:
            self._notify(f"{self._run.name} is no longer tracked: {error}")

    def _write_told(self) -> None:
        told = self._others | {feed.name: feed.told for feed in self._feeds}
        content = json.dumps({name: asdict(each) for name, each in told.items()}, indent=2)
        replace_file(self._run.directory / STATE_FILE, f"{content}\n".encode())


@contextmanager
def follow_run(run: TrackedRun, trackers: Mapping[str, Tracker], notify: Notify) -> Iterator[OnRecord]:
    """Reports a run to trackers while the block executes it; yields the function to call after each round.

    `notify` receives a message if a tracker fails.
    """
    if not trackers:
        yield lambda _: None
        return
    follower = _Follower(run, trackers, notify)
    try:
        yield follower.put
    except BaseException as error:
        follower.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    follower.end("finished")


def _describe_end(run: TrackedRun, status: Status) -> RunEnd:
    if not holds_run(run.directory):
        return RunEnd(status, {}, ())
    loaded = load_run(run.directory)
    # Of several runs side by side, some are complete when the others are interrupted.
    if loaded.records and loaded.records[-1].round >= run.settings.get("rounds.global", float("inf")):
        status = "finished"
    values = measure(loaded, loaded.target)
    files = tuple(path for name in _FILES if (path := run.directory / name).exists())
    return RunEnd(status, {name: value for name, value in values.items() if value is not None}, files)


def _read_told(run: TrackedRun) -> dict[str, _Told]:
    path = run.directory / STATE_FILE
    if not path.exists():
        return {}
    with translate_parse_errors(path):
        document = parse_json(read_bytes(path).decode())
        return {str(name): _Told(**each) for name, each in document.items()}


# TensorBoard's event files, for `cfel report --tensorboard` and `--track`, written without TensorBoard. An
# event file is a sequence of records (length, checksum, bytes, checksum). The bytes are protocol buffers,
# of which only four fields are needed, so they are encoded here. The time of an event is the virtual time
# of the run, so the "relative" axis of TensorBoard shows the paper's seconds.


_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_CASTAGNOLI = 0x82F63B78
_LARGEST_FLOAT = 3.4028234663852886e38


def write_events(path: Path) -> tuple[Path, ...]:
    """Writes an event file for every run in `path`: `path/tensorboard/<scheme>/seed-<n>/…`; returns them."""
    return tuple(write_run_events(path / FOLDER, run) for run in load_runs(path))


def write_run_events(root: Path, run: Run) -> Path:
    """Writes the event file of one run, in place of one that is there; returns its path."""
    directory = root / re.sub(r"[^\w-]", "-", run.scheme) / f"seed-{run.seed}"
    for each in (root, directory.parent, directory):
        make_directory(each)
    file = directory / "events.out.tfevents.0.cfel"
    version = _frame(_encode_double(1, 0.0) + _encode_bytes(3, b"brain.Event:2"))
    replace_file(file, b"".join([version, *map(encode_round, run.records)]))
    return file


def encode_round(record: RoundRecord) -> bytes:
    """One round as a record of an event file, to be appended to it."""
    values = b"".join(
        _encode_bytes(1, _encode_bytes(1, f"cfel/{tag}".encode()) + _encode_float(2, value))
        for tag, value in read_metrics(record).items()
    )
    round_number = _key(2, _VARINT) + _encode_varint(record.round)
    return _frame(_encode_double(1, record.seconds) + round_number + _encode_bytes(5, values))


def _frame(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _checksum(length) + event + _checksum(event)


def _checksum(content: bytes) -> bytes:
    """CRC-32C, masked as TensorFlow does because a CRC over data that contains its own CRC is weak."""
    value = crc32c(content)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(content: bytes) -> int:
    table, value = _table(), 0xFFFFFFFF
    for byte in content:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    values = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_CASTAGNOLI if value & 1 else 0)
        values.append(value)
    return tuple(values)


def _encode_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _key(field: int, wire_type: int) -> bytes:
    return _encode_varint(field << 3 | wire_type)


def _encode_double(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _encode_float(field: int, value: float) -> bytes:
    # `struct` raises for a double that is too large for a float.
    if math.isfinite(value) and abs(value) > _LARGEST_FLOAT:
        value = math.copysign(math.inf, value)
    return _key(field, _FLOAT) + struct.pack("<f", value)


def _encode_bytes(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _encode_varint(len(content)) + content
