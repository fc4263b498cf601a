"""`cfel.plan`: tables of every kind give the same plan, and errors name field and value."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import cfel
from cfel.errors import InputError

DEVICES = Path(__file__).parents[2] / "examples" / "devices.csv"
CAPS: Any = {"time_cap": 450, "energy_cap": 300}


def test_tables_of_every_kind_give_the_same_plan(tmp_path: Path) -> None:
    wanted = cfel.plan(DEVICES, **CAPS)
    frame = pd.read_csv(DEVICES)
    document = tmp_path / "fleet.json"
    columns = {name: frame[name].tolist() for name in frame.columns}
    document.write_text(json.dumps({"devices": columns, **CAPS}))
    tables: list[tuple[Any, Any]] = [
        (str(DEVICES), CAPS),
        (document, {}),
        (frame, CAPS),
        (pa.Table.from_pandas(frame), CAPS),
        ({name: frame[name].to_numpy() for name in frame.columns}, CAPS),
        (frame.to_dict("records"), CAPS),
        ({"devices": columns, **CAPS}, {}),
    ]
    for table, caps in tables:
        found = cfel.plan(table, **caps)
        assert np.array_equal(found.rho, wanted.rho)
        assert found.devices == wanted.devices
        assert found.columns["cluster"] == wanted.columns["cluster"]
    assert wanted.solution.rho is wanted.rho


def test_a_frame_may_have_other_columns_and_empty_batteries() -> None:
    frame = pd.read_csv(DEVICES).assign(colour="red", battery=np.nan)
    assert np.array_equal(cfel.plan(frame, **CAPS).rho, cfel.plan(DEVICES, **CAPS).rho)


def test_the_plan_can_be_written_and_read(tmp_path: Path) -> None:
    plan = cfel.plan(DEVICES, **CAPS)
    plan.write_csv(tmp_path / "plan.csv")
    frame = pd.read_csv(tmp_path / "plan.csv")
    assert list(frame.columns) == list(plan.columns)
    assert np.allclose(frame["rho"], plan.rho)
    assert repr(plan).startswith(f"<FleetPlan: {len(plan.devices)} devices, ")


ROW: Any = {"mu": [1.0], "alpha": [1.0], "nu": [1.0], "power": [1.0], "cluster": [0]}


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        (3, {}, "table: is a int; must be a path"),
        ({**ROW, "mu": ["x"]}, {}, r"table: devices\[0\].mu = 'x':"),
        ({**ROW, "mu": [-1.0]}, {}, r"table: mu\[0\] = -1.0:"),
        ({"mu": [1.0]}, {}, "devices.alpha: is missing"),
        (ROW, {"energy_cap": "much"}, "^energy_cap = 'much':"),
        (ROW, {"rounds": 3}, "^rounds: only with time_budget"),
        (ROW, {"time_budget": 3.0}, "^rounds: required with"),
        (ROW, {"time_cap": 3, "time_budget": 3.0, "rounds": 2}, "^time_cap: give a cap"),
        (ROW, {"start": 0.3}, "^start: .* alternating"),
    ],
)
def test_errors_name_field_and_value(table: Any, options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        cfel.plan(table, **options)


def test_violations_have_the_names_of_the_table() -> None:
    plan = cfel.plan({**ROW, "cluster": ["attic"]}, time_cap=0.001)
    assert not plan.feasible
    assert "cluster attic" in plan.violations[0]


def test_a_plan_in_a_notebook_and_in_a_line() -> None:
    """25 devices: the first 20 are shown; limits that cannot be met are warnings."""
    count = 25
    devices: dict[str, list[object]] = {name: [1.0] * count for name in ("mu", "alpha", "nu", "power")}
    devices["cluster"] = ["<b>"] * count
    plan = cfel.plan(devices, time_cap=60)
    page = plan._repr_html_()
    assert page.count("<tr>") == 1 + 20
    assert "and 5 devices more" in page
    assert "&lt;b&gt;" in page
    one = cfel.plan({name: values[:1] for name, values in devices.items()}, time_cap=60)
    assert repr(one).startswith("<FleetPlan: 1 device, ")
    with pytest.warns(cfel.BudgetWarning, match="energy cap"):
        broken = cfel.plan(devices, energy_cap=0.001)
    assert repr(broken).endswith("1 limit not met>")
