"""The main table: one definition for all outputs, realised costs, units in every cell, paired comparisons."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from cfel.errors import InputError
from cfel.metric import Metric
from cfel.report.load import load_runs, name_scheme
from cfel.report.summary import find_p_value, student_tail, summarise
from cfel.report.table import build_table, format_p_value, to_csv
from cfel.runlog import RoundRecord
from tests.report.conftest import ring

MakeRun = Callable[..., None]
MakeRecord = Callable[..., RoundRecord]


def plain(cell: object) -> str:
    return str(cell).replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture
def two_rows(tmp_path: Path, make_run: MakeRun, make_record: MakeRecord) -> Path:
    """Budgets of 1000 s and 100 J. `cef` ends at 0.9 after 1500 s; within the budgets it has 0.5.

    `hcef` has 0.6 after 800 s as expected and 900 s as realised.
    """
    make_run(tmp_path / "cef", "cef", 0, [make_record(1, 0.5, 750, 50), make_record(2, 0.9, 1500, 90)])
    late = replace(make_record(1, 0.6, 800, 60), seconds_realised=900.0)
    make_run(tmp_path / "hcef", "hcef", 0, [late])
    return tmp_path


def test_the_quality_is_that_within_the_budgets_and_costs_are_realised(two_rows: Path) -> None:
    table = build_table(summarise(load_runs(two_rows), 0.5))
    assert [plain(each) for each in table.headings] == [
        *("accuracy within budgets", "difference to CEF, points", "time to 50 %", "gain in time"),
        *("energy to 50 %", "gain in energy", "time used", "energy used"),
    ]
    names, cells = table.rows["hcef"]
    assert names == ("HCEF",)
    assert [plain(each) for each in cells] == [
        *("60.0 %", "+10.0", "900 s", "0.83×", "60.0 J", "0.83×", "90.0 %", "60.0 %")
    ]
    assert plain(table.rows["cef"][1][0]) == "50.0 %"
    assert plain(table.rows["cef"][1][6]) == "150 %"
    assert table.notes[0].startswith("Times and energies are realised")


def test_no_row_has_used_more_than_its_curve(two_rows: Path) -> None:
    """Time to the target is never more than the time used: both are on the same clock."""
    for row in summarise(load_runs(two_rows), 0.5)["schemes"].values():
        assert row["seconds_to_target"] <= row["seconds"]
        assert row["joules_to_target"] <= row["joules"]


def test_another_baseline(two_rows: Path) -> None:
    found = summarise(load_runs(two_rows), 0.5, "hcef")
    assert found["baseline"] == "hcef"
    assert found["schemes"]["cef"]["quality_difference"] == pytest.approx(-0.1)
    assert found["schemes"]["cef"]["gain_seconds"] == pytest.approx(900 / 750)
    with pytest.raises(InputError, match="baseline: unknown 'hcf'; did you mean 'hcef'"):
        summarise(load_runs(two_rows), 0.5, "hcf")


def test_markdown_latex_and_csv(two_rows: Path) -> None:
    summary = summarise(load_runs(two_rows), 0.5)
    table = build_table(summary)
    lines = plain(table.to_markdown()).splitlines()
    assert lines[2].startswith("| Scheme | accuracy within budgets |")
    assert "| HCEF | 60.0 % | +10.0 | 900 s |" in plain(table.to_markdown())
    latex = table.to_latex()
    assert r"\begin{tabular}{lrrrrrrrr}" in latex
    assert r"Scheme & \shortstack[r]{accuracy \\ within \\ budgets} & " in latex
    assert r"HCEF & 60.0\,\% & +10.0 & 900\,s & 0.83$\times$" in latex
    assert latex.index(r"\toprule") < latex.index(r"\midrule") < latex.index(r"\bottomrule")
    (hcef, cef) = csv.DictReader(io.StringIO(to_csv(summary)))
    assert (hcef["row"], float(hcef["quality_within_budgets"]), hcef["gain_seconds_p"]) == ("HCEF", 0.6, "")
    assert float(cef["seconds"]) == 1500.0


def test_unequal_budgets_are_said(tmp_path: Path, make_run: MakeRun, make_record: MakeRecord) -> None:
    """As with an algorithm whose steps cost twice as much, if budgets are a share of what CEF uses."""
    for scheme, seconds, joules in (("hcef", 2000.0, 100.2), ("cef", 1000.0, 100.0)):
        rounds = [make_record(1, 0.5, 1, 1)]
        make_run(tmp_path / scheme, scheme, 0, rounds, fleet=ring(3, 2, seconds, joules))
    notes = build_table(summarise(load_runs(tmp_path), None)).notes
    assert [each for each in notes if "nequal" in each] == [
        "Unequal budgets: HCEF has 2.00× the time of CEF."
    ]


def test_signs_of_latex_in_names_are_escaped(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    make_run(tmp_path / "a", "my_module:build", 0, [make_record(1, 0.5, 1, 1)])
    latex = build_table(summarise(load_runs(tmp_path), None)).to_latex()
    assert r"my\_module:build & " in latex


def test_a_smaller_error_is_better(tmp_path: Path, make_run: MakeRun, make_record: MakeRecord) -> None:
    """From 4 kWh at 100 s to 1 kWh at 200 s: 2.5 kWh is reached halfway, at 150 s."""
    error = Metric("error", unit="kWh", better="smaller")
    fleet = replace(ring(3, 2, 1000.0, 100.0), metrics=(error,))
    for scheme, best in (("hcef", 1.0), ("cef", 3.0)):
        rounds = [make_record(1, 4.0, 100, 1), make_record(2, best, 200, 2)]
        make_run(tmp_path / scheme, scheme, 0, rounds, fleet=fleet)
    summary = summarise(load_runs(tmp_path), 2.5)
    assert summary["metric"] == {"name": "error", "unit": "kWh", "better": "smaller"}
    assert summary["schemes"]["hcef"]["seconds_to_target"] == pytest.approx(150.0)
    assert summary["schemes"]["cef"]["seconds_to_target"] is None
    table = build_table(summary)
    assert [plain(each) for each in table.rows["hcef"][1][:3]] == ["1.00 kWh", "−2.00", "150 s"]
    assert plain(table.headings[0]) == "error within budgets"
    assert "A smaller error is better." in table.notes


def test_rows_keep_the_order_and_the_names_given(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """Two rows of the same scheme, listed against the alphabet; a run that is not listed comes last."""
    for folder in ("b", "a", "other"):
        make_run(tmp_path / folder, "cef", 0, [make_record(1, 0.5, 1, 1)])
    listed = [{"row": "second", "directory": "b"}, {"row": "mine", "directory": "a"}]
    (tmp_path / "comparison.json").write_text(json.dumps({"baseline": "mine", "runs": listed}))
    assert [run.scheme for run in load_runs(tmp_path)] == ["second", "mine", "cef"]


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ("hcef_plus", "HCEF+"),
        ("p_fedavg", "P-FedAvg"),
        ("hcef_plus+small_batches", "HCEF+, small batches"),
        ("my:scheme", "my:scheme"),
        ("mine + yours", "mine + yours"),
    ],
)
def test_names_of_rows(row: str, label: str) -> None:
    assert name_scheme(row) == label


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 9, 30])
@pytest.mark.parametrize("t", [0.0, 0.3, 2.0, 7.5])
def test_the_tail_of_students_t_is_scipys(degrees: int, t: float) -> None:
    assert student_tail(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), abs=1e-12)


def test_a_paired_test_from_five_seeds_on() -> None:
    differences = [0.1, 0.3, 0.2, 0.4, 0.1]
    assert find_p_value(differences) == pytest.approx(stats.ttest_1samp(differences, 0.0).pvalue)
    assert find_p_value(differences[:4]) is None
    assert find_p_value([*differences, None]) is None
    assert find_p_value([0.0] * 5) is None
    assert [format_p_value(each) for each in (None, 0.0004, 0.0317)] == ["–", "< 0.001", "0.032"]
