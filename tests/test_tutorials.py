"""Tutorials are true: what they save is saved, what they run is run, and what they show is printed.

A page is played from top to bottom in an empty folder; `page_trial` says how.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfel.extras import EXTRAS
from tests.page_trial import Player, find_extras

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (
    "start.md",
    "tutorials/plan-my-fleet.md",
    "tutorials/my-model-and-data.md",
    "tutorials/compare-under-budgets.md",
    "tutorials/benchmark-my-method.md",
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


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Player]:
    """In a folder of its own, which is also where Python finds modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    # Drawing takes longer than these runs, and is looked at elsewhere.
    monkeypatch.setattr("cfel.report.page.draw_pictures", lambda *_: ())
    before = set(sys.modules)
    yield Player()
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


def test_every_tutorial_names_its_extras() -> None:
    """The sets of extras that the targets of the Makefile install, and `deploy` for three machines."""
    named = {
        path.stem: find_extras(path.read_text(encoding="utf-8")) for path in (DOCS / "tutorials").glob("*.md")
    }
    assert named.pop("deploy-on-three-machines") == {"deploy"}
    assert named.pop("plan-my-fleet") == set()
    assert set(named.values()) == {frozenset(("learn", "report"))}


BLOCKED = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Finder())
from tests.page_trial import main
main("learn,report", {pages})
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_pages_need_no_more_than_their_extras(tmp_path: Path) -> None:
    """As in an environment without the other extras: README and the tutorial that exports a model."""
    allowed = ("learn", "report")
    blocked = {name for name, extra in EXTRAS.items() if extra not in allowed} | {"pandas"}
    pages = [str(DOCS.parent / "README.md"), str(DOCS / "tutorials" / "my-model-and-data.md")]
    code = BLOCKED.format(blocked=blocked, pages=pages)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DOCS.parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("with learn,report") == 2


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


def _start(*words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cfel", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_machines(player: Player) -> None:
    """The machines are three addresses of this one; all share a folder, as every node has its own there."""
    port = _free_port()
    page = (DOCS / THREE_MACHINES).read_text(encoding="utf-8")
    page = re.sub(r"10\.0\.0\.(\d)", rf"127.0.0.\1:{port}", page)
    preparation, result = page.split("## The result")
    player.play(preparation)
    (invite,) = re.findall(r"^cfel (invite .*)$", preparation, re.MULTILINE)
    processes = [_start(*invite.split(), "--at", f"127.0.0.1:{_free_port()}")]
    try:
        lines = [processes[0].stdout.readline().split() for _ in range(9)]  # type: ignore[union-attr]
        tokens = {node: token for node, _, _, token in lines}
        assert [words[1:3] for words in lines] == [["cfel", "join"]] * 9
        for number in range(3):
            own = (f"edge-{number}", f"device-{2 * number}", f"device-{2 * number + 1}")
            processes.append(_start("join", *(tokens[node] for node in own)))
        assert [process.wait(500) for process in processes] == [0, 0, 0, 0]
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
    player.play(result)
