"""Live event files for TensorBoard, in the run directory: `tensorboard --logdir DIR`.

The files are those of `cfel report --tensorboard`; here they grow with the run.
"""

import math
import re
import struct
from functools import cache
from pathlib import Path

from cfel.durable import make_directory, replace_file
from cfel.report.load import Run, load_run, load_runs
from cfel.runlog import RoundRecord
from cfel.runlog.records import read_metrics
from cfel.tracking.follow import RunEnd, TrackedRun

# --------------------------------------------------------------------------------------------------
# Writes TensorBoard event files, without TensorBoard as a dependency.
#
# An event file is a sequence of records (length, checksum, bytes, checksum). The bytes are protocol
# buffers, of
# which only four fields are needed, so they are encoded here. The time of an event is the virtual time of
# the
# run, so the "relative" axis of TensorBoard shows the paper's seconds.


FOLDER = "tensorboard"
"""The folder of event files in a run directory, or in a tree of them."""

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_CASTAGNOLI = 0x82F63B78
_LARGEST_FLOAT = 3.4028234663852886e38


def write_events(path: Path) -> tuple[Path, ...]:
    """Writes an event file for every run in `path`, below `path/tensorboard/<scheme>/seed-<n>/`.

    Args:
        path: a run directory or a tree of them.

    Returns:
        The files, one per run.

    Raises:
        StorageError: there is no run, or a file cannot be written.
    """
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
    return _frame(
        _encode_double(1, record.seconds)
        + _encode_integer(2, record.round)
        + _encode_bytes(5, _encode_values(record))
    )


def _encode_values(record: RoundRecord) -> bytes:
    return b"".join(
        _encode_bytes(1, _encode_bytes(1, f"cfel/{tag}".encode()) + _encode_float(2, value))
        for tag, value in read_metrics(record).items()
    )


def _frame(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _checksum(length) + event + _checksum(event)


def _checksum(content: bytes) -> bytes:
    """CRC-32C, masked as TensorFlow does because a CRC over data that contains its own CRC is weak."""
    value = crc32c(content)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(content: bytes) -> int:
    """The Castagnoli checksum."""
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


def _encode_integer(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _encode_varint(value)


def _encode_double(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _encode_float(field: int, value: float) -> bytes:
    # `struct` raises for a double that is too large for a float.
    if math.isfinite(value) and abs(value) > _LARGEST_FLOAT:
        value = math.copysign(math.inf, value)
    return _key(field, _FLOAT) + struct.pack("<f", value)


def _encode_bytes(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _encode_varint(len(content)) + content


def open_sink(run: TrackedRun) -> "TensorBoardSink":
    """Opens a sink for a run."""
    return TensorBoardSink(run.directory)


class TensorBoardSink:
    """An event file that is rewritten from the log once, and then appended to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: Path | None = None
        self._last = 0

    @property
    def run_id(self) -> str:
        """Event files have no names of their own."""
        return FOLDER

    def log_round(self, record: RoundRecord) -> None:
        """Appends an event."""
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
