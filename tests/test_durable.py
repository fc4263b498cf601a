"""Files written and read where somebody else may have put links, pipes and other traps."""

import os
import stat
from pathlib import Path

import pytest

from cfel.durable import (
    check_directory,
    make_directory,
    open_log,
    read_bytes,
    remove_leftovers,
    replace_file,
    replacing,
)
from cfel.errors import StorageError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that nobody may write to."""
    file = tmp_path / "victim"
    file.write_text("precious")
    return file


def test_a_planted_temporary_name_is_not_written_through(tmp_path: Path, victim: Path) -> None:
    (tmp_path / ".report.html.tmp").symlink_to(victim)
    replace_file(tmp_path / "report.html", b"page")
    assert (victim.read_text(), (tmp_path / "report.html").read_text()) == ("precious", "page")


def test_temporary_names_cannot_be_guessed(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as one, replacing(tmp_path / "file") as two:
        one.write_text("1")
        two.write_text("2")
        assert one != two
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "file").symlink_to(victim)
    replace_file(tmp_path / "file", b"new")
    assert not (tmp_path / "file").is_symlink()
    assert victim.read_text() == "precious"


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(StorageError, match=r"^cannot write .*file: "):
        replace_file(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_private_files_and_directories(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        replace_file(tmp_path / "public", b"")
        replace_file(tmp_path / "private", b"", private=True)
        make_directory(tmp_path / "open")
        make_directory(tmp_path / "closed", private=True)
        open_log(tmp_path / "log").close()
    finally:
        os.umask(before)
    modes = {path.name: mode(path) for path in tmp_path.iterdir()}
    assert modes == {"public": 0o644, "private": 0o600, "open": 0o755, "closed": 0o700, "log": 0o600}


def test_links_and_pipes_are_not_read(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match=r"^cannot read .*link: it is a link"):
        read_bytes(tmp_path / "link")
    with pytest.raises(StorageError, match=r"^cannot read .*pipe: it is not a regular file"):
        read_bytes(tmp_path / "pipe")
    with pytest.raises(StorageError, match="/dev/zero: it is not a regular file"):
        read_bytes(Path("/dev/zero"))
    with pytest.raises(StorageError, match=r"^cannot read "):
        read_bytes(tmp_path)
    assert read_bytes(tmp_path / "link", follow_links=True) == b"precious"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(StorageError, match=r"sparse: it has 1,099,511,627,776 bytes, at most 1,073,741,824"):
        read_bytes(tmp_path / "sparse")
    with pytest.raises(StorageError, match=r"sparse: .*776 bytes, at most 10 "):
        read_bytes(tmp_path / "sparse", max_bytes=10)


def test_what_no_memory_holds_is_not_read(tmp_path: Path) -> None:
    """The system would grant the memory, and end the process when it is used."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**43)
    with pytest.raises(StorageError, match=r"sparse: .*208 bytes do not fit"):
        read_bytes(tmp_path / "sparse", max_bytes=None)


def test_a_name_that_is_too_long_is_rejected(tmp_path: Path) -> None:
    """Folders are named after schemes, and a scheme in somebody's file may have any name."""
    with pytest.raises(StorageError, match="File name too long"):
        make_directory(tmp_path / ("x" * 5000))


def test_linked_directories_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "figures").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("figures", "dangling"):
        with pytest.raises(StorageError, match=rf"{name} is a link, .*remove it or copy what it points to"):
            make_directory(tmp_path / name)
        with pytest.raises(StorageError, match=f"{name} is a link"):
            check_directory(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot create .*file"):
        make_directory(tmp_path / "file")
    check_directory(tmp_path / "missing")
    make_directory(tmp_path / "elsewhere")


def test_a_log_is_not_written_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "edge-0.log").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe.log")
    for name in ("edge-0.log", "pipe.log"):
        with pytest.raises(StorageError, match=f"cannot write .*{name}: it is"):
            open_log(tmp_path / name)
    with open_log(tmp_path / "new.log") as file:
        file.write("one\n")
    with open_log(tmp_path / "new.log") as file:
        file.write("two\n")
    assert (tmp_path / "new.log").read_text() == "one\ntwo\n"
    assert victim.read_text() == "precious"


def test_leftovers_of_killed_writers_go(tmp_path: Path, victim: Path) -> None:
    (tmp_path / ".state.bin.0123.tmp").write_bytes(b"half")
    (tmp_path / ".link.tmp").symlink_to(victim)
    (tmp_path / ".kept").touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".kept", "victim"]
