"""Event files: the checksum's published value, and the bytes read back by a decoder of our own."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from cfel.errors import StorageError
from cfel.runlog import RoundRecord
from cfel.tracking import crc32c, write_events


def unmask(value: int) -> int:
    """Undoes TensorFlow's masking of a checksum."""
    rotated = (value - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated << 15 | rotated >> 17) & 0xFFFFFFFF


def read_records(content: bytes) -> list[bytes]:
    """The records of an event file, both checksums checked."""
    found = []
    while content:
        size, size_check = struct.unpack("<QI", content[:12])
        record, (check,) = content[12 : 12 + size], struct.unpack("<I", content[12 + size : 16 + size])
        assert (unmask(size_check), unmask(check)) == (crc32c(content[:8]), crc32c(record))
        found.append(record)
        content = content[16 + size :]
    return found


def test_the_checksum_has_its_published_value() -> None:
    """The check value of CRC-32C for the nine digits is E3069283; 32 zero bytes give 8A9136AA."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_a_round_becomes_one_event(
    tmp_path: Path, make_run: Callable[..., None], make_record: Callable[..., RoundRecord]
) -> None:
    """Version first; then time (field 1), step 300 = AC 02 (field 2), and values: tag and float (field 5)."""
    make_run(tmp_path / "run", "cef", 4, [make_record(300, 0.5, 12.5, 1.0, loss=None)])
    (file,) = write_events(tmp_path)
    assert file.parent == tmp_path / "tensorboard" / "cef" / "seed-4"
    version, event = read_records(file.read_bytes())
    assert version.endswith(b"\x1a\x0dbrain.Event:2")
    assert event[:12] == b"\x09" + struct.pack("<d", 12.5) + b"\x10\xac\x02"
    value = b"\x0a\x0dcfel/accuracy\x15" + struct.pack("<f", 0.5)
    assert b"\x0a" + bytes([len(value)]) + value in event
    assert b"cfel/loss" not in event


def test_a_loss_beyond_single_precision_is_infinite(
    tmp_path: Path, make_run: Callable[..., None], make_record: Callable[..., RoundRecord]
) -> None:
    make_run(tmp_path, "mine:build", 0, [make_record(1, None, 1.0, 1.0, loss=-1e300)])
    (file,) = write_events(tmp_path)
    assert file.parent.parent.name == "mine-build"
    _, event = read_records(file.read_bytes())
    assert b"cfel/loss\x15" + struct.pack("<f", float("-inf")) in event


def test_a_path_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, make_run: Callable[..., None]
) -> None:
    make_run(tmp_path / "run", "cef", 0, [])
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(StorageError, match="cannot create"):
        write_events(tmp_path)
