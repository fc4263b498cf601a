"""TensorBoard's event files, for `cfel report --tensorboard` and `--track`, written without TensorBoard.

An event file is a sequence of records (length, checksum, bytes, checksum). The bytes are protocol buffers, of
which only four fields are needed, so they are encoded here. The time of an event is the virtual time of the
run, so the "relative" axis of TensorBoard shows the paper's seconds.
"""

import math
import re
import struct
from functools import cache
from pathlib import Path

from cfel.durable import make_directory, replace_file
from cfel.report.load import Run, load_runs
from cfel.runlog import RoundRecord
from cfel.runlog.records import read_metrics

FOLDER = "tensorboard"
"""The folder of event files in a run directory, or in a tree of them."""

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
