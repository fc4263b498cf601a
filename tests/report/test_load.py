"""Which runs a directory holds, and in which order."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cfel.errors import RunDirectoryError
from cfel.report.load import find_target, load_run, load_runs
from cfel.runlog import RoundRecord

MakeRun = Callable[..., None]
MakeRecord = Callable[..., RoundRecord]


def test_a_tree_is_read_by_scheme_and_seed(comparison: Path) -> None:
    """The paper's scheme first, then its baselines in its order; seeds rising within each."""
    runs = load_runs(comparison)
    schemes = ["hcef", "cef", "mll_sgd"]
    assert [(run.scheme, run.seed) for run in runs] == [
        (scheme, seed) for scheme in schemes for seed in (0, 1)
    ]
    assert runs[0].name == "ring of 8"
    assert len(runs[0].records) == 24


def test_a_single_run_works_too(comparison: Path) -> None:
    (run,) = load_runs(comparison / "hcef" / "seed-1")
    assert (run.scheme, run.seed, run.fleet.devices) == ("hcef", 1, 64)


def test_a_scheme_from_outside_comes_last(tmp_path: Path, make_run: MakeRun) -> None:
    for number, scheme in enumerate(["cef", "mine:build", "hcef", "alpha"]):
        make_run(tmp_path / str(number), scheme, 0, [])
    assert [run.scheme for run in load_runs(tmp_path)] == ["hcef", "cef", "alpha", "mine:build"]


def test_a_directory_without_runs_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no run"):
        load_runs(tmp_path)


def test_two_runs_of_one_scheme_and_seed_are_rows_of_their_folders(tmp_path: Path, make_run: MakeRun) -> None:
    for name in ("a", "b/seed-3"):
        make_run(tmp_path / name, "cef", 3, [])
    assert [(run.scheme, run.seed) for run in load_runs(tmp_path)] == [("a", 3), ("b", 3)]


def test_two_runs_of_one_row_and_seed_are_named(tmp_path: Path, make_run: MakeRun) -> None:
    """Both would count in every mean."""
    for name in ("seed-3", "seed-03"):
        make_run(tmp_path / "a" / name, "cef", 3, [])
    with pytest.raises(RunDirectoryError, match=r"a with seed 3: .*seed-03 and .*seed-3"):
        load_runs(tmp_path)


@pytest.mark.parametrize(("text", "words"), [("seed =", "is damaged"), ('seed = "x"', "seed: 'x'")])
def test_a_damaged_experiment_is_reported(tmp_path: Path, make_run: MakeRun, text: str, words: str) -> None:
    make_run(tmp_path, "cef", 0, [])
    (tmp_path / "experiment.toml").write_text(text)
    with pytest.raises(RunDirectoryError, match=words):
        load_run(tmp_path)


def test_the_target_comes_from_the_summary_or_the_experiments(tmp_path: Path, make_run: MakeRun) -> None:
    make_run(tmp_path / "a", "cef", 0, [])
    assert find_target(tmp_path, load_runs(tmp_path)) is None
    (tmp_path / "a" / "experiment.toml").write_text("[rounds]\ntarget = 0.5\n")
    assert find_target(tmp_path, load_runs(tmp_path)) == 0.5
    (tmp_path / "summary.json").write_text('{"target": 0.7}')
    assert find_target(tmp_path, load_runs(tmp_path)) == 0.7
