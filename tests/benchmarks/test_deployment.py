"""The measurements of real processes: what is computed and printed; federations are made up."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import deployment as command
from benchmarks.__main__ import main
from benchmarks.child import find_parent, read_memory
from benchmarks.deployment import (
    Memory,
    MemoryGrowth,
    Overhead,
    compute_overhead,
    measure_loopback,
)
from benchmarks.federations import build_leaf_experiment, build_small_experiment
from cfel.control.scheme import make_empty_plan
from cfel.deployment.coordinator.state import FinishedEdgeRound, initial_coordinator_state
from cfel.deployment.measurement.measured_rounds import EdgeRoundMeasurements
from cfel.deployment.payloads import model_size
from cfel.deployment.protocol.device_requests import MeasurementReport
from cfel.rounds.kernel import DeviceWork
from tests.simulation.drive import tiny


def clocked(wall: float, trainings: list[float]) -> EdgeRoundMeasurements:
    """An edge round in which devices trained so long."""
    reported = tuple(
        MeasurementReport(1.0, 0.0, 1.0, 0.0, seconds, 0.0, "clock", "model") for seconds in trainings
    )
    return EdgeRoundMeasurements(wall, (wall,), reported)


def test_overhead_is_over_training_and_bytes() -> None:
    """Rounds of 5 and 7 s for 4 s of training and one second's worth of bytes: between 1 and 1.4."""
    world = tiny().build_world()
    devices = world.setting.fleet.devices
    plan, bits = make_empty_plan(devices), 8 * 1000
    work = tuple(DeviceWork(n, 1, bits, 0.0) for n in range(devices))
    size = devices * (model_size(world.start) + 1000)
    rounds = [clocked(wall, [1.0, 4.0, *[2.0] * (devices - 2)]) for wall in (99.0, 5.0, 7.0)]
    done = tuple(
        FinishedEdgeRound(r, (True,) * devices, plan, work, reported) for r, reported in enumerate(rounds)
    )
    found = compute_overhead(
        world, replace(initial_coordinator_state(world, 0.0), finished=done), float(size)
    )
    assert (found.wall_seconds, found.training_seconds, found.transfer_seconds) == (6.0, 4.0, 1.0)
    assert found.transferred_bytes == size
    assert found.ratio == pytest.approx(1.2)


def test_memory_of_this_process() -> None:
    """A hundred megabytes more are seen; a process that has gone has none."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("this system has no smaps_rollup")
    before = read_memory(os.getpid(), "Pss:")
    held = np.ones(100 * 2**20, dtype=np.uint8)
    assert read_memory(os.getpid(), "Pss:") - before > 90 * 2**20
    assert held.all()
    assert read_memory(os.getpid(), "Rss:") >= read_memory(os.getpid(), "Pss:")
    assert read_memory(2**22 + 1, "Rss:") == 0
    assert find_parent(os.getpid()) == os.getppid()
    assert find_parent(2**22 + 1) == 0


def test_loopback_carries_something() -> None:
    assert measure_loopback(2**22) > 0


def test_experiments_have_the_sizes_asked_for() -> None:
    leaf = build_leaf_experiment(6, 5)
    assert (leaf.fleet.devices, leaf.rounds.edge_rounds, leaf.deployment.conditions) == (8, 6, "measured")
    small = build_small_experiment(64, 8, 2).build_world()
    assert (small.setting.fleet.devices, small.setting.fleet.clusters) == (64, 8)


def test_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made_up = Overhead(
        8, 4.4, 3.8, 0.2, 250_000_000, 1.25e9, 1.1, {"check": 0.25}, {"train": 1.5, "hash": 0.5}
    )
    monkeypatch.setattr(command, "measure_overhead", lambda _rounds, _steps: made_up)
    monkeypatch.setattr(command, "measure_memory", lambda devices, edges: Memory(devices, edges, 5 * 2**30))
    monkeypatch.setattr(
        command, "measure_growth", lambda early, late: MemoryGrowth(early, 2**27, late, 2**27 + 2**20)
    )
    assert main(["deployment"]) == 0
    text = capsys.readouterr().out
    assert "1.100" in text
    assert all(words in text for words in ("check", "250 ms", "1,500 ms", "2,000 ms"))
    assert "peak memory of 64 devices and 8 edge servers: 5.00 GiB" in text.replace("\n", " ")
    assert main(["deployment", "--json", "--only", "flat"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["overhead"] is document["memory"] is None
    assert document["flat"]["growth"] == pytest.approx(1 + 1 / 128)
