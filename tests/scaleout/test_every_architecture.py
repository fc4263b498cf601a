"""Twelve kinds of models train on a real cluster for three rounds, to the bits of threads."""

import json

import pytest

from tests.architectures import THREE_ROUNDS, TWELVE
from tests.scaleout.conftest import cluster
from tests.simulation.drive import records, tiny

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def train_on_threads(name: str) -> list[str]:
    experiment = tiny(THREE_ROUNDS, TWELVE[name])
    assert experiment.simulation.engine == "threads"
    return [line.model_sha256 for line in records(experiment)]


def test_all_equal_threads() -> None:
    """One test, so that there is one cluster for all, however tests are spread."""
    with cluster(1) as nodes:
        process = nodes.start("-m", "tests.scaleout.architectures_on_cluster", nodes.address)
        text, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors
    found = json.loads(text)
    assert found == {name: train_on_threads(name) for name in TWELVE}
    assert [len(set(digests)) for digests in found.values()] == [3] * 12
