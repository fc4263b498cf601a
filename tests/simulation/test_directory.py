"""Runs in directories: checkpoints, interruption, resuming, and rejecting what does not belong together."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cfel.api.runs import RunOptions, run_experiment
from cfel.errors import RunDirectoryError
from cfel.experiment import Experiment, load_experiment
from cfel.runlog import RoundRecord, RunDirectory
from tests.simulation.drive import timeless, tiny

KEEPING = tiny(
    rounds={"global": 5, "edge": 1},
    compression={"error_feedback": True},
    fleet={"availability": {"away_probability": 0.2}, "battery_joules": 500.0},
)
"""Everything there is to remember: momentum, residuals, estimates, batteries."""


class PowerCutError(Exception):
    """Nobody is prepared for this one."""


def cut_after(rounds: int) -> Callable[[str, RoundRecord], None]:
    def on_round(_name: str, record: RoundRecord) -> None:
        if record.round >= rounds:
            raise PowerCutError

    return on_round


def with_checkpoints(every: int) -> Experiment:
    return replace(KEEPING, simulation=replace(KEEPING.simulation, checkpoint_every=every))


def saved_round(path: Path) -> int | None:
    checkpoint = RunDirectory.open(path).checkpoint()
    return None if checkpoint is None else checkpoint.round


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[RoundRecord]:
    return run_experiment(KEEPING, tmp_path_factory.mktemp("undisturbed") / "run", RunOptions())


@pytest.mark.parametrize(
    ("every", "cut", "saved"),
    [(1, 3, 3), (2, 3, 2), (3, 2, None), (0, 3, None), (100, 4, None), (2, 1, None)],
)
def test_breaking_off_and_going_on(
    tmp_path: Path, undisturbed: list[RoundRecord], every: int, cut: int, saved: int | None
) -> None:
    """The log ends up the same, whatever was lost; the last round always has a checkpoint."""
    path, experiment = tmp_path / "run", with_checkpoints(every)
    with pytest.raises(PowerCutError):
        run_experiment(experiment, path, RunOptions(on_round=cut_after(cut)))
    assert saved_round(path) == saved
    assert len(RunDirectory.open(path).records()) == cut
    found = run_experiment(experiment, path, RunOptions(resume=True))
    assert timeless(found) == timeless(undisturbed)
    assert saved_round(path) == 5
    assert RunDirectory.open(path).plan_rounds() == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("every", [0, 1, 3])
def test_being_asked_to_stop(tmp_path: Path, undisturbed: list[RoundRecord], every: int) -> None:
    """The run ends after the round under way, with a checkpoint of just that round."""
    path, experiment = tmp_path / "run", with_checkpoints(every)
    asked = iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, path, RunOptions(interrupted=lambda: next(asked)))
    assert saved_round(path) == len(RunDirectory.open(path).records()) == 2
    assert timeless(run_experiment(experiment, path, RunOptions(resume=True))) == timeless(undisturbed)


def test_being_asked_to_stop_too_late(tmp_path: Path) -> None:
    """After the last round there is nothing left to stop."""
    experiment = tiny(rounds={"global": 1, "edge": 1})
    assert len(run_experiment(experiment, tmp_path / "run", RunOptions(interrupted=lambda: True))) == 1


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    path, reported = tmp_path / "run", []
    options = RunOptions(on_round=lambda _, record: reported.append(record.round))
    first = run_experiment(tiny(), path, options)
    again = run_experiment(tiny(), path, replace(options, resume=True))
    assert again == first
    assert reported == [1, 2, 3]


@pytest.mark.parametrize("rounds", [{"stop": "target", "target": 0.2}, {"stop": "budget"}], ids=str)
def test_a_run_that_ended_early_stays_ended(tmp_path: Path, rounds: dict[str, object]) -> None:
    """Also when it is resumed from a checkpoint written in its last round."""
    experiment = tiny(rounds=rounds | {"global": 8}, scheme={"name": "cef"})
    path = tmp_path / "run"
    first = run_experiment(experiment, path, RunOptions())
    assert len(first) < 8
    assert run_experiment(experiment, path, RunOptions(resume=True)) == first


def test_a_run_that_ended_at_its_target_can_be_resumed(tmp_path: Path) -> None:
    """Only when it ends is another matter; the directory then says so, and equals a run never stopped."""
    early = tiny(rounds={"stop": "target", "target": 0.2}, scheme={"name": "cef"})
    path = tmp_path / "run"
    assert len(run_experiment(early, path, RunOptions())) < 3
    on = tiny(rounds={"stop": "rounds"}, scheme={"name": "cef"}, simulation={"workers": 1})
    found = run_experiment(on, path, RunOptions(resume=True))
    assert timeless(found) == timeless(run_experiment(on, tmp_path / "other", RunOptions()))
    assert tomllib.loads(RunDirectory.open(path).experiment_toml())["rounds"]["stop"] == "rounds"


def test_a_directory_is_not_run_over(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run_experiment(tiny(rounds={"global": 1}), path, RunOptions())
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(RunDirectoryError, match=r"holds a run already: .*--resume"):
        run_experiment(tiny(rounds={"global": 1}), path, RunOptions())
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed = 0, not 1"),
        ({"scheme": {"name": "cef"}}, "scheme.name = 'hcef', not 'cef'"),
        ({"rounds": {"global": 4}}, "rounds.global = 3, not 4"),
        ({"simulation": {"engine": "batched"}}, "simulation.engine = 'threads', not 'batched'"),
        ({"budget": {"seconds": 5.0}}, "budget.seconds = None, not 5.0"),
        ({"fleet": {"clusters": [2, 2, 2]}}, r"fleet.clusters = 3, not \[2, 2, 2\]"),
    ],
    ids=str,
)
def test_another_experiment_is_rejected(tmp_path: Path, change: dict[str, object], words: str) -> None:
    """Before anything is touched."""
    path = tmp_path / "run"
    with pytest.raises(PowerCutError):
        run_experiment(tiny(), path, RunOptions(on_round=cut_after(1)))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(RunDirectoryError, match=f"holds a run with {words}: "):
        run_experiment(tiny(change), path, RunOptions(resume=True))
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_damaged_experiment_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run_experiment(tiny(rounds={"global": 1}), path, RunOptions())
    (path / "experiment.toml").write_text("rounds =")
    with pytest.raises(RunDirectoryError, match=r"experiment\.toml is damaged"):
        run_experiment(tiny(rounds={"global": 1}), path, RunOptions(resume=True))


def test_the_resolved_experiment_gives_the_same_run(tmp_path: Path) -> None:
    """Engine chosen, defaults spelled out, in another directory."""
    first = run_experiment(tiny(simulation={"engine": "auto"}), tmp_path / "one", RunOptions())
    text = (tmp_path / "one" / "experiment.toml").read_text()
    assert tomllib.loads(text)["simulation"]["engine"] == "batched"
    again = run_experiment(
        load_experiment(tmp_path / "one" / "experiment.toml"), tmp_path / "two", RunOptions()
    )
    assert timeless(again) == timeless(first)
    assert (tmp_path / "two" / "experiment.toml").read_text() == text


def test_resuming_where_nothing_is_begins(tmp_path: Path) -> None:
    """So that one command can be repeated until it is through."""
    assert len(run_experiment(tiny(rounds={"global": 1}), tmp_path / "run", RunOptions(resume=True))) == 1
