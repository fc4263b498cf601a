"""Budgets as options, for runs that change what they depend on."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "budget.py"


def test_the_budgets_are_those_of_the_runs_that_were_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ("seed=0", "rounds.global=8", "rounds.stop=budget", "fleet.conditions.channel_floor=0.01")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(ROOT / "experiments/ablation-cifar10.toml"), *changes])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    fleet = (ROOT / "results/under-budgets-cifar10/cef/seed-0/fleet.json").read_text()
    words = capsys.readouterr().out.split()
    assert words[::2] == ["--set", "--set"]
    seconds, joules = (word.partition("=")[2] for word in words[1::2])
    assert f'"seconds_budget":{seconds},"joules_budget":{joules}' in fleet
