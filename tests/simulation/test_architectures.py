"""User-defined models run as they are, and every engine trains them as `threads` does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cfel.api.runs import RunOptions, run_experiment
from cfel.errors import InputError
from cfel.experiment import Experiment
from tests.simulation.drive import outcomes, parameters_of, records, timeless, tiny

pytestmark = pytest.mark.long

RANDOM = (
    "dropout",
    "functional_dropout",
    "always_random",
    "random_slopes",
    "lstm",
    "transformer",
    "low_rank",
)
BATCHED = ("perceptron", "mode_dependent", "convolutions", "group_norm", "tied", "frozen_backbone")
OTHERS = ("batch_norm", "batch_norm_of_values", "gru")


def with_model(name: str, engine: str, workers: int = 2) -> Experiment:
    return tiny(
        model={"name": f"tests.architectures:{name}"},
        rounds={"global": 3, "edge": 1, "local": 2},
        data={"batch": 10},
        simulation={"engine": engine, "workers": workers},
    )


@pytest.mark.parametrize("name", BATCHED)
def test_batched_agrees_with_threads_in_every_round(name: str) -> None:
    """Evaluation leaves a worker's module in evaluation mode, which the next round must not train in."""
    threads, batched = (outcomes(with_model(name, engine, 1)) for engine in ("threads", "batched"))
    for one, two in zip(threads, batched, strict=True):
        assert one.record.loss == pytest.approx(two.record.loss, rel=1e-3)
        for left, right in zip(parameters_of(one), parameters_of(two), strict=True):
            np.testing.assert_allclose(left, right, atol=2e-4)


@pytest.mark.parametrize("name", [*RANDOM, *OTHERS])
def test_runs_repeat_bit_for_bit_on_any_number_of_workers(name: str) -> None:
    one, two = (timeless(records(with_model(name, "threads", workers))) for workers in (1, 2))
    assert one == two
    assert len({line["model_sha256"] for line in one}) == 3


@pytest.mark.parametrize("name", [*RANDOM, *OTHERS])
def test_auto_tries_one_step_and_falls_back(name: str) -> None:
    experiment = with_model(name, "auto")
    world = experiment.build_world()
    assert experiment.resolve(world).simulation.engine == "threads"
    with pytest.raises(InputError, match=r"'batched' .*--engine threads"):
        records(with_model(name, "batched"))


def test_the_notice_is_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    experiment = replace_rounds(with_model("dropout", "auto"))
    run_experiment(experiment, tmp_path / "run", RunOptions(notify=said.append))
    expected = (
        "engine: threads, as devices cannot be trained side by side: the model draws random numbers (dropout)"
    )
    assert said == [expected]
    assert 'engine = "threads"' in (tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8")


def replace_rounds(experiment: Experiment) -> Experiment:
    return replace(experiment, rounds=replace(experiment.rounds, global_rounds=1))


@pytest.mark.parametrize("name", BATCHED)
def test_auto_batches_what_can_be(name: str) -> None:
    experiment = with_model(name, "auto")
    assert experiment.resolve(experiment.build_world()).simulation.engine == "batched"
