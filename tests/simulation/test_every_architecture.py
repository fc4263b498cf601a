"""Twelve kinds of models train for three rounds on threads, and batched where that is possible."""

import numpy as np
import pytest

from cfel.errors import InputError
from cfel.experiment import Experiment
from cfel.simulation import RoundOutcome
from tests.architectures import THREE_ROUNDS, TWELVE
from tests.simulation.drive import outcomes, parameters_of, timeless, tiny

ONE_BY_ONE = (
    "ResNet, batch norm",
    "dropout",
    "GRU",
    "LSTM",
    "transformer encoder",
    "LoRA, frozen transformer",
)
"""Batch norm, randomness and recurrent layers: see docs/guides/models.md."""


def run(name: str, engine: str, workers: int = 1) -> list[RoundOutcome]:
    return outcomes(with_engine(name, engine, workers))


def with_engine(name: str, engine: str, workers: int = 1) -> Experiment:
    return tiny(THREE_ROUNDS, TWELVE[name], simulation={"engine": engine, "workers": workers})


@pytest.mark.parametrize("name", TWELVE)
def test_trains_to_the_same_bits_on_any_number_of_threads(name: str) -> None:
    one, two = (timeless([each.record for each in run(name, "threads", workers)]) for workers in (1, 2))
    assert one == two
    assert len({line["model_sha256"] for line in one}) == 3


@pytest.mark.parametrize("name", [name for name in TWELVE if name not in ONE_BY_ONE])
def test_batched_agrees_with_threads(name: str) -> None:
    for one, two in zip(run(name, "threads"), run(name, "batched"), strict=True):
        assert one.record.loss == pytest.approx(two.record.loss, rel=1e-3)
        for left, right in zip(parameters_of(one), parameters_of(two), strict=True):
            np.testing.assert_allclose(left, right, atol=2e-4)


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_batched_is_refused_and_auto_falls_back(name: str) -> None:
    with pytest.raises(InputError, match=r"'batched' .*--engine threads"):
        run(name, "batched")
    experiment = with_engine(name, "auto")
    assert experiment.resolve(experiment.build_world()).simulation.engine == "threads"
