"""The scheme of the guide runs as the page shows it, and the page describes every scheme."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from cfel.control import SCHEMES
from tests.simulation.drive import outcomes, tiny

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "schemes.md").read_text(encoding="utf-8")


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two devices per cluster, the faster one, at θ = ½."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = types.ModuleType("my_schemes")
    exec(code, module.__dict__)  # noqa: S102 — the example is what is tested
    monkeypatch.setitem(sys.modules, "my_schemes", module)
    found = outcomes(tiny(rounds={"global": 2}, scheme={"name": "my_schemes:fastest_half"}))
    assert found[-1].state.control.scheme == {"rounds": 4}
    for each in found:
        assert np.bincount(each.plans.cluster).tolist() == [2, 2, 2]
        assert set(each.plans.theta.tolist()) == {0.5}
        assert each.record.gap is None


def test_the_guide_describes_every_scheme() -> None:
    described = re.findall(r"\*\*`(\w+)`\*\*", PAGE)
    assert sorted(described) == sorted(SCHEMES)
