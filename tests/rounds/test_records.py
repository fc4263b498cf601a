"""Averages over clusters, and records that hold values that are no finite numbers."""

import math
from dataclasses import replace

import pytest

from cfel.rounds.records import average_metrics, mean_metric
from cfel.runlog import RoundRecord
from tests.simulation.drive import records, tiny

SETTING = tiny(fleet={"clusters": [3, 2, 1]}, topology={"kind": "line"}).build_world().setting


def test_averages_over_the_clusters_that_are_there() -> None:
    """Devices count alike: (2 · 1 + 1 · 4) / 3 = 2."""
    assert average_metrics(SETTING, {1: {"mae": 1.0}, 2: {"mae": 4.0}}, ["mae"]) == pytest.approx(
        {"mae": 2.0}
    )
    assert average_metrics(SETTING, {}, ["mae"]) == {}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((math.inf, 1.0, 1.0), math.inf),
        ((math.inf, -math.inf, 1.0), math.nan),
        ((math.nan, 1.0, 1.0), math.nan),
    ],
)
def test_averages_of_values_that_are_not_finite(values: tuple[float, ...], expected: float) -> None:
    assert mean_metric(SETTING, values) == pytest.approx(expected, nan_ok=True)


def test_a_record_equals_itself_when_it_is_read_again() -> None:
    line = records(tiny(rounds={"global": 1}))[0]
    line = replace(line, metrics={"undefined": float("nan"), "perplexity": math.inf})
    assert RoundRecord.from_json_line(line.to_json_line()) == line
