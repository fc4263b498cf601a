"""The command line, called as a function, in a terminal of 80 columns."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cfel.cli import main
from cfel.launch.logs import LogHandler

HEAD = "id,mu,alpha,nu,power,cluster"


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as JSON; anything beside the document makes this fail."""
        return json.loads(self.out, parse_constant=_reject)


def _reject(word: str) -> None:
    raise ValueError(word)


Run = Callable[..., Answer]
Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(autouse=True)
def _own_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that a command adds to the search path are gone after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """The log that a node starts ends with the test, as would its process."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if isinstance(each, LogHandler)]:
        root.removeHandler(handler)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures: drawing takes longer than a short run, and is looked at elsewhere."""
    for place in ("cfel.report.page", "cfel.reproduce.reproduction"):
        monkeypatch.setattr(f"{place}.draw_pictures", lambda *_: ())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `cfel` with some arguments."""

    def call(*arguments: object) -> Answer:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file into the test's folder."""

    def call(name: str, text: str) -> Path:
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return file

    return call


@pytest.fixture
def one(write: Write) -> Path:
    """One device for which everything costs 1."""
    return write("one.csv", f"{HEAD}\nonly,1,1,1,1,home\n")


@pytest.fixture
def fleet() -> Path:
    """The example that comes with the repository: 20 devices in 3 clusters."""
    return Path(__file__).parents[2] / "examples" / "devices.csv"
