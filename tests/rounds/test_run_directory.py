"""Run directories: which experiments may resume in one, and what an edge server's directory says."""

from pathlib import Path

import pytest

from cfel.errors import RunDirectoryError
from cfel.experiment import experiment_toml
from cfel.rounds.run_directory import (
    ADDED,
    RunRequest,
    create_run,
    describe_run,
    open_run,
    reject_other_experiment,
)
from cfel.runlog import RunDirectory
from tests.simulation.drive import tiny

TEXT = experiment_toml(tiny())


def write(path: Path) -> Path:
    """An edge server's directory."""
    describe_run(path, tiny().build_setting(), TEXT)
    return path


def test_threads_and_ray_may_take_turns(tmp_path: Path) -> None:
    """They compute the same bits; the batched engine does not."""
    path = write(tmp_path / "run")
    reject_other_experiment(path, TEXT.replace('engine = "threads"', 'engine = "ray"'))
    with pytest.raises(RunDirectoryError, match=r"engine = 'threads', not 'batched'"):
        reject_other_experiment(path, TEXT.replace('engine = "threads"', 'engine = "batched"'))


@pytest.mark.parametrize("change", ["workers = 7", "checkpoint_every = 9"])
def test_keys_that_change_no_round_may_differ(tmp_path: Path, change: str) -> None:
    key = change.split()[0]
    lines = [change if line.startswith(f"{key} =") else line for line in TEXT.splitlines()]
    assert "\n".join(lines) != TEXT
    reject_other_experiment(write(tmp_path / "run"), "\n".join(lines))


def test_further_keys_may_differ_where_the_caller_says_so(tmp_path: Path) -> None:
    path, other = write(tmp_path / "run"), TEXT.replace("seed = 0", "seed = 1")
    with pytest.raises(RunDirectoryError, match="seed = 0, not 1"):
        reject_other_experiment(path, other)
    reject_other_experiment(path, other, ["seed"])


def test_a_run_from_before_there_was_a_key_resumes_with_its_default(tmp_path: Path) -> None:
    path = write(tmp_path / "run")
    kept = [line for line in TEXT.splitlines() if not line.startswith("download_")]
    assert len(kept) == len(TEXT.splitlines()) - len(ADDED)
    (path / "experiment.toml").write_text("\n".join(kept))
    reject_other_experiment(path, TEXT)
    with pytest.raises(RunDirectoryError, match=r"download_bits = 32, not 8"):
        reject_other_experiment(path, TEXT.replace("download_bits = 32", "download_bits = 8"))


def test_a_run_is_created_once_and_then_resumed(tmp_path: Path) -> None:
    setting = tiny().build_setting()
    create_run(tmp_path, setting, TEXT, ["cfel", "run"]).close()
    assert RunDirectory.open(tmp_path).environment().command == ("cfel", "run")
    assert RunDirectory.open(tmp_path).fleet().seconds_budget == setting.budget.seconds
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        open_run(RunRequest(tmp_path, TEXT), setting)
    writer, checkpoint = open_run(RunRequest(tmp_path, TEXT, resume=True), setting)
    writer.close()
    assert checkpoint is None
