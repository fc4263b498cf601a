"""What edge servers measured, as the coordinator records it."""

import math

import pytest

from cfel.deployment.coordinator.scores import combine_scores, read_scores
from cfel.deployment.protocol.coordinator_requests import MixAnswer, ModelScores
from tests.simulation.drive import tiny

WORLD = tiny(
    data={"task": "tests.tasks:digits"}, fleet={"clusters": [3, 2, 1]}, topology={"kind": "line"}
).build_world()
ROWS = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def answer(metric: float, devices: tuple[float, ...]) -> MixAnswer:
    further = {"cross_entropy": 10 * metric, "margin": -metric}
    return MixAnswer((0, 0, 0), ROWS, "0" * 64, metric, further, devices)


def test_every_device_counts_alike() -> None:
    """Clusters of 3, 2 and 1 devices: 0.1/2 + 0.4/3 + 0.7/6 = 0.3."""
    answers = {0: answer(0.1, (0.1, 0.2, math.nan)), 1: answer(0.4, (0.3, 0.4)), 2: answer(0.7, (0.5,))}
    found = combine_scores(WORLD, [0.1, 0.4, 0.7], answers)
    assert found.accuracy == pytest.approx(0.3)
    assert found.metrics == pytest.approx({"cross_entropy": 3.0, "margin": -0.3})
    assert found.devices is not None
    assert found.devices()[[0, 1, 3, 4, 5]].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_lost_edge_server_is_not_counted() -> None:
    """Clusters of 2 devices and of 1: (2 · 0.4 + 0.7) / 3 = 0.5, whatever the lost one had before."""
    answers = {1: answer(0.4, (0.3, 0.4)), 2: answer(0.7, (0.5,))}
    found = combine_scores(WORLD, [0.9, 0.4, 0.7], answers)
    assert found.accuracy == pytest.approx(0.5)
    assert found.metrics == pytest.approx({"cross_entropy": 5.0, "margin": -0.5})
    assert found.devices is not None
    assert found.devices().tolist() == [0.3, 0.4, 0.5]


def test_an_edge_server_that_does_not_measure_yet() -> None:
    """One with an earlier version of cfel sends its metric only."""
    old = MixAnswer((0, 0, 0), ROWS, "0" * 64, 0.1)
    found = combine_scores(
        WORLD, [0.1, 0.4, 0.7], {0: old, 1: answer(0.4, (0.3, 0.4)), 2: answer(0.7, (0.5,))}
    )
    assert found.accuracy == pytest.approx(0.3)
    assert found.metrics == pytest.approx({"cross_entropy": 5.0, "margin": -0.5})
    assert combine_scores(WORLD, [0.1, 0.4, 0.7], {0: old}).metrics == {}


def test_the_mean_model() -> None:
    found = read_scores(ModelScores(0.5, {"margin": 2.0}, (0.25, 0.75)))
    assert (found.accuracy, found.metrics) == (0.5, {"margin": 2.0})
    assert found.devices is not None
    assert found.devices().tolist() == [0.25, 0.75]
