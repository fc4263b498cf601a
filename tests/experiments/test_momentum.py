"""The table of momentum in the results is what the copied logs say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_follows_from_the_logs() -> None:
    script = runpy.run_path(str(ROOT / "experiments" / "momentum.py"))
    table = script["format_table"](ROOT / "results" / "differences-femnist", 0.65)
    assert table in (ROOT / "results" / "README.md").read_text(encoding="utf-8")


def test_a_scheme_that_misses_the_target_says_so() -> None:
    script = runpy.run_path(str(ROOT / "experiments" / "momentum.py"))
    costs = {"cef": (2e4, 3e3), "hcef": None, "hcef_plus": (1e4, 1e3)}
    row = script["format_row"]("kept", costs, costs)
    assert row == "| kept | 2.00·10⁴ s, 3.0 kJ | not reached | 1.00·10⁴ s, 1.0 kJ (2.00×, 3.00×) |"
