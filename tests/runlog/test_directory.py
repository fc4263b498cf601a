"""Run directories: created, read, resumed and rejected."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cfel.errors import InputError, RunDirectoryError, StorageError
from cfel.runlog import (
    SCHEMA,
    Checkpoint,
    FleetDescription,
    PlanTable,
    RoundRecord,
    RunDirectory,
    RunWriter,
    describe_environment,
    holds_run,
)

MakeRun = Callable[[Path], RunWriter]
MakeRecord = Callable[..., RoundRecord]


def plan_of(number: int) -> PlanTable:
    """Two edge rounds of four devices; ρ counts the rows in eighths."""
    rows = 8
    zeros = np.zeros(rows)
    return PlanTable(
        round=number,
        edge_round=np.repeat([0, 1], 4),
        device=np.tile(np.arange(4), 2),
        cluster=np.tile([0, 0, 1, 1], 2),
        rho=np.arange(rows) / 8,
        theta=zeros,
        mu=zeros,
        alpha=zeros,
        nu=zeros,
        power=zeros,
        steps=np.arange(rows),
        seconds=zeros,
        joules=zeros,
    )


def test_everything_written_is_read_again(tmp_path: Path, make_run: MakeRun, make_record: MakeRecord) -> None:
    with make_run(tmp_path / "run") as writer:
        for number in (1, 2):
            writer.append(make_record(number), plan_of(number))
        writer.save_checkpoint(Checkpoint(2, {"w": np.arange(3)}, {"seed": 5}))
    run = RunDirectory.open(tmp_path / "run")
    assert run.records() == (make_record(1), make_record(2))
    assert run.experiment_toml() == "seed = 0\n"
    assert (run.fleet().devices, run.fleet().clusters, run.fleet().seconds_budget) == (4, 2, None)
    assert run.environment().command == ("cfel", "run")
    assert run.environment().packages["numpy"] == np.__version__
    assert run.plan_rounds() == (1, 2)
    np.testing.assert_array_equal(run.plan(2, 8).rho, np.arange(8) / 8)
    np.testing.assert_array_equal(run.plan(2, 8).steps, np.arange(8))
    checkpoint = run.checkpoint()
    assert checkpoint is not None
    assert (checkpoint.round, checkpoint.state) == (2, {"seed": 5})


def test_resume_cuts_the_log_to_the_checkpoint(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """Rounds 1–5 logged, checkpoint of 3: after resume the log ends with 3, and so do the plan tables."""
    with make_run(tmp_path) as writer:
        for number in range(1, 6):
            writer.append(make_record(number), plan_of(number))
            if number == 3:
                writer.save_checkpoint(Checkpoint(3, {}, {}))
    writer, checkpoint = RunWriter.resume(tmp_path)
    with writer:
        assert checkpoint is not None
        assert (checkpoint.round, writer.last_round) == (3, 3)
        assert RunDirectory.open(tmp_path).plan_rounds() == (1, 2, 3)
        writer.append(make_record(4, loss=9.0))
    assert [record.loss for record in RunDirectory.open(tmp_path).records()][-1] == 9.0


def test_resume_without_a_checkpoint_starts_over(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    with make_run(tmp_path) as writer:
        writer.append(make_record(1), plan_of(1))
    writer, checkpoint = RunWriter.resume(tmp_path)
    with writer:
        assert (checkpoint, writer.last_round) == (None, None)
    assert RunDirectory.open(tmp_path).records() == ()
    assert RunDirectory.open(tmp_path).plan_rounds() == ()


def test_an_incomplete_last_line_is_skipped_and_then_removed(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """A reader leaves the 20 incomplete bytes alone; the next writer removes them before it appends."""
    with make_run(tmp_path) as writer:
        writer.append(make_record(1))
        writer.save_checkpoint(Checkpoint(1, {}, {}))
    whole = (tmp_path / "rounds.jsonl").read_bytes()
    (tmp_path / "rounds.jsonl").write_bytes(whole + make_record(2).to_json_line().encode()[:20])
    assert RunDirectory.open(tmp_path).records() == (make_record(1),)
    assert len((tmp_path / "rounds.jsonl").read_bytes()) == len(whole) + 20
    writer, _ = RunWriter.resume(tmp_path)
    with writer:
        assert (tmp_path / "rounds.jsonl").read_bytes() == whole
        writer.append(make_record(2))
    assert len(RunDirectory.open(tmp_path).records()) == 2


def test_a_damaged_line_is_named_and_nothing_is_changed(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    with make_run(tmp_path) as writer:
        for number in (1, 2, 3):
            writer.append(make_record(number))
    lines = (tmp_path / "rounds.jsonl").read_bytes().split(b"\n")
    damaged = b"\n".join([lines[0], lines[1][:30], *lines[2:]])
    (tmp_path / "rounds.jsonl").write_bytes(damaged)
    with pytest.raises(RunDirectoryError, match=r"rounds\.jsonl, line 2: not "):
        RunDirectory.open(tmp_path).records()
    with pytest.raises(RunDirectoryError, match="line 2"):
        RunWriter.resume(tmp_path)
    assert (tmp_path / "rounds.jsonl").read_bytes() == damaged


def test_a_missing_round_is_named(tmp_path: Path, make_run: MakeRun, make_record: MakeRecord) -> None:
    with make_run(tmp_path) as writer:
        for number in (1, 2, 3):
            writer.append(make_record(number))
        with pytest.raises(RunDirectoryError, match="round 5 cannot follow round 3"):
            writer.append(make_record(5))
    lines = (tmp_path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "rounds.jsonl").write_bytes(lines[0] + lines[2])
    with pytest.raises(RunDirectoryError, match=r"line 2: round 3 .* round 1"):
        RunDirectory.open(tmp_path).records()


def test_a_checkpoint_ahead_of_the_log_is_rejected(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """Somebody cut the log by hand: resuming would leave a gap, so it is rejected."""
    with make_run(tmp_path) as writer:
        writer.append(make_record(1))
        with pytest.raises(InputError, match="the log ends with 1"):
            writer.save_checkpoint(Checkpoint(2, {}, {}))
        writer.save_checkpoint(Checkpoint(1, {}, {}))
    (tmp_path / "rounds.jsonl").write_bytes(b"")
    with pytest.raises(RunDirectoryError, match="round 1: lines were lost"):
        RunWriter.resume(tmp_path)


def test_a_run_is_not_overwritten(tmp_path: Path, make_run: MakeRun) -> None:
    make_run(tmp_path).close()
    assert holds_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        make_run(tmp_path)


def test_a_run_killed_while_it_was_made_can_be_made_again(tmp_path: Path, make_run: MakeRun) -> None:
    """Without rounds.jsonl nothing was ever logged, so there is nothing to lose."""
    make_run(tmp_path).close()
    (tmp_path / "rounds.jsonl").unlink()
    make_run(tmp_path).close()
    assert RunDirectory.open(tmp_path).records() == ()


def test_a_checkpoint_without_its_log_is_not_overwritten(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    with make_run(tmp_path) as writer:
        writer.append(make_record(1))
        writer.save_checkpoint(Checkpoint(1, {}, {}))
    (tmp_path / "rounds.jsonl").unlink()
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        make_run(tmp_path)


def _fail_at_the_last_checkpoint(writer: RunWriter, record: RoundRecord, error: Exception | None) -> None:
    """Replaces the checkpoint directory by a file, saves a checkpoint, and exits as requested."""
    with writer:
        writer.append(record)
        (writer.path / "checkpoint").rmdir()
        (writer.path / "checkpoint").write_text("")
        writer.save_checkpoint(Checkpoint(record.round, {"w": np.ones(1)}, {}))
        if error is not None:
            raise error


def test_a_failed_checkpoint_does_not_hide_what_went_wrong_before(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """Leaving because of an error notes the failed checkpoint on it; leaving in peace raises it."""
    with pytest.raises(KeyError, match="training") as caught:
        _fail_at_the_last_checkpoint(make_run(tmp_path / "a"), make_record(1), KeyError("training"))
    assert "last checkpoint could not be written" in caught.value.__notes__[0]
    with pytest.raises(StorageError, match="cannot write"):
        _fail_at_the_last_checkpoint(make_run(tmp_path / "b"), make_record(1), None)


def test_two_writers_at_once_are_rejected(tmp_path: Path, make_run: MakeRun) -> None:
    with (
        make_run(tmp_path),
        pytest.raises(RunDirectoryError, match="another process is writing this run"),
    ):
        RunWriter.resume(tmp_path)
    RunWriter.resume(tmp_path)[0].close()


def test_a_newer_schema_is_rejected_with_both_versions(tmp_path: Path, make_run: MakeRun) -> None:
    make_run(tmp_path).close()
    environment = json.loads((tmp_path / "environment.json").read_text())
    (tmp_path / "environment.json").write_text(json.dumps({**environment, "schema": SCHEMA + 1, "new": 1}))
    words = f"has schema {SCHEMA + 1}, this cfel reads up to schema {SCHEMA}"
    for call in (RunDirectory.open, RunWriter.resume):
        with pytest.raises(RunDirectoryError, match=words):
            call(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '{"schema": true}'])
def test_a_damaged_environment_is_reported(tmp_path: Path, make_run: MakeRun, text: str) -> None:
    make_run(tmp_path).close()
    (tmp_path / "environment.json").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"environment\.json is damaged"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpu": 7}, "cpu = 7"),
        ({"packages": {"torch": None}}, "packages"),
        ({"command": ["cfel", 1]}, r"command\[1\] = 1"),
        ({"modified": "no"}, "modified = 'no'"),
        ({"cores": -1}, "cores = -1"),
        ({"pythn": "3"}, "'pythn'; did you mean 'python'"),
    ],
)
def test_a_wrong_value_in_the_environment_is_named(
    tmp_path: Path, make_run: MakeRun, changes: dict[str, object], words: str
) -> None:
    make_run(tmp_path).close()
    environment = json.loads((tmp_path / "environment.json").read_text())
    (tmp_path / "environment.json").write_text(json.dumps(environment | changes))
    with pytest.raises(RunDirectoryError, match=rf"environment\.json is damaged: .*{words}"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster": [0, 0, 1, 1.5]}, r"cluster\[3\] = 1.5"),
        ({"cluster": 4}, "cluster = 4"),
        ({"edges": [[0, 1, 1]]}, r"edges\[0\]"),
        ({"mixing": [[0.5, "x"], [0.5, 0.5]]}, r"mixing\[0\]\[1\] = 'x'"),
        ({"seconds_budget": True}, "seconds_budget = True"),
    ],
)
def test_a_wrong_value_in_the_fleet_is_named(
    tmp_path: Path, make_run: MakeRun, changes: dict[str, object], words: str
) -> None:
    make_run(tmp_path).close()
    fleet = json.loads((tmp_path / "fleet.json").read_text())
    (tmp_path / "fleet.json").write_text(json.dumps(fleet | changes))
    with pytest.raises(RunDirectoryError, match=rf"fleet\.json is damaged: .*{words}"):
        RunDirectory.open(tmp_path).fleet()


def test_what_is_missing_is_named(tmp_path: Path, make_run: MakeRun) -> None:
    with pytest.raises(RunDirectoryError, match="absent does not exist"):
        RunDirectory.open(tmp_path / "absent")
    with pytest.raises(RunDirectoryError, match="holds no run"):
        RunDirectory.open(tmp_path)
    make_run(tmp_path).close()
    (tmp_path / "fleet.json").unlink()
    with pytest.raises(StorageError, match=r"fleet\.json: it does not exist"):
        RunDirectory.open(tmp_path).fleet()
    with pytest.raises(StorageError, match=r"00007\.parquet: it does not exist"):
        RunDirectory.open(tmp_path).plan(7, 8)
    (tmp_path / "plans" / "round-00007.parquet").write_bytes(b"garbage")
    with pytest.raises(RunDirectoryError, match=r"round-00007\.parquet is damaged"):
        RunDirectory.open(tmp_path).plan(7, 8)


def test_a_plan_of_another_round_is_rejected(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    with make_run(tmp_path) as writer, pytest.raises(InputError, match=r"plan\.round: 2"):
        writer.append(make_record(1), plan_of(2))


def test_columns_of_unequal_length_are_rejected() -> None:
    columns = {
        name: np.zeros(2) for name in ("edge_round", "device", "cluster", "theta", "mu", "alpha", "nu")
    }
    columns |= {name: np.zeros(2) for name in ("power", "steps", "seconds", "joules")}
    with pytest.raises(InputError, match="rho: shape"):
        PlanTable(round=0, rho=np.zeros(3), **columns)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster": (0, 2)}, r"cluster\[1\] = 2"),
        ({"edges": ((0, 5),)}, r"edges\[0\]"),
        ({"mixing": ((1.0,), (0.5, 0.5))}, r"mixing\[0\]: 1 weights"),
        ({"seconds_budget": -1.0}, "seconds_budget = -1.0"),
    ],
)
def test_a_fleet_that_does_not_fit_together_is_rejected(changes: dict[str, object], words: str) -> None:
    good: dict[str, object] = {"cluster": (0, 1), "edges": ((0, 1),), "mixing": ((0.5, 0.5), (0.5, 0.5))}
    with pytest.raises(InputError, match=words):
        FleetDescription(**{**good, **changes})  # type: ignore[arg-type]


def test_an_infinite_budget_is_no_limit() -> None:
    fleet = FleetDescription(cluster=(0,), edges=(), mixing=((1.0,),), seconds_budget=float("inf"))
    assert fleet.seconds_budget is None
    assert FleetDescription.from_json(fleet.to_json()) == fleet


def test_the_environment_names_the_machine() -> None:
    environment = describe_environment()
    assert environment.cores >= 1
    assert environment.cpu
    assert environment.packages["cfel"]
    assert environment.commit is None or len(environment.commit) == 40


def test_a_path_through_a_file_is_a_clear_error(tmp_path: Path, make_run: MakeRun) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="part of the path is a file"):
        make_run(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; see test_disk for a read-only mount")
def test_a_directory_without_permission_is_a_clear_error(tmp_path: Path, make_run: MakeRun) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="not writable"):
        make_run(tmp_path / "run")


def test_the_command_names_no_directories() -> None:
    """Directories of absolute paths often hold a user's name; relative paths do not."""
    words = [
        "/home/ada/bin/cfel",
        "run",
        "/home/ada/e.toml",
        "--set",
        "data.path=/srv/ada/cifar",
        "--out",
        "a/b",
    ]
    words += [
        "~/x",
        "--set=model.init='/home/ada/m.safetensors'",
        "--data",
        "/home/ada/data/",
        "../x/y",
        "1/2",
    ]
    assert describe_environment(words).command == (
        *("cfel", "run", "…/e.toml", "--set", "data.path=…/cifar", "--out", "a/b"),
        *("…/x", "--set=model.init='…/m.safetensors'", "--data", "…/", "../x/y", "1/2"),
    )
