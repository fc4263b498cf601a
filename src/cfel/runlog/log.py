"""rounds.jsonl: appended line by line, each on the disk before the next round starts.

A line counts when its newline is there. Text after the last newline was being written when the process died:
readers skip it and the next writer removes it. Any other line that is not a record is an error that names
the line; it is never skipped.
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from cfel.durable import read_bytes, replace_file, translate_os_errors
from cfel.errors import InputError, RunBusyError, RunDirectoryError, StorageError
from cfel.runlog.record import RoundRecord

_ADVICE = (
    "Nothing was changed: restore the file from a backup, or remove this line and all after it to look at "
    "the rounds before it"
)


@dataclass(frozen=True, slots=True)
class LogContent:
    """The content of a log.

    Attributes:
        records: the rounds, in order.
        ends: byte offset after each record's line.
    """

    records: tuple[RoundRecord, ...]
    ends: tuple[int, ...]

    def bytes_up_to(self, last_round: int | None) -> int:
        """Length of the log that ends with `last_round` (None: the empty log)."""
        kept = [
            end for record, end in zip(self.records, self.ends, strict=True) if _is_within(record, last_round)
        ]
        return kept[-1] if kept else 0


def _is_within(record: RoundRecord, last_round: int | None) -> bool:
    return last_round is not None and record.round <= last_round


def read_log(path: Path) -> LogContent:
    """Reads every complete line of the log; skips an incomplete last line.

    Raises:
        RunDirectoryError: a complete line is not a record, or the round before it is missing.
    """
    records: list[RoundRecord] = []
    ends: list[int] = []
    offset = 0
    whole, _, _torn = read_bytes(path).rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        offset += len(line) + 1
        records.append(_parse_line(path, number, line, records[-1].round if records else None))
        ends.append(offset)
    return LogContent(tuple(records), tuple(ends))


def _parse_line(path: Path, number: int, line: bytes, previous_round: int | None) -> RoundRecord:
    try:
        record = RoundRecord.from_json_line(line.decode())
    except (InputError, UnicodeDecodeError) as error:
        raise RunDirectoryError(f"{path}, line {number}: {error}. {_ADVICE}") from error
    # A gap means that lines were lost; counting on would hide it.
    _check_follows(f"{path}, line {number}", record.round, previous_round, f". {_ADVICE}")
    return record


def _check_follows(where: str, this_round: int, previous_round: int | None, advice: str = "") -> None:
    if previous_round is not None and this_round != previous_round + 1:
        raise RunDirectoryError(f"{where}: round {this_round} cannot follow round {previous_round}{advice}")


def has_rounds(directory: Path) -> bool:
    """Whether a directory has a log that is not empty."""
    path = directory / "rounds.jsonl"
    return path.exists() and path.stat().st_size > 0


def cut_damaged_log(path: Path) -> str:
    """Cuts a log before its first line that is no record, and keeps a copy of it; returns what it did."""
    whole = read_bytes(path)
    records: list[RoundRecord] = []
    good = 0
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            records.append(_parse_line(path, number, line, records[-1].round if records else None))
        except RunDirectoryError:
            break
        good += len(line) + 1
    copy = path.with_name(f"{path.name}.damaged")
    replace_file(copy, whole)
    replace_file(path, whole[:good])
    return f"{path} was cut before line {len(records) + 1}, which is damaged; all of it is in {copy.name}"


class RoundLog:
    """The log of a run in progress, locked by one process at a time.

    Args:
        path: the file; it is created when missing.

    Raises:
        StorageError: another process is writing it, or it cannot be opened or read.
    """

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

        Raises:
            StorageError: the round does not follow the last one, or the file cannot be written; the log then
                ends with the last complete line, as before.
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
