"""What the figures are made of: numbers first, then that each of them is drawn and stands alone."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfel.report.figures import (
    Picture,
    _use_plain_labels,
    average_devices,
    average_rows,
    build_curve,
    draw_backhaul,
    draw_pictures,
    pick_evenly,
    place_on_circle,
    rank_most_frequent,
    space_apart,
    write_pictures,
)
from cfel.report.load import load_runs
from cfel.report.style import assign_styles, list_colours, new_figure
from cfel.runlog import FleetDescription, PlanTable, RoundRecord

MakeRun = Callable[..., None]
MakeRecord = Callable[..., RoundRecord]


@pytest.mark.parametrize(
    ("ends", "labels"),
    [((1.2, 3.5), ["1.5", "2", "3"]), ((0.3, 6.0), ["0.5", "1", "2", "5"]), ((1.0, 1e4), None)],
)
def test_short_logarithmic_axes_have_plain_numbers(
    ends: tuple[float, float], labels: list[str] | None
) -> None:
    """Over many decades powers of ten stay, which read better there."""
    _, (axes,) = new_figure(1, 2.0)
    axes.set_yscale("log")
    axes.set_ylim(*ends)
    _use_plain_labels(axes, ends[1] / ends[0])
    axes.figure.canvas.draw()
    within = [mark for mark in axes.get_yticks() if ends[0] <= mark <= ends[1]]
    found = axes.yaxis.get_major_formatter().format_ticks(within)
    assert found == labels if labels is not None else any("10" in text for text in found)


def test_seeds_are_joined_round_by_round(tmp_path: Path, make_run: MakeRun, make_record: MakeRecord) -> None:
    """Seed 1 lacks round 2, so rounds 1 and 3 remain: x = (10+30)/2, (30+90)/2; y = 0.2, 0.5.

    Half the 95 % interval of two values 0.2 apart is 12.7062 · 0.1.
    """
    make_run(
        tmp_path / "0",
        "cef",
        0,
        [make_record(n, a, 10.0 * n, 1.0) for n, a in ((1, 0.1), (2, 0.3), (3, 0.4))],
    )
    make_run(
        tmp_path / "1",
        "cef",
        1,
        [make_record(n, a, 30.0 * n, 1.0) for n, a in ((1, 0.3), (2, None), (3, 0.6))],
    )
    runs = load_runs(tmp_path)
    line = build_curve(assign_styles(["cef"])["cef"], runs, lambda r, _: r.seconds, lambda r, _: r.accuracy)
    assert line is not None
    np.testing.assert_allclose(line.x, [20.0, 60.0])
    np.testing.assert_allclose(line.y, [0.2, 0.5])
    np.testing.assert_allclose(line.low, np.array([0.2, 0.5]) - 1.27062)
    np.testing.assert_allclose(line.high, np.array([0.2, 0.5]) + 1.27062)
    assert (line.least, line.most) == (0.1, 0.6)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=10).map(sorted))
def test_names_keep_their_order_their_distance_and_the_panel(heights: list[float]) -> None:
    moved = space_apart(heights, 0.1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(moved))
    assert all(-1e-9 <= height <= 1 + 1e-9 for height in moved)


def test_names_that_are_clear_of_one_another_stay() -> None:
    assert space_apart([0.1, 0.5, 0.9], 0.1) == [0.1, 0.5, 0.9]
    assert space_apart([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])


def test_a_circle_starts_on_top_and_goes_clockwise() -> None:
    np.testing.assert_allclose(place_on_circle(4), [[0, 1], [1, 0], [0, -1], [-1, 0]], atol=1e-15)


def test_device_means_are_over_edge_rounds() -> None:
    """Device 0: (0.2 + 0.4)/2 = 0.3; device 1 was away; device 2 took part once: 0.9."""
    columns = dict.fromkeys(
        ("cluster", "theta", "mu", "alpha", "nu", "power", "steps", "seconds", "joules"), np.zeros(3)
    )
    table = PlanTable(round=0, edge_round=[0, 1, 1], device=[0, 0, 2], rho=[0.2, 0.4, 0.9], **columns)  # type: ignore[arg-type]
    np.testing.assert_allclose(average_devices(table, "rho", 3), [0.3, np.nan, 0.9])


def test_many_rounds_arethinned_and_many_devicesgrouped_rows() -> None:
    """500 rounds in at most 200: every third, back from the last; 4 rows in 2: pairs averaged, no gaps."""
    assert pick_evenly(range(1, 501), 200)[-2:] == [497, 500]
    assert len(pick_evenly(range(1, 501), 200)) == 167
    assert pick_evenly([], 200) == []
    rows = np.array([[1.0], [3.0], [5.0], [np.nan]])
    np.testing.assert_allclose(average_rows(rows, 2), [[2.0], [5.0]])


def test_stragglers_are_ranked_and_the_rest_summed() -> None:
    """Ten rounds: device 7 four times, one round without, five others once: shares of all ten."""
    bars = rank_most_frequent([7, 7, 3, None, 7, 7, 1, 2, 4, 5], 10, "device")
    assert bars[0] == ("device 7", 0.4)
    assert bars[1] == ("device 1", 0.1)
    many = rank_most_frequent(list(range(20)), 20, "device")
    assert many[-1] == ("12 others", 0.6)
    assert rank_most_frequent(list(range(9)), 9, "device")[-1] == ("device 8", 1 / 9)


def test_a_scheme_looks_the_same_in_any_company() -> None:
    alone, together = assign_styles(["mll_sgd"]), assign_styles(["x:y", "cef", "mll-sgd", "z:w"])
    assert alone["mll_sgd"] == together["mll-sgd"]
    assert (alone["mll_sgd"].label, alone["mll_sgd"].short) == ("MLL-SGD", "MLL-SGD")
    assert (
        assign_styles(["my.package:adaptive_scheme"])["my.package:adaptive_scheme"].short == "adaptive_scheme"
    )
    assert len({style.colour for style in together.values()}) == 4


@pytest.fixture(scope="module")
def pictures(comparison: Path) -> tuple[Picture, ...]:
    """Drawn once for the tests below."""
    return draw_pictures(load_runs(comparison / "hcef"), 0.7)


def test_every_figure_is_drawn(pictures: tuple[Picture, ...], tmp_path: Path) -> None:
    names = [picture.name for picture in pictures]
    assert names == [
        *("accuracy-seconds", "accuracy-joules", "accuracy-round", "budget", "estimates"),
        *("decisions-0", "stragglers-0", "backhaul"),
    ]
    write_pictures(tmp_path / "figures", pictures)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("svg", "png")
    }
    assert all(picture.png.startswith(b"\x89PNG") for picture in pictures)


def test_figures_on_the_page_share_no_id_and_no_fixed_colour(pictures: tuple[Picture, ...]) -> None:
    ids = [name for picture in pictures for name in re.findall(r'\bid="([^"]+)"', picture.inline)]
    assert len(ids) == len(set(ids))
    for picture in pictures:
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', picture.inline)) <= set(ids)
        assert not any(colour in picture.inline for colour, _ in list_colours())
        assert "http" not in picture.inline
        assert "DejaVu" not in picture.inline


def test_a_run_without_rounds_plans_or_budgets_has_its_backhaul_only(
    tmp_path: Path, make_run: MakeRun
) -> None:
    make_run(tmp_path, "cef", 0, [])
    assert [picture.name for picture in draw_pictures(load_runs(tmp_path), None)] == ["backhaul"]


def test_a_single_round_is_drawn_the_same_each_time(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    make_run(tmp_path, "cef", 0, [make_record(1, 0.3, 10.0, 1.0)], plans=True)
    first, second = draw_pictures(load_runs(tmp_path), 0.5), draw_pictures(load_runs(tmp_path), 0.5)
    assert {picture.name for picture in first} >= {"accuracy-seconds", "budget", "estimates", "decisions-0"}
    assert [picture.svg for picture in first] == [picture.svg for picture in second]


def test_numbers_near_the_largest_float_are_left_out(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """Axes overflow beyond them; a run that diverged, or that somebody made up, has such numbers."""
    huge = make_record(2, 1.7e308, 1.7e308, 1.7e308, sigma2=1e300, g2=1.7e308, loss=-1.7e308)
    make_run(tmp_path, "cef", 0, [make_record(1, 0.3, 10.0, 1.0), huge])
    names = {picture.name for picture in draw_pictures(load_runs(tmp_path), 0.5)}
    assert {"accuracy-seconds", "estimates"} <= names


def test_a_backhaul_of_too_many_links_is_not_drawn() -> None:
    cluster, mixing = (0, 1), ((0.5, 0.5), (0.5, 0.5))
    assert draw_backhaul(FleetDescription(cluster=cluster, edges=((0, 1),) * 5001, mixing=mixing)) is None
