"""The log of a node: its level, its format, and what keeps others from filling or forging it.

Messages may quote peers. So control characters are spelled out, a message is always one line, and the lines
of a trace are indented: none of them can pass for a message. Warnings that repeat are counted instead of
written, as an attacker or a full disk can cause thousands per second. What is logged is up to the others.
"""

import json
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from cfel.durable import open_log
from cfel.validation import check_name
from cfel.wording import escape_control

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
# With both limits a logger writes at most 20 warnings of about 200 bytes in 5 s, which is 70 MB a day.
QUIET_SECONDS = 5.0
"""The same warning is written once in this time, and counted otherwise."""
MOST_WARNINGS = 20
"""Different warnings of one logger in this time."""
_MOST_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a node logs."""

    level: str = "info"  # one of `LEVELS`
    format: str = "text"  # one of `FORMATS`: text, or one JSON object per line

    def __post_init__(self) -> None:
        check_name("log_level", self.level, LEVELS)
        check_name("log_format", self.format, FORMATS)


def start_logging(path: Path | None, settings: LogSettings | None = None) -> None:
    """Sends the log of this process to a file, or to standard error."""
    settings = settings or LogSettings()
    handler = LogHandler(None if path is None else open_log(path))
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines())
    handler.addFilter(RepeatFilter())
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)
    # It would log every request to the dashboard.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes the log; on a full disk lines are lost, and counted once there is room again."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        before = self._lost
        super().emit(record)
        if before and self._lost == before:
            self._lost = 0
            words = f"up to {before} lines of this log are missing: they could not be written"
            super().emit(logging.LogRecord(record.name, logging.WARNING, "", 0, words, (), None))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 — the name in `logging`
        """Counts a line that the system did not write; `logging` would print a trace for each of them."""
        if isinstance(sys.exception(), OSError):
            self._lost += 1
        else:
            super().handleError(record)


class TextLines(logging.Formatter):
    """One line per message; lines of a trace follow, indented."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {_message(record)}"
        return "\n    ".join([line, *_trace(self, record)])


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        trace = _trace(self, record)
        return json.dumps(document | ({"trace": trace} if trace else {}))


def _message(record: logging.LogRecord) -> str:
    return escape_control(record.getMessage())


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    if not record.exc_info or record.exc_info[0] is None:
        return []
    return [escape_control(line) for line in formatter.formatException(record.exc_info).split("\n")]


@dataclass(slots=True)
class _Window:
    """When something was last written, how often since its window began, and how often it was left out."""

    started_at: float
    written: int = 1
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Writes a repeated warning once per `QUIET_SECONDS`, with the number of times it was left out.

    Different warnings of one logger are limited, too: a text that quotes a peer differs every time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._windows: OrderedDict[tuple[object, ...], _Window] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        message = record.getMessage()
        same = self._count((record.name, record.levelno, message), 1)
        if same is None:
            return False
        # Counted after the same message, so that repetitions do not use up the room for different ones.
        similar = self._count((record.name, record.levelno), MOST_WARNINGS)
        if similar is None:
            return False
        notes = [f"{same} more like this"] * bool(same) + [f"{similar} others left out"] * bool(similar)
        if notes:
            record.msg, record.args = f"{message} ({', '.join(notes)})", ()
        return True

    def _count(self, key: tuple[object, ...], most: int) -> int | None:
        """Counts a record; returns how many were left out before it, or None if this one is, too."""
        now, window = self._now(), self._windows.get(key)
        if window is not None:
            self._windows.move_to_end(key)
        if window is not None and now - window.started_at < QUIET_SECONDS:
            if window.written >= most:
                window.left_out += 1
                return None
            window.written += 1
            return 0
        self._windows[key] = _Window(now)
        if len(self._windows) > _MOST_REMEMBERED:
            self._windows.popitem(last=False)
        return 0 if window is None else window.left_out
