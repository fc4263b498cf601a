"""Every kind of model trains for three rounds on threads, and batched where that is possible."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cfel.api.runs import RunOptions, run_experiment
from cfel.errors import InputError
from cfel.experiment import Experiment
from tests.architectures import THREE_ROUNDS, TWELVE
from tests.simulation.drive import outcomes, parameters_of, records, timeless, tiny

ONE_BY_ONE = (
    "ResNet, batch norm",
    "dropout",
    "GRU",
    "LSTM",
    "transformer encoder",
    "LoRA, frozen transformer",
)
"""Batch norm, randomness and recurrent layers: see docs/guides/models.md."""
SIDE_BY_SIDE = [name for name in TWELVE if name not in ONE_BY_ONE]


def _functions(*names: str) -> tuple[str, ...]:
    return tuple(f"tests.architectures:{name}" for name in names)


BATCHED = _functions("perceptron", "mode_dependent", "convolutions", "group_norm", "tied", "frozen_backbone")
RANDOM = _functions(
    "dropout",
    "functional_dropout",
    "always_random",
    "random_slopes",
    "lstm",
    "transformer",
    "low_rank",
)
OTHERS = _functions("batch_norm", "batch_norm_of_values", "gru")


def with_model(name: str, engine: str, workers: int = 1) -> Experiment:
    """One of the twelve kinds with four devices, or a function of `tests.architectures` with six."""
    six_devices = {"fleet": {"devices": 6, "clusters": 3}, "model": {"name": name}}
    sections = TWELVE.get(name, six_devices)
    return tiny(THREE_ROUNDS, sections, simulation={"engine": engine, "workers": workers})


def marked(short: Iterable[str], long: Iterable[str]) -> list[Any]:
    return [*short, *(pytest.param(name, marks=pytest.mark.long) for name in long)]


@pytest.mark.parametrize("name", marked(TWELVE, (*RANDOM, *OTHERS)))
def test_trains_to_the_same_bits_on_any_number_of_threads(name: str) -> None:
    pairs = (("threads", 1), ("processes", 2))
    one, two = (timeless(records(with_model(name, engine, workers))) for engine, workers in pairs)
    assert one == two
    assert len({line["model_sha256"] for line in one}) == 3


@pytest.mark.parametrize("name", marked(SIDE_BY_SIDE, BATCHED))
def test_batched_agrees_with_threads_in_every_round(name: str) -> None:
    """Evaluation leaves a worker's module in evaluation mode, which the next round must not train in."""
    threads, batched = (outcomes(with_model(name, engine)) for engine in ("threads", "batched"))
    for one, two in zip(threads, batched, strict=True):
        assert one.record.loss == pytest.approx(two.record.loss, rel=1e-3)
        for left, right in zip(parameters_of(one), parameters_of(two), strict=True):
            np.testing.assert_allclose(left, right, atol=2e-4)


@pytest.mark.parametrize("name", marked(ONE_BY_ONE, (*RANDOM, *OTHERS)))
def test_batched_is_refused_and_auto_falls_back(name: str) -> None:
    with pytest.raises(InputError, match=r"'batched' .*--engine threads"):
        outcomes(with_model(name, "batched"))
    experiment = with_model(name, "auto")
    assert experiment.resolve(experiment.build_world()).simulation.engine == "processes"


@pytest.mark.long
@pytest.mark.parametrize("name", BATCHED)
def test_auto_batches_what_can_be(name: str) -> None:
    experiment = with_model(name, "auto")
    assert experiment.resolve(experiment.build_world()).simulation.engine == "batched"


@pytest.mark.long
def test_the_notice_is_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    run_experiment(with_model("dropout", "auto"), tmp_path / "run", RunOptions(notify=said.append))
    assert said == [
        "engine: processes, as devices cannot be trained side by side: the model draws random numbers "
        "(dropout)"
    ]
    assert 'engine = "processes"' in (tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8")
