"""Twelve kinds of models train on a real cluster for three rounds, to the bits of threads."""

import json
from collections.abc import Mapping

import pytest

from tests.architectures import THREE_ROUNDS, TWELVE
from tests.scaleout.conftest import cluster
from tests.simulation.drive import records, tiny

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def on_ray() -> Mapping[str, list[str]]:
    """The digests of all rounds, by kind of model; one cluster for all."""
    with cluster(1) as nodes:
        process = nodes.start("-m", "tests.scaleout.architectures_on_cluster", nodes.address)
        text, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors
    found: dict[str, list[str]] = json.loads(text)
    return found


@pytest.mark.parametrize("name", TWELVE)
def test_equals_threads(on_ray: Mapping[str, list[str]], name: str) -> None:
    experiment = tiny(THREE_ROUNDS, TWELVE[name])
    assert experiment.simulation.engine == "threads"
    expected = [line.model_sha256 for line in records(experiment)]
    assert on_ray[name] == expected
    assert len(set(expected)) == 3
