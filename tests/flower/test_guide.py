"""The guide for users of Flower runs from top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed (pip install 'cfel[flower]')")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "flower.md"


@pytest.mark.long
def test_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(compile(block, "page", "exec"), names)  # noqa: S102 — the page is ours
    lines = capsys.readouterr().out.splitlines()
    printed = [line.split() for line in lines if line[:2] in {"1 ", "2 ", "3 "}]
    assert [line[0] for line in printed] == ["1", "2", "3"]
    assert float(printed[-1][1]) > 0.4
    planner = names["strategy"].planner
    assert len(planner.history) == 8
    assert 0 < planner.ledger.joules <= 250 * (1 + 1e-9)
    assert 0 < planner.ledger.seconds <= 300 * (1 + 1e-9)
    assert [planner.find_conditions(node).mu for node in (1, 2, 3, 4)] == [1.0, 4.0, 1.0, 4.0]
