"""Averages over clusters, and records that hold values that are no finite numbers."""

import math
from dataclasses import replace

import pytest

from cfel.membership import FleetChange
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


def test_clusters_without_devices_count_alike_if_no_others_are_there() -> None:
    """The devices of clusters 1 and 2 have moved to cluster 0, whose edge server is gone: (0.2 + 0.4) / 2."""
    changes = [FleetChange(1, "move device", (2, 3, 4, 5), 0)]
    setting = tiny().build_world().with_changes(changes).at(0).setting
    assert mean_metric(setting, (0.9, 0.2, 0.4), {1, 2}) == pytest.approx(0.3)
