"""`cfel recount`: what it prints, and that it refuses what cannot be recounted."""

from pathlib import Path

import pytest

from tests.api.test_recount import CEF, FLOOR, finish_run
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recount") / "run"
    finish_run(path, {"scheme": CEF})
    return path


def test_totals_are_printed(run: Run, finished: Path, tmp_path: Path) -> None:
    printed = run("recount", finished, "--out", tmp_path / "words", "--set", FLOOR)
    assert printed.code == 0
    document = run("recount", finished, "--out", tmp_path / "json", "--set", FLOOR, "--json").document
    assert f"{document['rounds']} rounds recounted" in printed.out
    assert document["seconds"] > 0
    assert document["joules"] > 0
    assert (tmp_path / "words" / "rounds.jsonl").exists()


def test_what_cannot_be_recounted(run: Run, finished: Path, tmp_path: Path) -> None:
    answer = run("recount", finished, "--out", tmp_path / "after", "--set", "local.learning_rate=0.1")
    assert (answer.code, answer.out) == (2, "")
    assert "local.learning_rate" in answer.err
    assert not (tmp_path / "after").exists()
