"""The table of schemes under the same budgets."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cfel.experiment.files import load_experiment

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "under_budgets.py"
REDUCED = ROOT / "results" / "table1-femnist-reduced"


def copy_rows(out: Path) -> Path:
    for row, source in {"cef": "cef", "cef-fedbuff": "mll_sgd", "hcef_plus": "hcef_plus"}.items():
        shutil.copytree(REDUCED / source, out / row)
    return out


def test_rows_are_named_by_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copy_rows(tmp_path / "out")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(out), "0.72", str(tmp_path / "copied")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()[2:]
    names = {line.split("`")[1] for line in lines}
    assert names == {"cef", "cef-fedbuff", "hcef_plus"}
    accuracies = [float(line.split("|")[2].split("%")[0]) for line in lines]
    assert accuracies == sorted(accuracies, reverse=True)
    (cef,) = [line for line in lines if "`cef`" in line]
    assert "| 1.00× (1.00–1.00) | 1.00× (1.00–1.00) |" in cef
    found = json.loads((tmp_path / "copied" / "summary.json").read_text())
    assert set(found["schemes"]["cef"]["accuracy_at_budget"]) == {"0", "1", "2"}


def test_accuracy_at_the_budget_is_interpolated(tmp_path: Path) -> None:
    """A budget that ends in the middle of a round has the mean of the accuracies before and after it."""
    script = runpy.run_path(str(SCRIPT))
    run = script["load_rows"](copy_rows(tmp_path))[0]
    before, after = run.records[3:5]
    middle = (before.seconds_realised + after.seconds_realised) / 2
    halved = replace(run, fleet=replace(run.fleet, seconds_budget=middle, joules_budget=None))
    expected = (before.accuracy + after.accuracy) / 2
    assert script["find_accuracy"](halved) == pytest.approx(expected)
    unlimited = replace(run, fleet=replace(run.fleet, seconds_budget=None, joules_budget=None))
    assert script["find_accuracy"](unlimited) == run.records[-1].accuracy


def test_a_row_that_misses_the_target_has_no_costs(tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    document = script["summarise_rows"](script["load_rows"](copy_rows(tmp_path)), 0.99)
    rows = script["format_table"](document).splitlines()[2:]
    assert all(row.endswith("| 0 of 3 | – | – | – | – |") for row in rows)


@pytest.mark.parametrize(("dataset", "target"), [("femnist", 0.72), ("cifar10", 0.4)])
def test_the_tables_of_the_results_follow_from_the_logs(dataset: str, target: float) -> None:
    script = runpy.run_path(str(SCRIPT))
    runs = script["load_rows"](ROOT / "results" / f"under-budgets-{dataset}")
    assert {run.seed for run in runs} == {0, 1, 2}
    table = script["format_table"](script["summarise_rows"](runs, target))
    assert table in (ROOT / "results" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("dataset", "rounds"), [("femnist", "12"), ("cifar10", "8")])
def test_the_commands_are_those_of_the_landed_rows(dataset: str, rounds: str) -> None:
    """What the script asks for is what the landed runs were: fleet, local training, scheme and rounds."""
    landed = ROOT / "results" / f"under-budgets-{dataset}"
    # `echo` in place of `cfel`, and no budgets: those are computed from the same settings.
    environment = {**os.environ, "CFEL": "echo", "PYTHON": "true", "JOBS": "1"}
    environment["EXTRA"] = "--set local.precision=bfloat16"
    script = ["bash", str(ROOT / "experiments" / "under_budgets.sh"), dataset, "DATA", "OUT", "0", rounds]
    asked = subprocess.run(script, env=environment, capture_output=True, text=True, check=True).stdout
    commands = [line.split() for line in asked.splitlines() if line.startswith("run ")]
    assert commands
    for _, file, _, _, out, *settings in commands:
        row = landed / Path(out).relative_to("OUT")
        changes = [setting for setting in settings if setting != "--set"]
        now, then = load_experiment(Path(file), changes), load_experiment(row / "experiment.toml")
        for section in ("seed", "rounds", "fleet", "scheme", "aggregation", "compression"):
            assert getattr(now, section) == getattr(then, section), (row, section)
        assert now.data.batch == then.data.batch
        # Only small batches are charged by it.
        same = now.scheme.steps == "small_batches"
        assert now.local == (
            then.local if same else replace(then.local, step_overhead=now.local.step_overhead)
        )
