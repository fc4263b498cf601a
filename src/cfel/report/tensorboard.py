"""TensorBoard event files, for those who watch their runs there; written by hand, nothing to install.

An event file is a row of records (length, checksum, bytes, checksum); the bytes are protocol buffers with
four fields in use. Sixty lines of that are less to carry than TensorBoard's own package as a dependency. The
time of an event is the run's virtual time, so TensorBoard's "relative" axis shows the paper's seconds.
"""

import math
import re
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cfel.durable import replace_file, translate_os_errors
from cfel.report.load import Run, load_runs
from cfel.runlog import RoundRecord

_TAGS = (
    "accuracy",
    "loss",
    "seconds",
    "joules",
    "rho_mean",
    "theta_mean",
    "sigma2",
    "g2",
    "gap",
    "wire_bytes",
)
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
        StorageError: there is no run, or the system refused.
    """
    return tuple(_write_run(path / "tensorboard", run) for run in load_runs(path))


def _write_run(root: Path, run: Run) -> Path:
    directory = root / re.sub(r"[^\w-]", "-", run.scheme) / f"seed-{run.seed}"
    with translate_os_errors("create", directory):
        directory.mkdir(parents=True, exist_ok=True)
    file = directory / "events.out.tfevents.0.cfel"
    replace_file(file, b"".join(map(_framed, _events(run))))
    return file


def _events(run: Run) -> Iterator[bytes]:
    yield _double(1, 0.0) + _bytes(3, b"brain.Event:2")
    for record in run.records:
        yield _double(1, record.seconds) + _varint_field(2, record.round) + _bytes(5, _values(record))


def _values(record: RoundRecord) -> bytes:
    found = ((tag, getattr(record, tag)) for tag in _TAGS)
    return b"".join(
        _bytes(1, _bytes(1, f"cfel/{tag}".encode()) + _float(2, value))
        for tag, value in found
        if value is not None
    )


def _framed(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _checksum(length) + event + _checksum(event)


def _checksum(content: bytes) -> bytes:
    """CRC-32C, rotated and shifted as TensorFlow does so that it may lie among the bytes it guards."""
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


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint_field(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    if math.isfinite(value) and abs(value) > _LARGEST_FLOAT:
        value = math.copysign(math.inf, value)
    return _key(field, _FLOAT) + struct.pack("<f", value)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content
