"""The summary document, on runs small enough to add up by hand."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy import stats

from cfel.report import load_runs, summarise, write_summary
from cfel.report.page import render_metrics_table, render_work_table
from cfel.report.style import assign_styles
from cfel.report.summary import (
    confidence_half_width,
    geometric_interval,
    geometric_mean,
    student_quantile,
)
from cfel.runlog import RoundRecord

MakeRun = Callable[..., None]
MakeRecord = Callable[..., RoundRecord]


@pytest.fixture
def two_schemes(tmp_path: Path, make_run: MakeRun, make_record: MakeRecord) -> Path:
    """`cef` reaches 0.5 in round 2 at 200 s / 20 J and 240 s / 28 J; `hcef` in round 2 at 100/10 and 120/14.

    Round 1 is not evaluated. The last rounds fall below the target again.
    """
    for scheme, speed in (("cef", 1), ("hcef", 2)):
        for seed, (seconds, joules) in enumerate(((200, 20), (240, 28))):
            rounds = [
                make_record(1, None, seconds / 2 / speed, joules / 2 / speed),
                make_record(2, 0.5, seconds / speed, joules / speed),
                make_record(3, 0.4 + 0.08 * seed, 2 * seconds / speed, 2 * joules / speed),
            ]
            make_run(tmp_path / scheme / f"seed-{seed}", scheme, seed, rounds)
    return tmp_path


def test_means_gains_and_intervals(two_schemes: Path) -> None:
    """`cef`: (200 + 240)/2 = 220 s, (20 + 28)/2 = 24 J; `hcef` half of both, so gains of 2.

    Interval of 100 and 120: s = 10·√2, half width 12.7062 · 10·√2/√2 = 127.062. Gains are 2 with both seeds.
    """
    document = summarise(load_runs(two_schemes), 0.5)
    hcef, cef = document["schemes"]["hcef"], document["schemes"]["cef"]
    assert document["target"] == 0.5
    assert (cef["seconds_to_target"], cef["joules_to_target"]) == (220.0, 24.0)
    assert (hcef["seconds_to_target"], hcef["joules_to_target"]) == (110.0, 12.0)
    assert (hcef["gain_seconds"], hcef["gain_joules"]) == (2.0, 2.0)
    assert (cef["gain_seconds"], cef["gain_joules"]) == (1.0, 1.0)
    assert (hcef["seconds"], hcef["joules"]) == (220.0, 24.0)
    assert (hcef["seconds_budget"], hcef["joules_budget"]) == (1000.0, 100.0)
    assert hcef["final_accuracy"] == pytest.approx(0.44, abs=1e-15)
    assert hcef["confidence"]["seconds_to_target"] == pytest.approx(127.062, rel=1e-12)
    assert hcef["interval"]["gain_seconds"] == pytest.approx((2.0, 2.0))
    assert hcef["per_seed"]["1"]["seconds_to_target"] == 120.0
    assert hcef["per_seed"]["1"]["gain_joules"] == 2.0
    assert hcef["reached"] == 2


def test_a_target_nobody_reaches_leaves_nulls(two_schemes: Path) -> None:
    """The best accuracy of either seed is 0.5: nobody reaches 0.51."""
    nobody = summarise(load_runs(two_schemes), 0.51)["schemes"]["hcef"]
    assert nobody["seconds_to_target"] is None
    assert nobody["gain_seconds"] is None
    assert nobody["reached"] == 0
    assert nobody["final_accuracy"] is not None


def test_some_seeds_missing_the_target_is_null_with_the_others_beside_it(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """Seed 0 reaches 0.5, seed 1 does not: the mean is null, seed 0's own value is there."""
    for seed, accuracy in enumerate((0.5, 0.4)):
        make_run(tmp_path / str(seed), "hcef", seed, [make_record(1, accuracy, 10.0, 1.0)])
    hcef = summarise(load_runs(tmp_path), 0.5)["schemes"]["hcef"]
    assert hcef["seconds_to_target"] is None
    assert hcef["confidence"]["seconds_to_target"] is None
    assert hcef["reached"] == 1
    assert hcef["per_seed"]["0"]["seconds_to_target"] == 10.0
    assert hcef["per_seed"]["0"]["gain_seconds"] is None


def test_without_target_rounds_or_numbers_there_are_nulls(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """No rounds at all, and a run that diverged: the document stays strict JSON."""
    make_run(tmp_path / "a", "hcef", 0, [])
    make_run(tmp_path / "b", "cef", 0, [make_record(1, math.nan, 10.0, 1.0)])
    document = summarise(load_runs(tmp_path), None)
    assert document["schemes"]["hcef"]["seconds"] is None
    assert document["schemes"]["cef"]["final_accuracy"] is None
    assert document["schemes"]["cef"]["confidence"]["seconds"] is None
    write_summary(tmp_path, document)
    assert json.loads((tmp_path / "summary.json").read_text()) == document


def test_gains_are_compared_seed_by_seed() -> None:
    """Gains of 1 and 4: the geometric mean is 2, and its interval is that of the logarithms 0 and ln 4."""
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    half = 12.7062 * math.log(4.0) / 2
    assert geometric_interval([1.0, 4.0]) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
    assert geometric_mean([1.0, None]) is None
    assert geometric_interval([2.0]) is None


@pytest.mark.parametrize("degrees", [1, 2, 3, 10, 29, 30, 31, 50, 1000])
def test_students_quantile_is_scipys(degrees: int) -> None:
    assert student_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=6e-5)


def test_the_interval_is_scipys() -> None:
    """Four values by hand: mean 2.5, s = 1.29099, half width 3.1824 · 1.29099/2 = 2.0542."""
    assert confidence_half_width([1.0, 2.0, 3.0, 4.0]) == pytest.approx(2.0542, abs=1e-4)
    assert confidence_half_width([1.0]) is None
    assert confidence_half_width([1.0, None]) is None


def test_work_is_summed_and_single_devices_are_the_last(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """Two rounds of 0.5 s; a log of an earlier version has no steps."""
    more = {"steps_planned": 10.5, "steps_taken": 9, "backhaul_bytes": 100}
    rounds = [
        make_record(1, 0.5, 1, 1, **more, peak_memory_bytes=5, device_accuracy_worst=0.25),
        make_record(2, 0.5, 2, 2, **more, peak_memory_bytes=7),
    ]
    make_run(tmp_path / "new", "hcef", 0, rounds)
    make_run(tmp_path / "old", "cef", 0, [make_record(1, 0.5, 1, 1)])
    found = summarise(load_runs(tmp_path), None)["schemes"]
    new, old = found["hcef"], found["cef"]
    assert (new["steps_planned"], new["steps_taken"], new["backhaul_bytes"]) == (21, 18, 200)
    assert (new["wall_seconds"], new["peak_memory_bytes"], new["device_accuracy_worst"]) == (1, 7, 0.25)
    assert (old["steps_taken"], old["peak_memory_bytes"], old["device_accuracy_mean"]) == (None, None, None)
    styles = assign_styles(tuple(found))
    table = render_work_table({"schemes": found}, styles)
    assert [words in table for words in ("21", "18", "200\N{NO-BREAK SPACE}B", "25.0")] == [True] * 4
    assert table.count('<th scope="col">Worst tenth') == 1
    assert "Own models" not in table


def test_metrics_of_the_task_have_their_own_names(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """The last round that has them, averaged over seeds; nothing is shown of tasks without."""
    for seed, error in ((0, 0.5), (1, 1.5)):
        rounds = [
            make_record(1, 0.5, 1, 1, metrics={"mae": error}),
            make_record(2, 0.5, 2, 2),
        ]
        make_run(tmp_path / f"hcef-{seed}", "hcef", seed, rounds)
    make_run(tmp_path / "cef", "cef", 0, [make_record(1, 0.5, 1, 1)])
    found = summarise(load_runs(tmp_path), None)["schemes"]
    assert (found["hcef"]["metrics"], found["cef"]["metrics"]) == ({"mae": 1.0}, {})
    styles = assign_styles(tuple(found))
    table = render_metrics_table({"schemes": found}, styles)
    assert ">mae<" in table
    assert ">1<" in table
    assert render_metrics_table({"schemes": {"cef": found["cef"]}}, styles) == ""
