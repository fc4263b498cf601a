"""What a run had spent at a target: realised, and interpolated between evaluated rounds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from cfel.report.summary import Crossing, find_crossing
from cfel.runlog import RoundRecord

MakeRecord = Callable[..., RoundRecord]


def rounds(make_record: MakeRecord, *points: tuple[float | None, float]) -> list[RoundRecord]:
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
    found = find_crossing(rounds(make_record, (0.4, 100.0), (0.8, 200.0)), 0.5)
    assert found == pytest.approx(Crossing(250.0, 125.0, 375.0))


def test_rounds_that_were_not_evaluated_are_passed_over(make_record: MakeRecord) -> None:
    found = find_crossing(rounds(make_record, (0.4, 100.0), (None, 150.0), (0.8, 200.0)), 0.5)
    assert found == pytest.approx(Crossing(250.0, 125.0, 375.0))


def test_a_first_round_that_reaches_the_target_counts_whole(make_record: MakeRecord) -> None:
    assert find_crossing(rounds(make_record, (0.6, 100.0)), 0.5) == Crossing(200.0, 100.0, 300.0)


def test_a_target_that_no_round_reaches_has_no_crossing(make_record: MakeRecord) -> None:
    assert find_crossing(rounds(make_record, (0.4, 100.0), (float("nan"), 200.0)), 0.5) is None
    assert find_crossing([], 0.5) is None
