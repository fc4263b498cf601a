"""Whole nodes without a machine: virtual clock, memory for network and disk, no threads, seeded randomness.

Nothing in a node may touch time, files or threads behind its `Host`. Hours of federation then pass in
seconds, and the same seed gives the same history.
"""

import asyncio
import builtins
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from cfel.deployment.security.identity import Identity
from cfel.runlog.records import parse_log
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, Network, until, virtual_hosts
from tests.deployment.virtual_time import run_virtually
from tests.simulation.drive import timeless
from tests.support.memory_disk import MemoryDisk

HOME = Path("/nowhere")


def play(
    seed: int, *, kill: bool, begin: Callable[[], None] = lambda: None
) -> tuple[list[dict[str, Any]], float, dict[Path, bytes]]:
    """The log of one federation, its virtual seconds, and what is left on the disks."""
    disk = MemoryDisk()

    async def run() -> float:
        loop = asyncio.get_running_loop()

        network = Network(delay_seconds=0.01, chance=Random(seed))  # noqa: S311
        async with Federation(deployed(), HOME, network, virtual_hosts(disk, seed)) as federation:
            begin()
            federation.start()
            if kill:
                await until("one leads", lambda: federation.coordinator() is not None)
                leader = Identity("edge", federation.coordinator() or 0)
                log = HOME / "edge-0" / "rounds.jsonl"
                await until("a round is done", lambda: bool(disk.files.get(log)))
                await federation.kill(leader)
                await asyncio.sleep(5.0)
                federation.start(leader)
            await federation.finished(600.0)
        return loop.time()

    seconds = run_virtually(run())
    logs = [disk.files[HOME / f"edge-{i}" / "rounds.jsonl"] for i in range(3)]
    assert logs[0] == logs[1] == logs[2]
    return timeless(parse_log(HOME, logs[0]).records), seconds, disk.files


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets clocks and files of the machine fail."""

    def touch(*_: object, **__: object) -> NoReturn:
        raise AssertionError("behind its doors")

    # Log lines have the time of the machine, and nothing else depends on it. Loggers remember which levels
    # are on, so `disable` of their manager alone would come too late for those that have logged before.
    for name in list(logging.root.manager.loggerDict):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    clocks = ((time, "monotonic"), (time, "time"))
    for module, name in (*clocks, (os, "open"), (builtins, "open"), (os, "urandom")):
        monkeypatch.setattr(module, name, touch)


@pytest.mark.parametrize("kill", [False, True], ids=["left alone", "coordinator killed"])
def test_whole_nodes_run_without_a_machine(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    simulated: list[dict[str, Any]],
    kill: bool,
) -> None:
    """Also a coordinator that is killed and comes back changes nothing in the log."""
    caplog.set_level(logging.INFO)  # as nodes log
    with monkeypatch.context() as patched:
        play(0, kill=kill)  # imports what is imported late
        records, _, _ = play(1, kill=kill, begin=lambda: forbid(patched))
    assert records == simulated


def test_the_same_seed_gives_the_same_history() -> None:
    first, second, other = play(1, kill=True), play(1, kill=True), play(2, kill=True)
    assert first == second
    assert first[1] != other[1]
