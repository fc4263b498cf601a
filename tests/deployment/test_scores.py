"""A deployment measures devices and the task's further metrics as the simulator does, bit for bit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import play_to_the_end
from tests.simulation.drive import records, timeless

DEVICES = ("device_accuracy_mean", "device_accuracy_worst", "device_accuracy_spread")
METRICS = {"data": {"task": "tests.tasks:digits"}}


@pytest.mark.parametrize(
    "sections",
    [
        {**METRICS, "simulation": {"device_accuracy": "every"}},
        {**METRICS, "simulation": {"device_accuracy": "end", "evaluate_samples": 50}},
        {**METRICS, "simulation": {"device_accuracy": "every", "evaluate_on": "mean"}},
        {
            "simulation": {"device_accuracy": "end", "evaluate_every": 2},
            "data": {"task": "tests.tasks:regression", "partition": "iid"},
        },
        {
            "simulation": {"device_accuracy": "every"},
            "fleet": {"devices": 5, "clusters": [2, 1, 2]},
            "aggregation": {"average": 0.5},
            "local": {"algorithm": "ditto"},
        },
    ],
    ids=["edge", "sample", "mean", "regression", "unequal"],
)
def test_equal_to_the_simulation(tmp_path: Path, sections: Mapping[str, Mapping[str, Any]]) -> None:
    experiment = deployed(sections, {"rounds": {"global": 2}})
    expected, found = timeless(records(experiment)), timeless(play_to_the_end(experiment, tmp_path))
    compared = ("accuracy", "metrics", "model_sha256", *DEVICES)
    assert [{key: line[key] for key in compared} for line in found] == [
        {key: line[key] for key in compared} for line in expected
    ]
    assert None not in [found[-1][key] for key in DEVICES]
    assert list(found[-1]["metrics"]) == list(experiment.load_task().metrics)


def test_devices_are_not_measured_unless_asked(tmp_path: Path) -> None:
    experiment = deployed(METRICS, {"rounds": {"global": 1}})
    line = play_to_the_end(experiment, tmp_path)[-1]
    assert [getattr(line, key) for key in DEVICES] == [None] * 3
    assert line.metrics.keys() == {"cross_entropy", "margin"}


def test_metrics_that_are_not_finite_end_nothing(tmp_path: Path) -> None:
    """Records travel and are compared, although NaN differs from itself."""
    experiment = deployed({"data": {"task": "tests.tasks:endless"}, "rounds": {"global": 2}})
    log = play_to_the_end(experiment, tmp_path)
    assert [repr(line.metrics) for line in log] == ["{'infinite': inf, 'undefined': nan}"] * 2


@pytest.mark.parametrize("task", ["undefined", "infinite"])
@pytest.mark.parametrize("on", ["edge", "mean"])
def test_a_metric_that_is_not_finite_is_recorded_as_by_the_simulator(
    tmp_path: Path, task: str, on: str
) -> None:
    """No edge server is left out for it, so the models are the same, too."""
    simulation = {"evaluate_on": on, "device_accuracy": "never"}
    experiment = deployed(
        {"data": {"task": f"tests.tasks:{task}"}, "simulation": simulation, "rounds": {"global": 2}}
    )
    expected, found = timeless(records(experiment)), timeless(play_to_the_end(experiment, tmp_path))
    assert repr(found[-1]["accuracy"]) == {"undefined": "nan", "infinite": "inf"}[task]
    assert repr(found) == repr(expected)
