"""The table of what the gain over CEF depends on, from the logs in results."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "differences.py"
LANDED = ROOT / "results" / "differences-femnist"


def test_the_landed_runs_make_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for change in ("none", "local.momentum=0"):
        shutil.copytree(LANDED / change, tmp_path / change)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path), "0.6", "0.7"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["`local.momentum=0`", "`none`"]
    assert all(line.count("×") == 4 for line in lines[2:])


def test_a_scheme_that_is_cef_gains_nothing_and_a_missed_accuracy_does_not_count() -> None:
    script = runpy.run_path(str(SCRIPT))
    (runs, *_) = script["group_by_seed"](LANDED / "none").values()
    same = dict.fromkeys(runs, runs["cef"])
    found = script["compute_gains"](same, [0.6, 0.65, 0.99])
    assert found["hcef"] == found["hcef_plus"] == pytest.approx((1.0, 1.0))
