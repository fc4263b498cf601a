"""A disk that takes no writes: nodes wait, say so once, and continue as if nothing had happened."""

import asyncio
import errno
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cfel import durable
from cfel.deployment import host as host_module
from cfel.deployment.host import ComputeThread, DiskHealth, wait_longer, write_until_done
from cfel.deployment.security.identity import Identity
from cfel.errors import DiskError
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, until
from tests.simulation.drive import timeless


class FullDisk:
    """Lets writes below some folders fail, for as long as they are listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.below: set[Path] = set()
        self.failed = 0
        self._sync = durable.sync_file
        monkeypatch.setattr(durable, "sync_file", self.sync_file)

    def sync_file(self, path: Path) -> None:
        """In place of the real one."""
        if self.below & set(path.parents):
            self.failed += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self._sync(path)


def lines_of(caplog: pytest.LogCaptureFixture, level: int) -> Counter[str]:
    """What was logged about the disk, by first word."""
    found = [each for each in caplog.records if each.name == host_module.__name__ and each.levelno == level]
    return Counter(each.getMessage().split()[0] for each in found)


def test_one_line_when_it_begins_and_one_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """Two kinds of files fail at different times: it is over when both are written."""
    clock = [0.0]
    health = DiskHealth(lambda: clock[0])
    for _ in range(5):
        health.note_failure("state", DiskError("cannot write state.bin: no space left"))
        health.note_failure("vote", DiskError("cannot write vote.json: no space left"))
        health.note_success("vote")
    assert health.problem == "cannot write state.bin: no space left (this node tries again by itself)"
    stuck = [health.is_stuck]
    clock[0] = 60.0
    stuck.append(health.is_stuck)
    health.note_failure("vote", DiskError("cannot write vote.json: no space left"))
    health.note_success("vote")
    stuck.append(health.is_stuck)
    health.note_success("state")
    assert stuck == [False, True, False]
    assert not health.is_stuck
    assert health.problem == ""
    assert [each.getMessage() for each in caplog.records] == [
        "cannot write state.bin: no space left (this node tries again by itself)",
        "the disk takes writes again after 60 s",
    ]


def test_waits_grow_up_to_a_limit() -> None:
    waits = wait_longer()
    assert [next(waits) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_only_what_the_system_did_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "FIRST_SECONDS", 0.001)
    failures = [DiskError("full"), DiskError("full")]

    def write() -> str:
        if failures:
            raise failures.pop()
        return "written"

    def fail() -> None:
        raise ZeroDivisionError

    async def play() -> None:
        compute = ComputeThread()
        health = DiskHealth(lambda: 0.0)
        assert await write_until_done(compute, health, "state", write) == "written"
        with pytest.raises(ZeroDivisionError):
            await write_until_done(compute, health, "state", fail)
        compute.close()

    asyncio.run(play())


def test_full_disks_stop_a_federation_for_a_while_and_change_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    simulated: list[dict[str, Any]],
) -> None:
    """Edge server 0 and device 1 can write nothing for some attempts; then all is as in the simulation."""
    disk = FullDisk(monkeypatch)
    monkeypatch.setattr(host_module, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(host_module, "MOST_SECONDS", 0.1)
    shown: list[str] = []

    async def play() -> list[dict[str, Any]]:
        async with Federation(deployed(), tmp_path) as federation:
            disk.below = {tmp_path / str(Identity("device", 1))}
            federation.start()
            await until("the device tries again", lambda: disk.failed >= 3)
            disk.below = {tmp_path / str(Identity("edge", 0))}
            disk.failed = 0
            await until("the edge server tries again", lambda: disk.failed >= 10)
            shown.append(federation.edges[0].take_snapshot().problem)
            disk.below = set()
            await federation.finished()
            shown.append(federation.edges[0].take_snapshot().problem)
            return timeless(federation.records())

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(play()) == simulated
    assert "no space left" in shown[0]
    assert shown[1] == ""
    assert lines_of(caplog, logging.ERROR) == {"cannot": 2}
    assert lines_of(caplog, logging.WARNING) == {"the": 2}
    assert not [each for each in caplog.records if each.exc_info]


def test_a_coordinator_that_cannot_write_leaves_the_role_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: list[dict[str, Any]]
) -> None:
    disk = FullDisk(monkeypatch)
    monkeypatch.setattr(host_module, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(host_module, "MOST_SECONDS", 0.1)
    monkeypatch.setattr(host_module, "STUCK_SECONDS", 0.3)

    async def play() -> list[dict[str, Any]]:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start()
            await until("somebody leads", lambda: federation.coordinator() is not None)
            first = federation.coordinator()
            disk.below = {tmp_path / f"edge-{first}"}
            await until("another one leads", lambda: federation.coordinator() not in (None, first))
            disk.below = set()
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == simulated
