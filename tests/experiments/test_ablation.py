"""The table of the ablation, from the logs in results."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "ablation.py"


def test_the_landed_runs_make_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(ROOT / "results" / "ablation-cifar10", out)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(out), str(tmp_path / "copied")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    (whole,) = [line for line in lines if line.startswith("| `nothing`")]
    (without,) = [line for line in lines if line.startswith("| `dense_gossip`")]
    assert whole.count("±") == 0
    assert without.count("±") == 2
    assert (tmp_path / "copied" / "summary.json").exists()


def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    """A seed that one of the variants lacks is left out everywhere, and the whole is 0 apart from itself."""
    source = ROOT / "results" / "ablation-cifar10"
    for name in ("nothing", "curve"):
        shutil.copytree(source / f"without-{name}", tmp_path / f"without-{name}")
    shutil.rmtree(tmp_path / "without-curve" / "seed-1")
    script = runpy.run_path(str(SCRIPT))
    seeds, found = script["build_rows"](tmp_path)
    assert 1 not in seeds
    assert set(found["nothing"].all_points) == {0.0}
    curve, whole = found["curve"], found["nothing"]
    assert curve.last_points[0] == pytest.approx(curve.last[0] - whole.last[0])
