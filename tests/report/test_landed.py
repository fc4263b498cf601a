"""A landed study holds the same runs as the directories it came from."""

import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import cfel
from cfel.errors import InputError, RunDirectoryError, StorageError
from cfel.report.landed import land_study, unpack_study
from cfel.report.load import Run, load_all, load_run, load_runs, load_tree
from cfel.runlog import RunWriter, describe_environment
from tests.report.conftest import record, ring, write_run

EXPERIMENT = """name = "{name}"
seed = {seed}

[scheme]
name = "cef"

[scheme.options]
{option}

[budget]
seconds = {seconds}
"""


def write_tree(out: Path) -> Path:
    """Runs that differ in what a run can differ in: options, kinds of numbers, fleets, commands, fields."""
    odd = {"loss": float("nan"), "violations": ("too slow", "β"), "metrics": {"f1": 0.5}, "straggler": 3}
    runs = {
        "2/cef/seed-0": ("", "1", ring(3, 2, 1000.0, 100.0), [record(1, 0.3, 1.0, 2.0)]),
        "2/cef/seed-1": ("horizon = 5", "1.0", ring(3, 2, None, 7.0), [record(1, None, 1.5, 2.0, **odd)]),
        "10/cef/seed-0": ("horizon = 5.0", "1", ring(4, 1, 9.0, None), []),
    }
    for place, (option, seconds, fleet, records) in runs.items():
        toml = EXPERIMENT.format(name="study", seed=place[-1], option=option, seconds=seconds)
        environment = describe_environment(
            ("/opt/bin/cfel", "run", "it's.toml", "--out", f"/somewhere/{place}")
        )
        with RunWriter.create(
            out / place, experiment_toml=toml, fleet=fleet, environment=environment
        ) as writer:
            for each in records:
                writer.append(each)
    return out


def describe(run: Run) -> str:
    """Everything in a run; as text, in which 1 and 1.0 differ and not-a-number equals itself."""
    words = (
        run.name,
        run.scheme,
        run.seed,
        run.target,
        run.records,
        run.fleet,
        tomllib.loads(run.experiment_toml),
    )
    return repr(words)


def test_all_runs_are_the_same(tmp_path: Path) -> None:
    out, study = write_tree(tmp_path / "out"), tmp_path / "study"
    files = {file.name for file in land_study(out, study)}
    assert files == {"rounds.parquet", "runs.json", "experiment.toml"}
    before, after = load_tree(out), load_tree(study)
    assert list(before) == list(after)
    assert [describe(run) for run in before.values()] == [describe(run) for run in after.values()]
    assert after["2/cef/seed-0"].environment.command == ("cfel", "run", "it's.toml", "--out", "PATH")
    assert tomllib.loads((study / "experiment.toml").read_text()) == {
        "name": "study",
        "scheme": {"name": "cef"},
    }
    table = pq.read_table(study / "rounds.parquet")
    assert table.column("run").to_pylist() == ["2/cef/seed-0", "2/cef/seed-1"]
    assert "personal_loss" not in table.column_names


def test_a_part_of_a_study_is_found_by_its_path(tmp_path: Path) -> None:
    study = tmp_path / "study"
    land_study(write_tree(tmp_path / "out"), study)
    assert [run.seed for run in load_runs(study / "2")] == [0, 1]
    assert [run.directory.path for run in load_all(study / "10")] == [study / "10" / "cef" / "seed-0"]
    assert load_run(study / "2" / "cef" / "seed-1").fleet.joules_budget == 7.0
    # Three runs of CEF, two of them with seed 0.
    assert [(run.scheme, run.seed) for run in load_runs(study)] == [("10/cef", 0), ("2/cef", 0), ("2/cef", 1)]
    with pytest.raises(RunDirectoryError, match="holds no run"):
        load_runs(study / "1")
    with pytest.raises(RunDirectoryError, match="holds no run of this name"):
        load_run(study / "2" / "cef")
    # A folder that exists is not a place in the study.
    write_run(study / "new" / "seed-0", "hcef", 0, [record(1, 0.5, 1.0, 1.0)])
    assert [run.scheme for run in load_runs(study / "new")] == ["hcef"]


def test_run_directories_can_be_written_again(tmp_path: Path) -> None:
    study, again = tmp_path / "study", tmp_path / "again"
    land_study(write_tree(tmp_path / "out"), study)
    assert len(unpack_study(study, again)) == 3
    assert [describe(run) for run in load_tree(again).values()] == [
        describe(run) for run in load_tree(study).values()
    ]
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        unpack_study(study, again)
    with pytest.raises(RunDirectoryError, match="not a landed study"):
        unpack_study(again, tmp_path / "more")


def test_the_interface_loads_a_study(tmp_path: Path) -> None:
    write_run(tmp_path / "out" / "cef" / "seed-0", "cef", 0, [record(1, 0.5, 1.0, 1.0)])
    land_study(tmp_path / "out", tmp_path / "study")
    found = cfel.load(tmp_path / "study")
    assert isinstance(found, cfel.Comparison)
    assert [run.run.scheme for run in found.runs] == ["cef"]


def test_nothing_to_land(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no run directories to land"):
        land_study(tmp_path, tmp_path / "study")


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "out" / "a", "cef", 0, [record(1, 0.5, 1.0, 1.0, wire_bytes=2**70)])
    with pytest.raises(InputError, match="wire_bytes: a value does not fit"):
        land_study(tmp_path / "out", tmp_path / "study")


@pytest.mark.parametrize("name", ["rounds.parquet", "runs.json", "experiment.toml"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    study = tmp_path / "study"
    land_study(write_tree(tmp_path / "out"), study)
    (study / name).write_bytes(b'{"runs": [{}]}')
    with pytest.raises(StorageError, match=name):
        load_tree(study)
