"""Run directories, watched while they grow."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from cfel.dashboard import RunWatcher, run_watcher
from cfel.errors import RunDirectoryError
from cfel.runlog import FleetDescription, PlanTable, RunWriter, describe_environment
from cfel.status import LinkStatus, Status
from tests.report.conftest import record, ring, write_run

TOML = 'name = "pier"\nseed = 1\n[rounds]\nglobal = 3\nedge = 2\ntarget = 0.9\n[scheme]\nname = "hcef"\n'


def start(path: Path, fleet: FleetDescription, toml: str = TOML) -> RunWriter:
    return RunWriter.create(
        path, experiment_toml=toml, fleet=fleet, environment=describe_environment(("cfel",))
    )


def plan(number: int, device: list[int], seconds: list[float], edge_round: list[int]) -> PlanTable:
    """ρ = 0.1 · (device + 1), θ = 1; everything else 2."""
    rows = len(device)
    twos = dict.fromkeys(("mu", "alpha", "nu", "power", "joules"), np.full(rows, 2.0))
    return PlanTable(
        round=number,
        edge_round=np.array(edge_round),
        device=np.array(device),
        cluster=np.zeros(rows),
        rho=0.1 * (np.array(device) + 1),
        theta=np.ones(rows),
        steps=np.ones(rows),
        seconds=np.array(seconds),
        **twos,
    )


def test_a_run_as_it_grows(tmp_path: Path) -> None:
    """Two clusters of two; device 3 is away in the last edge round of round 1."""
    watcher = RunWatcher(tmp_path)
    assert watcher.snapshot() == Status(node=tmp_path.name, source="simulation")
    assert not watcher.refresh()
    with start(tmp_path, ring(2, 2, 1000.0, 100.0)) as writer:
        assert watcher.refresh()
        before = watcher.snapshot()
        assert (before.phase, before.round, before.rounds, before.name) == ("training", 1, 3, "pier")
        assert [device.state for cluster in before.clusters for device in cluster.devices] == ["idle"] * 4
        writer.append(
            record(1, 0.5, 10.0, 20.0, straggler=2, slowest_cluster=1, device_accuracy_mean=0.4),
            plan(1, [0, 1, 2, 3, 0, 1, 2], [1.0] * 4 + [3.0, 4.0, 5.0], [0] * 4 + [1] * 3),
        )
        assert watcher.refresh()
        status = watcher.snapshot()
        assert (status.round, status.seconds, status.joules, status.straggler) == (2, 10.0, 20.0, 2)
        assert (status.seconds_budget, status.joules_budget, status.target) == (1000.0, 100.0, 0.9)
        devices = [device for cluster in status.clusters for device in cluster.devices]
        assert [device.state for device in devices] == ["done", "done", "done", "absent"]
        assert [device.seconds for device in devices] == [3.0, 4.0, 5.0, None]
        assert devices[1].rho == pytest.approx(0.2)
        assert (devices[1].theta, devices[1].mu, devices[1].nu) == (1.0, 2.0, 2.0)
        assert status.clusters[0].rho_mean == pytest.approx(0.15)
        assert [point.accuracy for point in status.history] == [0.5]
        assert not watcher.refresh()
        writer.append(record(2, None, 20.0, 40.0))
        writer.append(record(3, 0.8, 30.0, 60.0, device_accuracy_mean=0.6, personal_accuracy_mean=0.7))
    assert watcher.refresh()
    assert (watcher.snapshot().phase, watcher.snapshot().round) == ("finished", 3)
    assert watcher.snapshot().clusters == status.clusters
    # Where devices keep models of their own, these are what they use.
    assert [point.device_accuracy_mean for point in watcher.snapshot().history] == [0.4, None, 0.7]


def test_links_carry_their_weight(tmp_path: Path) -> None:
    """A ring of three: every weight is a third."""
    start(tmp_path, ring(3, 1, None, None)).close()
    links = RunWatcher(tmp_path).snapshot().links
    assert [(link.a, link.b) for link in links] == [(0, 1), (1, 2), (2, 0)]
    assert [link.weight for link in links] == pytest.approx([1 / 3] * 3)
    assert all(isinstance(link, LinkStatus) and link.up for link in links)


@pytest.mark.parametrize(
    ("rounds", "over"),
    [
        ("stop = 'rounds'", False),
        ("stop = 'budget'", True),
        ("stop = 'target'\ntarget = 0.4", True),
        ("stop = 'target'\ntarget = 0.6", False),
    ],
)
def test_a_run_may_end_before_its_last_round(tmp_path: Path, rounds: str, over: bool) -> None:
    with start(tmp_path, ring(2, 1, 5.0, None), f"[rounds]\nglobal = 9\n{rounds}\n") as writer:
        writer.append(record(1, 0.5, 10.0, 1.0))
    assert (RunWatcher(tmp_path).snapshot().phase == "finished") is over


def test_a_comparison_shows_the_newest_and_the_others_curves(tmp_path: Path) -> None:
    for age, (scheme, seed) in enumerate((("hcef", 0), ("cef", 0), ("cef", 1))):
        path = tmp_path / scheme / f"seed-{seed}"
        write_run(path, scheme, seed, [record(1, 0.1 * age, 1.0, 1.0)])
        os.utime(path / "rounds.jsonl", (1000.0 + age, 1000.0 + age))
    watcher = RunWatcher(tmp_path)
    status = watcher.snapshot()
    assert (status.scheme, status.unix_seconds) == ("CEF", 1002.0)
    assert status.node == f"{tmp_path.name}/cef/seed-1"
    assert [curve.name for curve in status.curves] == ["CEF, seed 0", "HCEF, seed 0"]
    os.utime(tmp_path / "hcef" / "seed-0" / "rounds.jsonl", (2000.0, 2000.0))
    assert watcher.refresh()
    assert watcher.snapshot().scheme == "HCEF"


def test_damage_is_reported_until_it_is_repaired(tmp_path: Path) -> None:
    write_run(tmp_path, "hcef", 0, [record(1, 0.5, 1.0, 1.0)])
    watcher = RunWatcher(tmp_path)
    log = tmp_path / "rounds.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b"nonsense\n")
    assert watcher.refresh()
    assert "rounds.jsonl, line 2: not a JSON object" in watcher.snapshot().problem
    assert watcher.snapshot().history
    assert not watcher.refresh()
    log.write_bytes(whole + b"torn, and so not there yet")
    assert watcher.refresh()
    assert (watcher.snapshot().problem, len(watcher.snapshot().history)) == ("", 1)


def test_of_many_devices_the_slowest_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four places for two clusters of three: two each."""
    monkeypatch.setattr(run_watcher, "MOST_DEVICES", 4)
    with start(tmp_path, ring(2, 3, None, None)) as writer:
        assert [len(cluster.devices) for cluster in RunWatcher(tmp_path).snapshot().clusters] == [2, 2]
        writer.append(record(1, 0.5, 1.0, 1.0), plan(1, [0, 1, 2, 3, 4], [7.0, 1.0, 9.0, 2.0, 3.0], [0] * 5))
    clusters = RunWatcher(tmp_path).snapshot().clusters
    assert [[device.device for device in cluster.devices] for cluster in clusters] == [[0, 2], [3, 4]]
    assert [cluster.size for cluster in clusters] == [3, 3]


def test_many_devices_and_a_round_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All devices are missing, so the plan table is empty: each cluster lists its first devices."""
    monkeypatch.setattr(run_watcher, "MOST_DEVICES", 4)
    with start(tmp_path, ring(2, 5, 1000.0, 100.0)) as writer:
        writer.append(record(1, 0.5, 10.0, 20.0), plan(1, [], [], []))
    clusters = RunWatcher(tmp_path).snapshot().clusters
    assert [[device.device for device in cluster.devices] for cluster in clusters] == [[0, 1], [5, 6]]
    assert {device.state for cluster in clusters for device in cluster.devices} == {"absent"}
    assert [cluster.rho_mean for cluster in clusters] == [None, None]


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"none is not a directory"):
        RunWatcher(tmp_path / "none")


def test_changes_come_when_something_changed(
    tmp_path: Path,
) -> None:
    async def play() -> int:
        watcher = RunWatcher(tmp_path)
        changes = watcher.changes(0.01)
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        write_run(tmp_path, "hcef", 0, [record(1, 0.5, 1.0, 1.0)])
        while not watcher.snapshot().history:
            await asyncio.wait_for(waiting, 30)
            waiting = asyncio.ensure_future(anext(changes))
        waiting.cancel()
        return len(watcher.snapshot().history)

    assert asyncio.run(play()) == 1
