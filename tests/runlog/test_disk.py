"""Real errors of the operating system: a full disk, a read-only device, a file-size limit."""

import itertools
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cfel.errors import StorageError
from cfel.runlog import Checkpoint, RoundRecord, RunDirectory, RunWriter

MakeRun = Callable[[Path], RunWriter]
MakeRecord = Callable[..., RoundRecord]
DISK_BYTES = 256 * 1024


def _mount(*words: str) -> None:
    try:
        subprocess.run(["mount", *words], check=True, capture_output=True)  # noqa: S607 — wherever mount lives
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system needs root")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    _mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(tmp_path))
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)  # noqa: S607


def _append_for_ever(writer: RunWriter, make_record: MakeRecord) -> None:
    for number in itertools.count(1):
        writer.append(make_record(number, violations=("word " * 100,)))


def test_a_full_disk_loses_no_logged_round(
    small_disk: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """The round that does not fit leaves no trace, and fits when there is room again."""
    (small_disk / "ballast").write_bytes(bytes(DISK_BYTES // 2))
    with make_run(small_disk / "run") as writer:
        with pytest.raises(StorageError, match="what was written before is safe"):
            _append_for_ever(writer, make_record)
        number = writer.last_round
        assert number is not None
        assert number > 10
        assert [record.round for record in RunDirectory.open(small_disk / "run").records()] == [
            *range(1, number + 1)
        ]
        assert (small_disk / "run" / "rounds.jsonl").read_bytes().endswith(b"\n")
        (small_disk / "ballast").unlink()
        writer.append(make_record(number + 1))
    assert RunDirectory.open(small_disk / "run").records()[-1].round == number + 1


def test_a_full_disk_keeps_the_old_checkpoint(
    small_disk: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """A checkpoint larger than the disk: the one before is intact, no part of the new one is left."""
    with make_run(small_disk / "run") as writer:
        writer.append(make_record(1))
        writer.save_checkpoint(Checkpoint(1, {"w": np.arange(4)}, {"n": 1}))
        writer.wait()
        before = sorted((small_disk / "run" / "checkpoint").iterdir())
        writer.append(make_record(2))
        writer.save_checkpoint(Checkpoint(2, {"w": np.zeros(DISK_BYTES)}, {"n": 2}))
        with pytest.raises(StorageError, match="no space left"):
            writer.wait()
        assert sorted((small_disk / "run" / "checkpoint").iterdir()) == before
    writer, checkpoint = RunWriter.resume(small_disk / "run")
    with writer:
        assert checkpoint is not None
        assert (checkpoint.round, writer.last_round) == (1, 1)


def test_a_full_disk_cannot_start_a_run(small_disk: Path, make_run: MakeRun) -> None:
    (small_disk / "ballast").write_bytes(bytes(DISK_BYTES))
    with pytest.raises(StorageError, match="no space left"):
        make_run(small_disk / "run")


def test_a_run_on_a_read_only_device_can_be_read_but_not_resumed(
    small_disk: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    with make_run(small_disk / "run") as writer:
        writer.append(make_record(1))
    _mount("-o", "remount,ro", str(small_disk))
    assert len(RunDirectory.open(small_disk / "run").records()) == 1
    with pytest.raises(StorageError, match="not writable"):
        RunWriter.resume(small_disk / "run")
    with pytest.raises(StorageError, match="not writable"):
        make_run(small_disk / "other")


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limits the files this process may write, without root.

    Not a fixture: pytest reports between a test and its teardown, perhaps into a file above the limit.
    """
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_line_that_fits_only_in_part_is_taken_back(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """The limit ends in the middle of the second line: the kernel writes a part, the log keeps none of it."""
    with make_run(tmp_path) as writer:
        writer.append(make_record(1))
        whole = (tmp_path / "rounds.jsonl").read_bytes()
        too_large = pytest.raises(StorageError, match="larger than the system allows")
        with too_large, file_size_limit(len(whole) + 10):
            writer.append(make_record(2))
        assert (tmp_path / "rounds.jsonl").read_bytes() == whole
