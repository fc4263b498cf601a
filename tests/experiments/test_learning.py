"""The table of choices about learning is what the copied logs say."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "learning.py"


def test_the_table_follows_from_the_logs() -> None:
    script = runpy.run_path(str(SCRIPT))
    rows = script["build_rows"](ROOT / "results" / "learning-cifar10", 0.4)
    assert script["format_table"](rows) in (ROOT / "results" / "README.md").read_text(encoding="utf-8")


def test_a_gain_is_over_the_same_scheme_without_the_change() -> None:
    script = runpy.run_path(str(SCRIPT))
    rows = script["build_rows"](ROOT / "results" / "learning-cifar10", 0.4)
    for row in rows["nothing"].values():
        assert row["seconds_gain"] == pytest.approx(1.0)
        assert row["joules_gain"] == pytest.approx(1.0)
    unreachable = script["build_rows"](ROOT / "results" / "learning-cifar10", 0.99)
    assert unreachable["nothing"]["cef"]["seconds_gain"] is None
