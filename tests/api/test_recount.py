"""Recounting: the costs of other conditions with the models of a run, and only where that is right."""

from pathlib import Path
from typing import Any

import pytest

from cfel.api.recount import recount
from cfel.api.runs import RunOptions, run_experiment
from cfel.errors import InputError
from cfel.runlog import RoundRecord, RunDirectory
from tests.simulation.drive import tiny

CEF = {"name": "cef"}
# A deadline leaves uploads out, so other models are learned.
CHANGES_OF_MODELS = ["local.learning_rate=0.1", "seed=1", "scheme.name=hcef", "scheme.deadline_seconds=300"]
FLOOR = "fleet.conditions.channel_floor=0"


def finish_run(path: Path, *changes: Any) -> tuple[RoundRecord, ...]:
    run_experiment(tiny({"budget": {"share_of_cef": 0.6}}, *changes), path, RunOptions())
    return RunDirectory.open(path).records()


def test_a_recount_of_cef_equals_a_new_run(tmp_path: Path) -> None:
    """The models and accuracies of the run, the seconds and joules of a run under that channel."""
    finish_run(tmp_path / "before", {"scheme": CEF})
    again = {"scheme": CEF, "fleet": {"conditions": {"channel_floor": 0.0}}}
    expected = finish_run(tmp_path / "again", again)
    found = recount(tmp_path / "before", tmp_path / "after", [FLOOR])
    for mine, other in zip(found, expected, strict=True):
        assert mine.model_sha256 == other.model_sha256
        assert mine.seconds == mine.seconds_realised == pytest.approx(other.seconds, rel=1e-12)
        assert mine.joules == pytest.approx(other.joules, rel=1e-12)
        assert (mine.accuracy, mine.straggler) == (other.accuracy, other.straggler)
    assert RunDirectory.open(tmp_path / "after").records() == found


def test_slower_clocks_cost_no_time_and_less_energy(tmp_path: Path) -> None:
    before = finish_run(tmp_path / "run", {"scheme": CEF})
    after = recount(tmp_path / "run", tmp_path / "slow", ["scheme.slow_clocks=true"])
    assert after[-1].seconds == pytest.approx(before[-1].seconds)
    assert after[-1].joules < before[-1].joules


def test_the_backhaul_can_be_charged_afterwards(tmp_path: Path) -> None:
    before = finish_run(tmp_path / "run", {"scheme": CEF})
    after = recount(tmp_path / "run", tmp_path / "wired", ["topology.joules_per_bit=wired"])
    charged = sum(each.backhaul_joules or 0 for each in after)
    assert charged > 0
    assert after[-1].joules == pytest.approx(before[-1].joules + charged)


def test_a_run_that_drew_its_steps_is_rejected(tmp_path: Path) -> None:
    finish_run(tmp_path / "run", {"scheme": {"name": "hcef"}})
    with pytest.raises(InputError, match="has to be run again"):
        recount(tmp_path / "run", tmp_path / "after", [FLOOR])
    assert not (tmp_path / "after").exists()


@pytest.mark.parametrize("change", CHANGES_OF_MODELS)
def test_changes_of_what_is_learned_are_rejected(tmp_path: Path, change: str) -> None:
    finish_run(tmp_path / "run", {"scheme": CEF})
    with pytest.raises(InputError, match=r"allowed: fleet\.conditions"):
        recount(tmp_path / "run", tmp_path / "after", [change])
