"""`cfel sweep`: its runs, table, page and figure; it continues where it was."""

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest

import cfel
from cfel.cli import main
from tests.cli.conftest import Run

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
SHORT = (*("--set", "rounds.global=1", "--set", "rounds.edge=1"), *("--set", "budget.share_of_cef=2"))
SWEEP = ("sweep", TINY, "--over", "local.learning_rate=0.01,0.05", "--over", "scheme.name=hcef,cef", *SHORT)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two keys with two values each: where the runs are, and what was printed."""
    out = tmp_path_factory.mktemp("swept") / "runs" / "sweep"
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text):
        patch.setattr(sys, "path", list(sys.path))
        assert main([str(word) for word in (*SWEEP, "--target", "0.1", "--out", out)]) == 0
    return out, text.getvalue()


@pytest.mark.long
def test_a_sweep_prints_a_line_per_setting(printed: tuple[Path, str]) -> None:
    out, text = printed
    rows = [line.split()[:2] for line in text.splitlines()]
    assert [row for row in rows if row and row[0] in ("0.01", "0.05")] == [
        *(["0.01", "HCEF"], ["0.01", "CEF"], ["0.05", "HCEF"], ["0.05", "CEF"])
    ]
    assert "best accuracy within the budgets: local.learning_rate=0.05,scheme.name=" in text
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary["schemes"])[1] == "local.learning_rate=0.01,scheme.name=cef"
    page = (out / "report.html").read_text()
    for words in (
        "4 settings",
        "Accuracy within the budgets by local.learning_rate",
        "Accuracy within the budgets by scheme.name",
    ):
        assert words in page
    # Plans of single settings are drawn on demand only.
    assert not list((out / "figures").glob("decisions-*"))
    assert cfel.load(out).plot("decisions-0").svg


@pytest.mark.long
def test_a_sweep_continues_and_grows(run: Run, printed: tuple[Path, str], tmp_path: Path) -> None:
    """Finished runs are kept; a new value is added; `cfel.load` gives all of them."""
    out, _ = printed
    before = {path: path.read_bytes() for path in out.glob("*/*/rounds.jsonl")}
    assert len(before) == 4
    more = [word.replace("0.01,0.05", "0.01,0.05,0.1") for word in map(str, SWEEP)]
    answer = run(*more, "--out", out, "--json")
    assert len(answer.document["schemes"]) == 6
    # With the wall-clock seconds of the first time, so they were not run again.
    assert {path: path.read_bytes() for path in before} == before
    sweep = cfel.load(out)
    assert sweep.table.column("local.learning_rate").to_pylist() == [0.01, 0.01, 0.05, 0.05, 0.1, 0.1]
    assert sweep.plot("by-key-0").title == "Accuracy within the budgets by local.learning_rate"
    sweep.plot("by-key-1").save(tmp_path / "by-scheme.png")
    assert repr(sweep).endswith("6 runs over local.learning_rate, scheme.name>")


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ("local.learning_rate", "--over local.learning_rate: must look like section.key=value,value"),
        ("local.learning_rate=", "--over local.learning_rate=: must look like section.key=value,value"),
        ("local.lerning_rate=1", "unknown 'lerning_rate'"),
        ("seed=1,2", "sweep: give seeds as `seeds`"),
    ],
)
def test_a_sweep_rejects_at_once(run: Run, tmp_path: Path, over: str, message: str) -> None:
    answer = run("sweep", TINY, "--over", over, "--out", tmp_path / "sweep")
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert not (tmp_path / "sweep").exists()
