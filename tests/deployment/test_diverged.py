"""Training that diverges is shown to the operator; a run in which nobody can train any more ends."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.device import agent as device_agent
from cfel.deployment.security.identity import Identity
from cfel.errors import AllDivergedError, DivergedError
from cfel.learning.device_messages import DeviceOrder
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, until


def diverge_at(monkeypatch: pytest.MonkeyPatch, name: str, *devices: int) -> None:
    """Has these devices diverge in all rounds."""
    work = getattr(device_agent, name)

    def diverge(order: DeviceOrder, *others: Any) -> Any:
        if order.device not in devices:
            return work(order, *others)
        raise DivergedError(
            "the loss of local step 1 is nan",
            device=order.device,
            global_round=order.global_round,
            edge_round=order.edge_round,
            learning_rate=1.0,
        )

    monkeypatch.setattr(device_agent, name, diverge)


def find_diverged(federation: Federation) -> list[int]:
    """The devices of edge server 2 that diverged, as its status says."""
    if 2 not in federation.edges:
        return []
    devices = federation.edges[2].take_snapshot().clusters[2].devices
    return [each.device for each in devices if each.state == "diverged"]


def test_the_others_continue_and_the_operator_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No round waits for device 5 longer than it takes to diverge, though a deadline is 20 s."""
    diverge_at(monkeypatch, "device_update", 5)

    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start()
            await until("its state shows it", lambda: 5 in find_diverged(federation))
            await federation.finished(15.0)
            assert {line.devices_taking_part for line in federation.records()} == {5}
            assert "training diverged at device-5" in federation.edges[2].take_snapshot().problem
            assert "diverged" not in federation.edges[0].take_snapshot().problem

    asyncio.run(play())
    assert "device 5 diverged in round 1.1: the loss of local step 1 is nan" in caplog.text


@pytest.mark.parametrize("phase", ["device_update", "device_estimate"])
def test_a_run_in_which_all_diverge_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    diverge_at(monkeypatch, phase, *range(6))

    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start()
            edges = [federation.tasks[Identity("edge", i)] for i in range(3)]
            done, _ = await asyncio.wait(edges, timeout=15.0)
            assert len(done) == 3
            for task in done:
                with pytest.RaisesGroup(pytest.RaisesExc(AllDivergedError, match="local.learning_rate = ")):
                    task.result()
            assert all(not node.server.log.records for node in federation.edges.values())
            for edge in range(3):
                federation.tasks.pop(Identity("edge", edge))

    asyncio.run(play())


def test_all_but_one_do_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverge_at(monkeypatch, "device_update", 0, 1, 2, 3, 4)

    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start()
            await federation.finished(15.0)
            assert {line.devices_taking_part for line in federation.records()} == {1}

    asyncio.run(play())
