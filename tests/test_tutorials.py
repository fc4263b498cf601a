"""Tutorials are true: what they save is saved, what they run is run, and what they show is printed.

A page is played from top to bottom in an empty folder. A block below "Save this as `name`" becomes a file. In
a `console` block, lines that begin with `$` are run, and the others must appear in the output; `…` stands for
anything. `python` blocks are executed. Others are not played: `sh` is for what needs a real machine.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cfel.cli import main

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"[Ss]ave\s+this\s+as\s+`([\w.-]+)`|this\s+as\s+`([\w.-]+)`")
PAGES = (
    "start.md",
    "tutorials/plan-my-fleet.md",
    "tutorials/my-model-and-data.md",
    "tutorials/my-scheme.md",
    "tutorials/compare-under-budgets.md",
    "tutorials/read-the-report.md",
    "guides/traces.md",
    "guides/budgets.md",
    "guides/trackers.md",
    "guides/sweeps.md",
    "guides/certificates.md",
    "guides/models.md",
    "guides/algorithms.md",
    "guides/semi-asynchronous.md",
    "guides/schemes.md",
    "guides/tasks.md",
    "guides/data.md",
    "guides/wrong-updates.md",
    "guides/compressors.md",
    "guides/backhauls.md",
)


def _blocks(text: str) -> Iterator[tuple[str, str, str | None]]:
    """Language, content, and the file that the paragraph before it names."""
    end = 0
    for match in BLOCK.finditer(text):
        before = text[end : match.start()].rstrip().rpartition("\n\n")[2]
        named = SAVED.search(before)
        yield match[1], match[2], next(filter(None, named.groups())) if named else None
        end = match.end()


class Player:
    """Plays the blocks of a page in the current folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._names: dict[str, Any] = {}
        self.played = 0

    def play(self, text: str) -> None:
        """Plays all blocks."""
        for language, content, file in _blocks(text):
            if file is not None:
                Path(file).write_text(content, encoding="utf-8")
            elif language == "console":
                self._run(content)
            elif language == "python":
                exec(compile(content, "page", "exec"), self._names)  # noqa: S102 — the page is ours
            else:
                continue
            self.played += 1

    def _run(self, content: str) -> None:
        for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            program, *arguments = shlex.split(command)
            assert program == "cfel", f"only cfel is run: {command}"
            code = main(arguments)
            printed = self._capsys.readouterr()
            assert code == 0, (command, printed.err)
            pattern = re.escape(shown.strip()).replace("…", "(?:.|\n)*")
            assert re.search(pattern, printed.out), (command, printed.out)


@pytest.fixture
def player(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Player]:
    """In a folder of its own, which is also where Python finds modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    # Drawing takes longer than these runs, and is looked at elsewhere.
    monkeypatch.setattr("cfel.report.page.draw_pictures", lambda *_: ())
    before = set(sys.modules)
    yield Player(capsys)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_true(page: str, player: Player) -> None:
    player.play((DOCS / page).read_text(encoding="utf-8"))
    assert player.played >= 1


def test_every_tutorial_is_played() -> None:
    tutorials = {f"tutorials/{path.name}" for path in (DOCS / "tutorials").glob("*.md")}
    assert tutorials == {page for page in PAGES if page.startswith("tutorials/")} | {THREE_MACHINES}


def test_a_wrong_page_fails(player: Player) -> None:
    """A page that shows what is not printed, or whose code fails."""
    player.play("Save this as `one.csv`:\n\n```text\nid,cluster,mu,alpha,nu,power\na,b,1,1,1,1\n```\n")
    plan = "```console\n$ cfel plan one.csv --time-cap 9\n…\n{}\n```\n"
    player.play(plan.format("all limits are kept"))
    with pytest.raises(AssertionError):
        player.play(plan.format("some limits are kept"))
    with pytest.raises(ZeroDivisionError):
        player.play("```python\n1 / 0\n```\n")


THREE_MACHINES = "tutorials/deploy-on-three-machines.md"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_machines(player: Player, tmp_path: Path) -> None:
    """The machines are three addresses of this one; nodes run as the page starts them."""
    page = (DOCS / THREE_MACHINES).read_text(encoding="utf-8")
    page = page.replace("10.0.0.", "127.0.0.").replace("7400", str(_free_port()))
    preparation, result = page.split("## The result")
    player.play(preparation)
    for role, count in (("edge", 3), ("device", 6)):
        text = (tmp_path / f"{role}-0.toml").read_text(encoding="utf-8")
        for number in range(1, count):
            own = text.replace("number = 0", f"number = {number}").replace(f"{role}-0", f"{role}-{number}")
            (tmp_path / f"{role}-{number}.toml").write_text(own, encoding="utf-8")
    starts = [f"{role}-{number}" for role, count in (("edge", 3), ("device", 6)) for number in range(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "cfel", name.partition("-")[0], "--config", f"{name}.toml"],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        for name in starts
    ]
    try:
        assert [node.wait(500) for node in nodes] == [0] * len(nodes)
    finally:
        for node in nodes:
            if node.poll() is None:
                node.send_signal(signal.SIGKILL)
                node.wait(30)
    player.play(result)
