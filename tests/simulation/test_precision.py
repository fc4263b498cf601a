"""Runs with `local.precision = "bfloat16"` repeat bit for bit; only the batched engine does not have it."""

from pathlib import Path

import pytest

from cfel.api.runs import RunOptions, run_experiment
from cfel.errors import InputError
from cfel.experiment import Experiment
from tests.architectures import THREE_ROUNDS, TWELVE
from tests.simulation.drive import records, timeless, tiny

ROUNDED = {"local": {"precision": "bfloat16"}}


def rounded(name: str, engine: str = "threads", workers: int = 2) -> Experiment:
    return tiny(THREE_ROUNDS, TWELVE[name], ROUNDED, simulation={"engine": engine, "workers": workers})


@pytest.mark.parametrize(
    "name", ["MLP", "ResNet, batch norm", "language model, tied embedding", "GRU", "transformer encoder"]
)
def test_repeats_on_any_number_of_threads(name: str) -> None:
    one, two = (timeless(records(rounded(name, workers=workers))) for workers in (1, 2))
    assert one == two
    exact = timeless(records(tiny(THREE_ROUNDS, TWELVE[name])))
    assert [line["model_sha256"] for line in one] != [line["model_sha256"] for line in exact]
    assert one[-1]["loss"] == pytest.approx(exact[-1]["loss"], rel=0.05)


def test_batched_is_refused() -> None:
    reason = r"'batched' cannot train this: local.precision = 'bfloat16' is for one device at a time; use"
    with pytest.raises(InputError, match=reason):
        records(rounded("MLP", "batched"))


def test_auto_falls_back_and_says_why(tmp_path: Path) -> None:
    said: list[str] = []
    run_experiment(rounded("MLP", "auto"), tmp_path / "run", RunOptions(notify=said.append))
    assert said == [
        "engine: processes, as devices cannot be trained side by side: local.precision = 'bfloat16' is for "
        "one device at a time"
    ]


def test_a_wrong_value_in_a_file() -> None:
    with pytest.raises(InputError, match=r"local\.precision: unknown 'float16'"):
        tiny(local={"precision": "float16"})
