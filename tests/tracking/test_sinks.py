"""Each sink with the real package, offline; a package that is not installed is skipped."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cfel.runlog import RoundRecord
from cfel.tracking import TrackedRun, choose_trackers, follow_run

# Warnings of the packages are their own. On a busy machine, MLflow needs minutes for a new database.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]


@pytest.fixture
def interrupted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_run: Callable[..., None],
    make_record: Callable[..., RoundRecord],
) -> Callable[[str], TrackedRun]:
    """Tracks a run that is interrupted after round 2, resumed, and done after round 3."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cfel.tracking.FINISH_SECONDS", 250.0)
    folders = {
        "WANDB_DIR": "wandb",
        "TRACKIO_DIR": f"{tmp_path}/trackio",
        "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
    }
    for name, value in folders.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_MODE", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)

    def track(name: str) -> TrackedRun:
        records = [make_record(n, 0.1 * n, 10.0 * n, 5.0 * n) for n in (1, 2, 3)]
        run = TrackedRun("my project", "cef (seed 4)", tmp_path / "run", {"rounds.global": 3, "seed": 4})
        trackers = choose_trackers([name])
        messages: list[str] = []
        make_run(run.directory, "cef", 4, records[:2])
        with pytest.raises(KeyboardInterrupt), follow_run(run, trackers, messages.append):
            raise KeyboardInterrupt
        with (run.directory / "rounds.jsonl").open("a") as stream:
            stream.write(records[2].to_json_line())
        with follow_run(run, trackers, messages.append) as put:
            put(records[2])
        assert messages == []
        return run

    return track


def test_tensorboard(interrupted: Callable[[str], TrackedRun]) -> None:
    """The file grows with the run, and TensorBoard reads it."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = interrupted("tensorboard")
    events = reader.EventAccumulator(str(run.directory / "tensorboard" / "cef" / "seed-4")).Reload()
    found = events.Scalars("cfel/accuracy")
    assert [each.step for each in found] == [1, 2, 3]
    assert [each.value for each in found] == pytest.approx([0.1, 0.2, 0.3])
    assert [each.wall_time for each in found] == [10.0, 20.0, 30.0]


@pytest.mark.long
def test_mlflow(interrupted: Callable[[str], TrackedRun]) -> None:
    mlflow = pytest.importorskip("mlflow")
    interrupted("mlflow")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("my project").experiment_id])
    assert (run.info.run_name, run.info.status) == ("cef (seed 4)", "FINISHED")
    assert run.data.params == {"rounds.global": "3", "seed": "4"}
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert {each.step: each.value for each in history} == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})
    assert len(history) == 3
    assert run.data.metrics["summary.final_accuracy"] == pytest.approx(0.3)
    assert {each.path for each in client.list_artifacts(run.info.run_id)} >= {"rounds.jsonl"}


@pytest.mark.long
def test_wandb(interrupted: Callable[[str], TrackedRun], tmp_path: Path) -> None:
    """Offline: two directories of one run, which `wandb sync` joins; the second has the third round."""
    pytest.importorskip("wandb")
    interrupted("wandb")
    first, second = sorted((tmp_path / "wandb").glob("**/*.wandb"))
    assert first.name == second.name
    rounds = [[each["round"] for each in _read_wandb(path)] for path in (first, second)]
    assert rounds == [["1", "2"], ["3"]]
    assert (second.parent / "files" / "rounds.jsonl").exists()


def _read_wandb(path: Path) -> list[dict[str, str]]:
    """The rows of an offline run; the package itself only writes such files."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    rows = []
    for content in _read_leveldb_log(path.read_bytes()):
        record = messages.Record.FromString(content)
        if record.HasField("history"):
            items = record.history.item
            rows.append({"/".join(item.nested_key) or item.key: item.value_json for item in items})
    return rows


def _read_leveldb_log(content: bytes, block: int = 32768, header: int = 7) -> Iterator[bytes]:
    """Records in blocks, in chunks of type 1 (whole), 2 (first), 3 (middle) or 4 (last), after a header."""
    place, parts = header, b""
    while place + header <= len(content):
        if block - place % block < header:
            place += block - place % block
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + header : place + header + size]
        place += header + size
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.mark.long
def test_trackio(interrupted: Callable[[str], TrackedRun]) -> None:
    trackio = pytest.importorskip("trackio")
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    interrupted("trackio")
    (run,) = trackio.Api().runs("my project")
    assert run.name == "cef (seed 4)"
    rows = [row for row in storage.get_logs("my project", run.name) if row.get("accuracy") is not None]
    assert {row["step"]: row["accuracy"] for row in rows} == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})
    assert len(rows) == 3
