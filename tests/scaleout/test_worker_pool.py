"""Workers and whole runs that are lost at a given moment, with a fake of Ray in this process."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from cfel.api.runs import PlannedRun, RunOptions, run_all, run_experiment
from cfel.errors import InputError, RunDirectoryError, ScaleoutError, StorageError
from cfel.runlog import RunDirectory
from cfel.tracking import TrackedRun
from tests.scaleout.conftest import on_ray
from tests.simulation.drive import records, timeless, tiny

pytest.importorskip("ray", reason="Ray is not installed")

if TYPE_CHECKING:
    from .fake_ray import FakeRay

REMEMBERING = tiny(compression={"error_feedback": True}, local={"estimator": "fresh"})


@pytest.mark.parametrize("deaths", [set(), {1}, {4, 5, 9}, set(range(2, 80, 7))], ids=str)
def test_lost_workers_do_not_change_the_log(fake_ray: "FakeRay", deaths: set[int]) -> None:
    fake_ray.deaths = deaths
    assert on_ray(REMEMBERING) == timeless(records(REMEMBERING))
    assert fake_ray.calls > max(deaths, default=0)


def test_fresh_estimates_keep_the_measured_curve(fake_ray: "FakeRay") -> None:
    """HCEF+ plans by `kept_energy`, which an update measures and a fresh estimate must not lose."""
    experiment = tiny(
        scheme={"name": "hcef_plus"}, local={"estimator": "fresh"}, budget={"share_of_cef": 0.6}
    )
    assert on_ray(experiment) == timeless(records(experiment))
    assert fake_ray.calls > 0


def test_a_job_that_kills_every_worker(fake_ray: "FakeRay") -> None:
    fake_ray.deaths = set(range(1, 1000))
    with pytest.raises(ScaleoutError, match="a job was lost 5 times"):
        on_ray(REMEMBERING)


def test_what_a_worker_raises_is_raised_here(fake_ray: "FakeRay", monkeypatch: pytest.MonkeyPatch) -> None:
    from cfel.scaleout.workers import DeviceWorker

    def reject(*_: object) -> None:
        raise InputError("theta of device 3")

    monkeypatch.setattr(DeviceWorker, "updates", reject)
    with pytest.raises(InputError, match="theta of device 3"):
        on_ray(REMEMBERING)
    assert fake_ray.calls > 0


@pytest.mark.parametrize("where", ["driver", "worker"])
def test_no_room_for_objects(fake_ray: "FakeRay", monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    from ray.exceptions import OutOfDiskError

    from cfel.scaleout.workers import DeviceWorker

    def full(*_: object) -> None:
        raise OutOfDiskError("Local disk is full")

    if where == "driver":
        fake_ray.putting = full
    else:
        monkeypatch.setattr(DeviceWorker, "updates", full)
    with pytest.raises(ScaleoutError, match="object store is full"):
        on_ray(REMEMBERING)


def test_other_versions_are_rejected(fake_ray: "FakeRay", monkeypatch: pytest.MonkeyPatch) -> None:
    from cfel.scaleout.workers import DeviceWorker, WorkerInfo

    monkeypatch.setattr(DeviceWorker, "ready", lambda _: WorkerInfo("there", 1, ("cfel 0.0", "torch 1.0")))
    with pytest.raises(ScaleoutError, match=r"there runs cfel 0\.0, torch 1\.0"):
        on_ray(REMEMBERING)
    assert fake_ray.calls == 0


def test_no_worker_at_all(fake_ray: "FakeRay") -> None:
    fake_ray.ready = False
    with pytest.raises(ScaleoutError, match=r"within 120 s; .*2 cores"):
        on_ray(REMEMBERING)


def sweep(folder: Path, engine: str = "ray") -> list[PlannedRun]:
    """Four small runs, which two cores do better side by side."""
    base = replace(REMEMBERING, simulation=replace(REMEMBERING.simulation, engine=engine))
    return [
        PlannedRun(f"seed {seed}", replace(base, seed=seed), folder / f"seed-{seed}") for seed in range(4)
    ]


@pytest.mark.long
def test_lost_runs_resume(fake_ray: "FakeRay", tmp_path: Path) -> None:
    """The first call asks the node whether it sees the folder; the second and fourth are runs."""
    fake_ray.deaths = {2, 4}
    said: list[str] = []
    rounds: list[str] = []
    options = RunOptions(notify=said.append, on_round=lambda name, _: rounds.append(name))
    run_all(sweep(tmp_path), tmp_path, options)
    assert len([line for line in said if "resumes from its last checkpoint" in line]) == 2
    assert sorted(rounds) == sorted(f"seed {seed}" for seed in range(4) for _ in range(3))
    for run in sweep(tmp_path / "threads", "threads"):
        expected = timeless(run_experiment(run.experiment, run.directory, RunOptions()))
        there = RunDirectory.open(tmp_path / run.directory.name)
        assert timeless(there.records()) == expected
        assert 'engine = "ray"' in there.experiment_toml()
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_kills_every_worker(fake_ray: "FakeRay", tmp_path: Path) -> None:
    fake_ray.deaths = set(range(2, 1000))
    with pytest.raises(ScaleoutError, match=r"seed \d: lost 5 times"):
        run_all(sweep(tmp_path), tmp_path, RunOptions())


def test_interrupted_runs_have_checkpoints(fake_ray: "FakeRay", tmp_path: Path) -> None:
    """Asked before the first run is handed out: nothing is begun."""
    with pytest.raises(KeyboardInterrupt):
        run_all(sweep(tmp_path), tmp_path, RunOptions(interrupted=lambda: True))
    assert fake_ray.calls <= 1
    assert not list(tmp_path.iterdir())


def test_no_node_sees_the_folder(
    fake_ray: "FakeRay", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cfel.scaleout import whole_runs

    monkeypatch.setattr(whole_runs, "_read_versions", lambda _: ())
    said: list[str] = []
    with pytest.raises(ScaleoutError, match="put it on shared storage"):
        run_all(sweep(tmp_path), tmp_path, RunOptions(notify=said.append))
    assert "does not see" in said[0]
    assert fake_ray.calls == 1


def test_a_run_that_cannot_be_done(fake_ray: "FakeRay", tmp_path: Path) -> None:
    runs = sweep(tmp_path)
    runs[1].directory.write_text("a file, where a directory should be")
    with pytest.raises(StorageError, match="seed-1"):
        run_all(runs, tmp_path, RunOptions())
    assert fake_ray.calls > 1


def test_no_run_starts_and_no_tracker_is_told_if_a_directory_is_in_use(
    fake_ray: "FakeRay", tmp_path: Path
) -> None:
    runs = sweep(tmp_path)
    run_experiment(tiny(), runs[1].directory, RunOptions())
    tracked: list[TrackedRun] = []

    def open_sink(run: TrackedRun) -> NoReturn:
        tracked.append(run)
        raise OSError

    with pytest.raises(RunDirectoryError, match="holds a run already"):
        run_all(runs, tmp_path, RunOptions(trackers={"list": open_sink}))
    assert tracked == []
    assert fake_ray.calls == 0


@pytest.mark.parametrize("compression", [{}, {"download_bits": 8}], ids=str)
@pytest.mark.parametrize("deaths", [set(), {1}, {2, 5}], ids=str)
def test_whole_clusters_have_the_log_of_threads(
    fake_ray: "FakeRay", deaths: set[int], compression: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing travels with devices, so one call trains a cluster: 4 rounds of 2 edge rounds of 3 clusters."""
    from cfel.scaleout import workers

    sections = {"local": {"momentum_state": "reset"}, "scheme": {"name": "hcef"}}
    experiment = tiny(sections, compression=compression)
    monkeypatch.setattr(workers, "is_even", lambda *_: True)
    monkeypatch.setattr(workers.DeviceWorker, "updates", None)
    fake_ray.deaths = deaths
    assert on_ray(experiment) == timeless(records(experiment))
    assert fake_ray.calls > max(deaths, default=0)


def test_what_devices_keep_travels_device_by_device(
    fake_ray: "FakeRay", monkeypatch: pytest.MonkeyPatch
) -> None:
    from cfel.scaleout import workers

    monkeypatch.setattr(workers, "is_even", lambda *_: True)
    monkeypatch.setattr(workers.DeviceWorker, "clusters", None)
    assert on_ray(REMEMBERING) == timeless(records(REMEMBERING))
    assert fake_ray.calls > 0
