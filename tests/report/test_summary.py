"""The summary, costs to a target and broken budgets, on runs small enough to add up by hand.

Where a test does not say otherwise, the budgets are 1000 s and 100 J.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from cfel.report.load import Run, load_run, load_runs
from cfel.report.page import render_metrics_table, render_work_table
from cfel.report.style import assign_styles
from cfel.report.summary import (
    Crossing,
    confidence_half_width,
    describe_overruns,
    find_crossing,
    find_missed_caps,
    find_overruns,
    geometric_interval,
    geometric_mean,
    list_overruns,
    student_quantile,
    summarise,
    write_summary,
)
from cfel.runlog import RoundRecord

MakeRun = Callable[..., None]
MakeRecord = Callable[..., RoundRecord]
Build = Callable[..., Run]
STRETCHED = "cluster 0: time cap 5 s is out of reach, needs at least 9.00 s"


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
    table = render_work_table(summarise(load_runs(tmp_path), None), styles)
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
    runs = load_runs(tmp_path)
    table = render_metrics_table(runs, {"schemes": found}, styles)
    assert ">mae<" in table
    assert ">1.00<" in table
    assert render_metrics_table(runs, {"schemes": {"cef": found["cef"]}}, styles) == ""


def make_rounds(make_record: MakeRecord, *points: tuple[float | None, float]) -> list[RoundRecord]:
    """Rounds that take a second as expected, two as realised, and three joules, per unit given."""
    return [
        replace(
            make_record(number, accuracy, units, 3 * units),
            seconds_expected=units,
            seconds_realised=2 * units,
            joules_realised=3 * units,
        )
        for number, (accuracy, units) in enumerate(points, start=1)
    ]


def test_costs_are_interpolated_between_rounds(make_record: MakeRecord) -> None:
    """0.5 is a quarter of the way from 0.4 (at 100) to 0.8 (at 200): 125."""
    found = find_crossing(make_rounds(make_record, (0.4, 100.0), (0.8, 200.0)), 0.5)
    assert found == pytest.approx(Crossing(250.0, 125.0, 375.0))


def test_rounds_that_were_not_evaluated_are_passed_over(make_record: MakeRecord) -> None:
    found = find_crossing(make_rounds(make_record, (0.4, 100.0), (None, 150.0), (0.8, 200.0)), 0.5)
    assert found == pytest.approx(Crossing(250.0, 125.0, 375.0))


def test_a_first_round_that_reaches_the_target_counts_whole(make_record: MakeRecord) -> None:
    assert find_crossing(make_rounds(make_record, (0.6, 100.0)), 0.5) == Crossing(200.0, 100.0, 300.0)


def test_a_target_that_no_round_reaches_has_no_crossing(make_record: MakeRecord) -> None:
    assert find_crossing(make_rounds(make_record, (0.4, 100.0), (float("nan"), 200.0)), 0.5) is None
    assert find_crossing([], 0.5) is None


@pytest.fixture
def build(tmp_path: Path, make_run: MakeRun) -> Build:
    """A run of these rounds, loaded."""

    def call(*records: RoundRecord, scheme: str = "hcef") -> Run:
        make_run(tmp_path / "run", scheme, 0, records)
        return load_run(tmp_path / "run")

    return call


def test_a_run_that_kept_everything(build: Build, make_record: MakeRecord) -> None:
    """A budget filled to the last bit, and a bit of rounding, is kept."""
    run = build(make_record(1, 0.5, 500, 50), make_record(2, 0.5, 1000 * (1 + 1e-9), 100))
    assert (find_overruns(run), find_missed_caps(run), describe_overruns(run)) == ((), None, ())
    assert list_overruns([run]) == {}


def test_a_run_without_rounds(build: Build) -> None:
    assert describe_overruns(build()) == ()


def test_a_cap_out_of_reach(build: Build, make_record: MakeRecord) -> None:
    """Missed from round 2 on; the budget is broken by a quarter, since round 3."""
    missed = {"feasible": False, "violations": ("energy cap 1 J is below the 2 J", STRETCHED)}
    rounds = [(400, 10), (900, 20), (1250, 30)]
    run = build(
        *(
            make_record(number, 0.5, seconds, joules, **(missed if number > 1 else {}))
            for number, (seconds, joules) in enumerate(rounds, start=1)
        )
    )
    (overrun,) = find_overruns(run)
    assert (overrun.resource, overrun.since_round) == ("seconds", 3)
    assert overrun.share == pytest.approx(0.25)
    assert describe_overruns(run) == (
        "time exceeds its budget by 25 % (1,250 of 1,000 s), since round 3: caps could not be met in 2 "
        f"rounds, first in round 2: {STRETCHED} (scheme.on_unreachable = 'stretch')",
    )
    assert list_overruns([run])["0"]["missed_caps"]["since_round"] == 2


def test_a_cap_that_was_made_up_for(build: Build, make_record: MakeRecord) -> None:
    late = make_record(1, 0.5, 600, 60, feasible=False, violations=(STRETCHED,))
    (sentence,) = describe_overruns(build(late, make_record(2, 0.5, 1000, 100)))
    assert sentence.startswith("caps could not be met in 1 round, first in round 1: cluster 0")
    assert sentence.endswith("; the budgets were kept")


def test_a_scheme_without_caps(build: Build, make_record: MakeRecord) -> None:
    run = build(make_record(1, 0.5, 900, 300), scheme="cef")
    assert describe_overruns(run) == (
        "energy exceeds its budget by 200 % (300 of 100 J), since round 1: CEF plans without caps",
    )


def test_steps_at_random(build: Build, make_record: MakeRecord) -> None:
    """Kept as expected, broken by what the rounds really took; the other way round, it is kept."""
    (sentence,) = describe_overruns(build(make_record(1, 0.5, 1000, 100, seconds_realised=1300)))
    assert sentence.startswith("time exceeds its budget by 30 % (1,300 of 1,000 s)")
    assert "counts expected time" in sentence


def test_only_what_was_really_spent_breaks_a_budget(build: Build, make_record: MakeRecord) -> None:
    assert describe_overruns(build(make_record(1, 0.5, 1300, 100, seconds_realised=900))) == ()


def test_rounds_that_took_longer_than_planned(build: Build, make_record: MakeRecord) -> None:
    (sentence,) = describe_overruns(build(make_record(1, 0.5, 1200, 100, seconds_expected=900)))
    assert sentence.endswith("rounds took more time than their plans expected")
