"""`cfel tune`: what it prints of trials, and what it rejects before it runs any."""

from pathlib import Path
from typing import Any

import pytest

import cfel
from cfel.api.results import Tuning, TuningTrial
from tests.cli.conftest import Run

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


@pytest.mark.parametrize(
    ("over", "message"),
    [("local.learning_rate=1..", "local.learning_rate"), ("local.lerning_rate=0.1..0.2", "lerning_rate")],
)
def test_a_range_that_is_none(run: Run, tmp_path: Path, over: str, message: str) -> None:
    answer = run("tune", TINY, "--over", over, "--out", tmp_path / "tuned")
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_the_best_values_are_printed_with_the_command_that_uses_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    trials = tuple(
        TuningTrial({"local.learning_rate": rate}, score) for rate, score in ((0.05, 0.9), (0.1, 0.5))
    )

    def tune(_experiment: object, over: dict[str, Any], **options: Any) -> Tuning:
        asked.update(over, trials=options["trials"], seeds=options["seeds"])
        return Tuning(path=tmp_path, runs=(), target=None, baseline=None, seeds=(7,), trials=trials)

    monkeypatch.setattr(cfel, "tune", tune)
    words = ("tune", TINY, "--over", "local.learning_rate=0.01..0.2:log", "--trials", 2, "--seeds", "7")
    printed = run(*words)
    assert asked == {"local.learning_rate": "0.01..0.2:log", "trials": 2, "seeds": [7]}
    assert "90.0 %" in printed.out
    assert "--set local.learning_rate=0.05" in printed.out
    assert run(*words, "--json").document["best"] == {"local.learning_rate": 0.05}
