"""The page and the figures of a sweep: its keys, its lines, and what they show."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cfel.errors import RunDirectoryError
from cfel.report.figures import MAX_LINES, choose_lines, draw_one, draw_pictures
from cfel.report.load import group_by_row, load_runs
from cfel.report.page import write_report
from cfel.report.style import assign_styles
from cfel.report.summary import describe_overruns
from cfel.runlog import RoundRecord

MakeSweep = Callable[[Sequence[dict[str, Any]], Sequence[float]], Path]


@pytest.fixture
def make_sweep(
    tmp_path: Path, make_run: Callable[..., None], make_record: Callable[..., RoundRecord]
) -> MakeSweep:
    """A sweep with one seed per setting; two rounds of 10 s and 1 J up to these accuracies."""

    def make(settings: Sequence[dict[str, Any]], accuracies: Sequence[float]) -> Path:
        rows = []
        for number, (values, accuracy) in enumerate(zip(settings, accuracies, strict=True)):
            lines = [make_record(1, 0.0, 10.0, 1.0), make_record(2, accuracy, 20.0, 2.0)]
            make_run(tmp_path / str(number), "cef", 0, lines)
            rows.append({"values": values, "directory": str(number)})
        (tmp_path / "sweep.json").write_text(json.dumps({"runs": rows}))
        return tmp_path

    return make


GRID = [{"rounds.edge": q, "local.rate": rate} for q in (1, 2) for rate in (0.1, 0.2)]


def test_the_page_of_a_sweep_has_a_column_per_key(make_sweep: MakeSweep) -> None:
    page = write_report(make_sweep(GRID, (0.2, 0.4, 0.5, 0.8)), 0.4).read_text(encoding="utf-8")
    assert '<th scope="col">rounds.edge</th><th scope="col">local.rate</th><th scope="col">Accuracy w' in page
    assert '<span class="key">rounds.edge: </span>2</th><td data-label="local.rate">0.2</td>' in page
    assert "4 settings of rounds.edge and local.rate" in page
    assert "rounds.edge=2,local.rate=0.2 has the best accuracy within the budgets, 80.0" in page
    # Nothing to gain over: no setting is the scheme `cef`.
    assert "Gain" not in page


def test_the_figures_by_key_come_first(make_sweep: MakeSweep) -> None:
    runs = load_runs(make_sweep(GRID, (0.2, 0.4, 0.5, 0.8)))
    names = [picture.name for picture in draw_pictures(runs, 0.4)]
    assert names[:5] == ["by-key-0", "costs-by-key-0", "by-key-1", "costs-by-key-1", "accuracy-seconds"]
    assert not any(name.startswith("costs") for name in (each.name for each in draw_pictures(runs, None)))


def test_costs_by_key_leave_out_what_was_not_reached(make_sweep: MakeSweep) -> None:
    """From 0 at 10 s to 0.5 or 0.8 at 20 s: 0.4 is reached after 10 + 10 · 0.4/0.5 = 18 and 15 s."""
    runs = load_runs(make_sweep(GRID, (0.2, 0.4, 0.5, 0.8)))
    picture = draw_one(group_by_row(runs), "costs-by-key-0", 0.4)
    rows = list(csv.DictReader(io.StringIO(picture.csv)))
    seconds = [row for row in rows if row["panel"] == "seconds to the target"]
    found = {(row["line"], row["rounds.edge"]): float(row["mean"]) for row in seconds}
    assert found == pytest.approx(
        {("local.rate=0.1", "2"): 18, ("local.rate=0.2", "1"): 20} | {("local.rate=0.2", "2"): 15}
    )


def test_a_key_that_is_alone_has_one_line_without_a_name(make_sweep: MakeSweep) -> None:
    runs = load_runs(make_sweep([{"rounds.edge": 1}, {"rounds.edge": 2}], (0.2, 0.4)))
    picture = draw_one(group_by_row(runs), "by-key-0", None)
    assert ">all<" not in picture.svg
    assert "other keys" not in picture.caption


def test_a_large_sweep_shows_its_best_settings(make_sweep: MakeSweep) -> None:
    """30 settings: the lines of the 12 best; the figure by key still has all values."""
    runs = load_runs(make_sweep([{"seed.x": n} for n in range(30)], [n / 100 for n in range(30)]))
    kept = choose_lines(runs)
    assert [run.setting["seed.x"] for run in kept] == list(range(30 - MAX_LINES, 30))
    curves = draw_one(group_by_row(runs), "accuracy-round", None)
    lines = {row["line"] for row in csv.DictReader(io.StringIO(curves.csv))}
    assert len(lines) == MAX_LINES
    assert f"At most the {MAX_LINES} settings" in curves.caption
    by_key = draw_one(group_by_row(runs), "by-key-0", None)
    assert len(by_key.csv.splitlines()) == 31


def test_the_lines_of_a_sweep_have_different_colours() -> None:
    styles = assign_styles([f"a.b={number}" for number in range(MAX_LINES)])
    assert len({style.colour for style in styles.values()}) == MAX_LINES
    assert len({style.dark for style in styles.values()}) == MAX_LINES
    beside = assign_styles(["cef", *(f"own:{number}" for number in range(MAX_LINES))])
    assert len({style.colour for style in beside.values()}) == MAX_LINES + 1


def test_an_overrun_names_the_scheme_and_not_the_setting(
    make_sweep: MakeSweep, make_run: Callable[..., None], make_record: Callable[..., RoundRecord]
) -> None:
    path = make_sweep([{"rounds.edge": 1}], [0.5])
    make_run(path / "over", "cef", 0, [make_record(1, 0.5, 2000.0, 1.0)])
    (path / "sweep.json").write_text(
        json.dumps({"runs": [{"values": {"rounds.edge": 1}, "directory": "over"}]})
    )
    (run,) = load_runs(path)
    assert describe_overruns(run)[0].endswith(": CEF plans without caps")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"values": {"a": "\x1b[2J"}, "directory": "0"}, "values.a = .*control characters"),
        ({"values": {"\x1b[2J": 1}, "directory": "0"}, "values = .*control characters"),
        ({"values": {"a": 1}, "directory": "../0"}, "directory = .*must lie in the sweep's own directory"),
        ({"values": {"a": 1}, "directory": "/"}, "directory = .*must lie in the sweep's own directory"),
        ({"values": {"a": 1}, "directory": 7}, "directory = 7: must be text"),
    ],
)
def test_a_sweep_of_somebody_else_is_checked(make_sweep: MakeSweep, row: dict[str, Any], words: str) -> None:
    """Its values become names on pages and terminals; its directories are read."""
    path = make_sweep([{"rounds.edge": 1}], [0.5])
    (path / "sweep.json").write_text(json.dumps({"runs": [row]}))
    with pytest.raises(RunDirectoryError, match=f"sweep.json is damaged: {words}"):
        load_runs(path)
