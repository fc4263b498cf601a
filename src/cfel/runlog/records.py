"""rounds.jsonl: one `RoundRecord` per global round and line, on the disk before the next round starts.

A line is strict JSON and restores exactly the same record: a number that JSON cannot express (a loss that
diverged) is written as "nan", "inf" or "-inf". Numbers per device are not here but in `plans`.

A line counts when its newline is there. Text after the last newline was being written when the process died:
readers skip it and the next writer removes it. Any other line that is not a record is an error that names the
line; it is never skipped.
"""

import fcntl
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cfel.durable import read_bytes, translate_os_errors
from cfel.errors import InputError, RunBusyError, RunDirectoryError, StorageError
from cfel.membership import FleetChange, RoundLoss
from cfel.validation import check_keys, check_number, convert_document, parse_json
from cfel.wording import show

WALL_CLOCK_FIELDS = ("wall_seconds", "peak_memory_bytes")
"""Fields that differ between two runs of the same experiment; all others are equal to the last bit."""

METRICS = (
    *("accuracy", "loss", "seconds", "joules", "seconds_expected", "joules_expected"),
    *("rho_mean", "theta_mean", "sigma2", "g2", "gap"),
    *("wire_bytes", "steps_planned", "steps_taken", "upload_bytes_planned", "upload_bytes", "backhaul_bytes"),
    *("backhaul_joules", "download_bytes"),
    *("device_accuracy_mean", "device_accuracy_worst", "device_accuracy_spread"),
    *("personal_accuracy_mean", "personal_accuracy_worst", "personal_accuracy_spread", "personal_loss"),
)
"""Fields of a record that are worth a curve, for trackers and event files."""

_TOTALS = (
    *("seconds", "joules", "seconds_expected", "joules_expected"),
    *("seconds_realised", "joules_realised"),
)
# Fits into a float, so that every count can be drawn.
_MAX_COUNT = 2**100
_NOT_IN_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One global round; `docs/reference/run-directory.md` lists the fields as in the log."""

    round: int  # number of the global round; consecutive within a run
    seconds: float  # virtual (or real) time since the start, in the account the experiment chose
    joules: float  # energy of all devices since the start, in the same account
    seconds_expected: float  # time since the start as the controller counts it (the mean of the step draws)
    joules_expected: float  # energy likewise
    seconds_realised: float  # time since the start with the steps actually taken
    joules_realised: float  # energy likewise
    # The task's metric (`FleetDescription.metrics`); None when this round was not evaluated.
    accuracy: float | None
    loss: float | None  # mean training loss of the round; None when no device took a step
    rho_mean: float  # mean of ρ over devices and edge rounds
    theta_mean: float  # mean of θ over devices and edge rounds
    sigma2: float  # estimate of the gradient noise σ²
    g2: float  # estimate of the squared gradient norm G²
    gap: float | None  # largest proven optimality gap of the round's plans; None when nothing was solved
    feasible: bool  # whether every plan of the round met its caps
    wire_bytes: int  # bytes of this round's uploads and gossip
    wall_seconds: float  # real time this round took to compute
    model_sha256: str  # SHA-256 of the concatenated SHA-256s of the edge models, in cluster order, as hex
    violations: tuple[str, ...] = ()  # what could not be met, in words
    # Device the slowest cluster waited for, by realised seconds; None when no device took part.
    straggler: int | None = None
    slowest_cluster: int | None = None  # cluster that all others waited for, likewise
    devices_taking_part: int = 0  # devices that took part in at least one edge round
    steps_planned: float | None = None  # local steps of all devices in this round by the plans, Σ ρτ
    steps_taken: int | None = None  # local steps that they took
    # Bytes of this round's uploads by the plans, Σ θ times a full model.
    upload_bytes_planned: int | None = None
    upload_bytes: int | None = None  # bytes that devices sent, indices included
    backhaul_bytes: int | None = None  # bytes of models between edge servers in this round
    # Energy of these, part of `joules`; 0 where it is not charged (`topology.joules_per_bit`).
    backhaul_joules: float | None = None
    # Bytes of models that devices fetched in this round, with what edge servers remember beside them; as in
    # the paper, neither their time nor their energy is charged.
    download_bytes: int | None = None
    # Mean over devices of the metric on test samples like their own; None if not evaluated per device
    # (`simulation.device_accuracy`).
    device_accuracy_mean: float | None = None
    device_accuracy_worst: float | None = None  # mean over the worst tenth of the devices
    device_accuracy_spread: float | None = None  # standard deviation over devices
    # The same mean, of the models that devices keep to themselves; None without.
    personal_accuracy_mean: float | None = None
    personal_accuracy_worst: float | None = None  # mean over the worst tenth of the devices
    personal_accuracy_spread: float | None = None  # standard deviation over devices
    # Mean over devices of the task's loss of these models, on the same samples.
    personal_loss: float | None = None
    # The task's further metrics by their own names, averaged like accuracy; empty without.
    metrics: dict[str, float] = field(default_factory=dict)
    # Whether the run ends with this round because the budgets do not cover another.
    ends_at_budget: bool = False
    # Most memory that the simulating process has used so far, without workers in other processes; None if not
    # known.
    peak_memory_bytes: int | None = None
    # Of the fleet, or of the length of the run, that hold from the next round on.
    changes: tuple[FleetChange, ...] = ()
    # Of a federation: who was missing in this round, or what came to light of an earlier one.
    losses: tuple[RoundLoss, ...] = ()

    def __post_init__(self) -> None:
        """Converts NumPy scalars to plain numbers and checks all values."""
        names = _Values.__struct_fields__
        values = convert_document({name: _to_plain(getattr(self, name)) for name in names}, _Values)
        for name in names:
            object.__setattr__(self, name, _check_value(name, getattr(values, name)))
        for name in _TOTALS:
            check_number(name, getattr(self, name), least=0)
        if not re.fullmatch(r"[0-9a-f]{64}", self.model_sha256):
            raise InputError(
                f"model_sha256 = {show(self.model_sha256)}: must be 64 lower-case hexadecimal digits"
            )

    def to_json_line(self) -> str:
        """The record as one line of JSON, newline included."""
        document = msgspec.to_builtins(self)
        # Few rounds have any.
        for name in ("changes", "losses"):
            if not document[name]:
                del document[name]
        document = _name_numbers(document)
        return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"

    @classmethod
    def from_json_line(cls, line: str) -> "RoundRecord":
        try:
            document = parse_json(line)
        except InputError as error:
            raise InputError(f"not a JSON object: {error}") from error
        check_keys(document, cls)
        return convert_document(_restore_numbers(document), cls)


# A record before its values are checked.
_Values = msgspec.defstruct("_Values", [(each.name, each.type) for each in fields(RoundRecord)])


def read_metrics(record: RoundRecord) -> dict[str, float]:
    """The values that a round has, and the task's own metrics; without an evaluation there is no accuracy.

    `seconds` and `joules` are realised, whatever the budgets count.
    """
    realised = {"seconds": "seconds_realised", "joules": "joules_realised"}
    found = ((name, getattr(record, realised.get(name, name))) for name in METRICS)
    own = {f"metrics/{name}": float(value) for name, value in record.metrics.items()}
    return {name: float(value) for name, value in found if value is not None} | own


def _to_plain(value: Any) -> Any:  # noqa: ANN401 — of any field
    if isinstance(value, dict):
        return {str(name): _to_plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return msgspec.to_builtins(value)
    return value.item() if isinstance(value, np.generic) else value


def _check_value(name: str, value: object) -> object:
    if isinstance(value, int) and not 0 <= value <= _MAX_COUNT:
        raise InputError(f"{name} = {show(value)}: must be a whole number ≥ 0 and ≤ {_MAX_COUNT}")
    if isinstance(value, dict):
        return {key: _unify_nan(each) for key, each in value.items()}
    return _unify_nan(value)


def _unify_nan(value: object) -> object:
    """Makes every NaN the same: records are compared, and one that was read again has to equal itself."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _name_numbers(value: object) -> object:
    """Replaces numbers that JSON does not have by their names."""
    if isinstance(value, dict):
        return {name: _name_numbers(each) for name, each in value.items()}
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _restore_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {name: _restore_numbers(each) for name, each in value.items()}
    return _NOT_IN_JSON.get(value, value) if isinstance(value, str) else value


_ADVICE = (
    "Nothing was changed: restore the file from a backup, or remove this line and all after it to look at "
    "the rounds before it"
)


@dataclass(frozen=True, slots=True)
class LogContent:
    """The content of a log."""

    records: tuple[RoundRecord, ...]
    ends: tuple[int, ...]  # byte offset after each record's line

    def bytes_up_to(self, last_round: int | None) -> int:
        """Length of the log that ends with `last_round` (None: the empty log)."""
        if last_round is None:
            return 0
        lines = zip(self.records, self.ends, strict=True)
        return max((end for record, end in lines if record.round <= last_round), default=0)


def read_log(path: Path) -> LogContent:
    """Reads every complete line of the log; skips an incomplete last line."""
    return parse_log(path, read_bytes(path))


def parse_log(path: Path, content: bytes) -> LogContent:
    """The complete lines in the content of a log; see `read_log`."""
    lines = list(_parse_lines(path, content))
    return LogContent(tuple(record for record, _ in lines), tuple(end for _, end in lines))


def _parse_lines(
    path: Path, content: bytes, number: int = 0, previous_round: int | None = None
) -> Iterator[tuple[RoundRecord, int]]:
    """Yields the record of each complete line, and where in `content` the line ends.

    Before `content` the log has `number` lines, the last of which is of `previous_round`.
    """
    end = 0
    for line in content.split(b"\n")[:-1]:
        number += 1
        try:
            record = RoundRecord.from_json_line(line.decode())
        except (InputError, UnicodeDecodeError) as error:
            raise RunDirectoryError(f"{path}, line {number}: {error}. {_ADVICE}") from error
        # A gap means that lines were lost; counting on would hide it.
        _check_follows(f"{path}, line {number}", record.round, previous_round, f". {_ADVICE}")
        end, previous_round = end + len(line) + 1, record.round
        yield record, end


def _check_follows(where: str, this_round: int, previous_round: int | None, advice: str = "") -> None:
    if previous_round is not None and this_round != previous_round + 1:
        raise RunDirectoryError(f"{where}: round {this_round} cannot follow round {previous_round}{advice}")


class LogReader:
    """Reads a log that another process writes, or will: each call parses only the lines added since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._end, self._lines, self._last_line = 0, 0, b""
        self._last_round: int | None = None

    def read_new(self) -> list[RoundRecord]:
        """The rounds that were added since the last call; all of them if the file was cut or replaced."""
        if not self._path.exists():
            self._begin_anew()
            return []
        # The last known line is read again: if it is not where it was, it is not the same log any more.
        content = read_bytes(self._path, start=self._end - len(self._last_line))
        if not content.startswith(self._last_line):
            self._begin_anew()
            content = read_bytes(self._path)
        added = content[len(self._last_line) :]
        lines = list(_parse_lines(self._path, added, self._lines, self._last_round))
        if lines:
            last, end = lines[-1]
            self._end, self._lines, self._last_round = self._end + end, self._lines + len(lines), last.round
            self._last_line = added[: end - 1].rpartition(b"\n")[2] + b"\n"
        return [record for record, _ in lines]


def find_damage(path: Path, content: bytes) -> tuple[int, int]:
    """The first line of a log that is no record, counted from 1, and the byte where it begins."""
    lines, good = 0, 0
    with suppress(RunDirectoryError):
        for _, end in _parse_lines(path, content):
            lines, good = lines + 1, end
    return lines + 1, good


class RoundLog:
    """The log of a run in progress, created when missing and locked by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with translate_os_errors("open", path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)
        try:
            self._lock()
            content = read_log(path)
        except StorageError:
            self.close()
            raise
        self._length = content.ends[-1] if content.ends else 0
        self.last_round = content.records[-1].round if content.records else None

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunBusyError(f"{self._path}: another process is writing this run") from error

    def truncate(self, last_round: int | None) -> None:
        """Removes the lines after `last_round` (None: all of them), and an incomplete last line."""
        content = read_log(self._path)
        if last_round is not None and (self.last_round is None or self.last_round < last_round):
            raise RunDirectoryError(
                f"{self._path} ends with round {self.last_round}, but the checkpoint is of round {last_round}"
                ": lines were lost. Nothing was changed: restore the file from a backup, or delete the "
                "directory to begin anew"
            )
        self._length = content.bytes_up_to(last_round)
        with translate_os_errors("write", self._path):
            os.ftruncate(self._descriptor, self._length)
            os.fsync(self._descriptor)
        self.last_round = last_round if self._length else None

    def append(self, record: RoundRecord) -> None:
        """Adds one line and returns when it is on the disk.

        If it cannot be written, the log ends with the last complete line, as before.
        """
        _check_follows(str(self._path), record.round, self.last_round)
        line = record.to_json_line().encode()
        with translate_os_errors("write", self._path):
            try:
                _write_all(self._descriptor, line)
                os.fsync(self._descriptor)
            except OSError:
                # Part of the line may be on the disk already; a retry must not append to it.
                os.ftruncate(self._descriptor, self._length)
                raise
        self._length += len(line)
        self.last_round = record.round

    def close(self) -> None:
        """Closes the file and releases its lock; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
