"""Figures as files: every format, and the numbers that a figure shows."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from cfel.errors import InputError
from cfel.report.figures import draw_one, export_results
from cfel.report.load import group_by_row, load_runs
from cfel.report.style import Drawing, new_figure, render_csv
from cfel.runlog import RoundRecord

MakeRun = Callable[..., None]
MakeRecord = Callable[..., RoundRecord]


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def two_seeds(tmp_path: Path, make_run: MakeRun, make_record: MakeRecord) -> Path:
    """Two rounds of `cef` on a ring of three clusters of two; budgets of 1000 s and 100 J."""
    for seed, accuracies in ((0, (0.2, 0.4)), (1, (0.4, 0.8))):
        lines = [
            make_record(number, accuracy, 100.0 * number, 20.0 * number, straggler=seed, slowest_cluster=1)
            for number, accuracy in enumerate(accuracies, 1)
        ]
        make_run(tmp_path / "runs" / str(seed), "cef", seed, lines, plans=True)
    return tmp_path / "runs"


def draw(path: Path, name: str) -> list[dict[str, str]]:
    return read(draw_one(group_by_row(load_runs(path)), name, None).csv)


def test_the_numbers_of_a_curve_are_means_and_intervals(two_seeds: Path) -> None:
    """Round 2: (0.4 + 0.8)/2 = 0.6 after 200 s; half the interval is 12.7062 · 0.2."""
    first, second = draw(two_seeds, "accuracy-seconds")
    assert float(first["mean"]) == pytest.approx(0.3)
    assert (second["line"], second["seconds_realised"], second["seeds"]) == ("CEF", "200", "2")
    assert [float(second[name]) for name in ("mean", "low", "high")] == pytest.approx(
        [0.6, 0.6 - 2.54124, 0.6 + 2.54124]
    )
    assert [row["global_round"] for row in draw(two_seeds, "accuracy-round")] == ["1", "2"]


def test_the_numbers_of_panels_name_their_panel(two_seeds: Path) -> None:
    """After 200 of 1000 s and 40 of 100 J, 0.8 and 0.6 are left."""
    rows = draw(two_seeds, "budget")
    left = {row["panel"]: float(row["mean"]) for row in rows if row["global_round"] == "2"}
    assert left == pytest.approx({"time left": 0.8, "energy left": 0.6})


def test_the_numbers_of_single_runs(two_seeds: Path) -> None:
    """`cef` plans everything: ρ = θ = 1 for 6 devices in 2 rounds. Seed 0: device 0 is always slowest."""
    plans = draw(two_seeds, "decisions-0")
    assert len(plans) == 12
    assert plans[3] == {
        "global_round": "1",
        "cluster": "1",
        "first_device": "3",
        "devices": "1",
        "rho": "1",
        "theta": "1",
    }
    assert draw(two_seeds, "stragglers-0") == [
        {"panel": "slowest cluster", "name": "cluster 1", "share_of_rounds": "1"},
        {"panel": "slowest device", "name": "device 0", "share_of_rounds": "1"},
    ]
    links = draw(two_seeds, "backhaul")
    assert len(links) == 3 * 3
    assert sum(float(row["mixing_weight"]) for row in links) == pytest.approx(3.0)
    assert {row["devices"] for row in links} == {"2"}


def test_cells_are_quoted_and_unknown_ones_empty() -> None:
    figure, _ = new_figure(1, 1.0)
    text = render_csv(Drawing(figure, ("a, b", "rounds.edge"), [('x,"y"', None), (0.1, 3.0)]))
    assert text == 'a_b,rounds.edge\n"x,""y""",\n0.1,3\n'


def test_every_figure_is_exported_in_every_format(two_seeds: Path, tmp_path: Path) -> None:
    files = export_results(two_seeds, tmp_path / "to")
    names = (
        *("accuracy-seconds", "accuracy-joules", "accuracy-round", "budget", "estimates"),
        *("decisions-0", "stragglers-0", "backhaul"),
    )
    kinds = ("svg", "png", "csv")
    assert [file.name for file in files] == [
        *(f"{name}.{kind}" for name in names for kind in kinds),
        "table.csv",
    ]
    beginnings = {".svg": b"<?xml", ".png": b"\x89PNG", ".csv": b""}
    for file in files:
        assert file.read_bytes().startswith(beginnings[file.suffix])
    assert len(read((tmp_path / "to" / "estimates.csv").read_text())) == 4
    assert not (two_seeds / "report.html").exists()
    assert not (two_seeds / "figures").exists()


def test_some_formats(two_seeds: Path, tmp_path: Path) -> None:
    files = export_results(two_seeds, tmp_path / "to", ("csv", "csv"))
    assert {file.suffix for file in files} == {".csv"}
    assert len(files) == len(set(files)) == len(list((tmp_path / "to").iterdir()))


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        (("gif",), "format: unknown 'gif'"),
        (("png", "cvs"), r"format: unknown 'cvs'.*csv"),
        ((), "format: give at least one"),
    ],
)
def test_unknown_formats_are_rejected_before_anything_is_drawn(
    tmp_path: Path, formats: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        export_results(tmp_path / "missing", tmp_path / "to", formats)
    assert not (tmp_path / "to").exists()


def test_a_picture_is_saved_by_its_suffix(two_seeds: Path, tmp_path: Path) -> None:
    picture = draw_one(group_by_row(load_runs(two_seeds)), "budget", None)
    picture.save(tmp_path / "numbers.CSV")
    assert (tmp_path / "numbers.CSV").read_text() == picture.csv
    with pytest.raises(InputError, match=r"suffix: unknown '\.gif'"):
        picture.save(tmp_path / "figure.gif")
