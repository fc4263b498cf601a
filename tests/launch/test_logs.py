"""The log of a node: nobody outside fills it or forges its lines."""

import errno
import io
import json
import logging
from pathlib import Path

import pytest

from cfel.errors import ExperimentError, InputError
from cfel.launch import logs
from cfel.launch.logs import JsonLines, LogHandler, LogSettings, RepeatFilter, TextLines, start_logging
from cfel.launch.node import read_node
from tests.support.clock import Clock

FORGED = "x\n2026-01-01 00:00:00,000 INFO cfel: all is well\x1b[2J\ud800"


def a_logger(clock: Clock, formatter: logging.Formatter) -> tuple[logging.Logger, io.StringIO]:
    """A logger of its own, and what it writes."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter)
    handler.addFilter(RepeatFilter(clock))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger, written


def log_failure(logger: logging.Logger) -> None:
    """Logs an exception with its trace."""
    try:
        fail()
    except ValueError:
        logger.exception("failed")


def fail() -> None:
    raise ValueError(FORGED)


def test_a_peer_cannot_forge_lines_nor_reach_the_terminal() -> None:
    logger, written = a_logger(Clock(), TextLines())
    logger.warning("rejected: %s", FORGED)
    log_failure(logger)
    lines = written.getvalue().splitlines()
    assert [line for line in lines if not line.startswith("    ")] == [lines[0], lines[1]]
    assert lines[0].endswith(r"rejected: x\n2026-01-01 00:00:00,000 INFO cfel: all is well\x1b[2J\ud800")
    assert "\x1b" not in written.getvalue()
    written.getvalue().encode()


def test_json_lines() -> None:
    logger, written = a_logger(Clock(), JsonLines())
    logger.info("round %d", 3)
    logger.warning("rejected: %s", FORGED)
    log_failure(logger)
    documents = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [each["level"] for each in documents] == ["info", "warning", "error"]
    assert documents[0]["message"] == "round 3"
    assert documents[0]["logger"] == "test"
    assert documents[0]["time"].endswith("+00:00")
    assert "\n" not in documents[1]["message"]
    assert documents[2]["trace"][0] == "Traceback (most recent call last):"


def test_repeated_warnings_are_counted() -> None:
    clock = Clock()
    logger, written = a_logger(clock, logging.Formatter("%(message)s"))
    for _ in range(1000):
        logger.error("disk full")
    clock.seconds = 6.0
    logger.error("disk full")
    assert written.getvalue().splitlines() == ["disk full", "disk full (999 more like this)"]


def test_so_are_warnings_that_differ_in_what_they_quote() -> None:
    clock = Clock()
    logger, written = a_logger(clock, logging.Formatter("%(message)s"))
    for number in range(1000):
        logger.warning("bad message from port %d", number)
    clock.seconds = 6.0
    logger.warning("another")
    lines = written.getvalue().splitlines()
    assert len(lines) == logs.MOST_WARNINGS + 1
    assert lines[-1] == "another (980 others left out)"


def test_information_is_never_left_out() -> None:
    logger, written = a_logger(Clock(), logging.Formatter("%(message)s"))
    for _ in range(100):
        logger.info("round")
    assert len(written.getvalue().splitlines()) == 100


def test_memory_is_bounded() -> None:
    repeats = RepeatFilter(Clock())
    for number in range(2000):
        repeats.filter(logging.LogRecord(f"logger-{number}", logging.ERROR, "", 0, "x", (), None))
    assert len(repeats._windows) <= 256


def test_level_and_format(tmp_path: Path) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        start_logging(tmp_path / "log", LogSettings("warning", "json"))
        logging.getLogger("cfel.x").info("left out")
        logging.getLogger("cfel.x").warning("kept")
        for handler in root.handlers:
            assert isinstance(handler, logging.StreamHandler)
            handler.stream.close()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["message"] == "kept"


def test_wrong_settings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="log_level"):
        LogSettings(level="loud")
    with pytest.raises(InputError, match="log_format"):
        LogSettings(format="xml")
    path = tmp_path / "edge-0.toml"
    needed = """role = "edge"
number = 0
experiment = "e"
certificates = "c"
directory = "d"
addresses = ["a:1"]
"""
    path.write_text(needed + 'log_level = "debug"\nlog_format = "json"\n')
    assert read_node(path).log == LogSettings("debug", "json")
    path.write_text(needed + 'log_level = "loud"\n')
    with pytest.raises(ExperimentError, match="log_level"):
        read_node(path)


class Disk(io.StringIO):
    """A log file on a disk that may be full."""

    full = False

    def write(self, text: str, /) -> int:
        """Fails as a full disk does."""
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_full_disk_loses_lines_and_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Without room there is neither a line nor a trace."""
    logger, disk = logging.Logger("test"), Disk()
    handler = LogHandler(disk)
    handler.setFormatter(TextLines())
    logger.addHandler(handler)
    disk.full = True
    for number in range(3):
        logger.info("line %d", number)
    disk.full = False
    logger.info("there is room")
    logger.info("and still is")
    said = [line.partition("test: ")[2] for line in disk.getvalue().splitlines()]
    missing = "up to 3 lines of this log are missing: they could not be written"
    assert said == ["there is room", missing, "and still is"]
    assert capsys.readouterr().err == ""


def test_a_defect_in_a_message_still_shows(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("test")
    handler = LogHandler(io.StringIO())
    logger.addHandler(handler)
    logger.info("%d rounds", "three")
    assert "TypeError" in capsys.readouterr().err
