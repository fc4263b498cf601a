"""The table of HCEF+ beside P-FedAvg with the same choices is what the copied logs say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_follows_from_the_logs() -> None:
    script = runpy.run_path(str(ROOT / "experiments" / "same_choices.py"))
    table = script["format_table"](ROOT / "results")
    assert table in (ROOT / "results" / "README.md").read_text(encoding="utf-8")
