"""A coordinator that fails: the log says why, it resigns, and another edge server takes over."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.coordinator.coordinator import Coordinator
from cfel.deployment.coordinator.state import CoordinatorState
from cfel.deployment.election import member as member_module
from cfel.deployment.election.member import Member, scale_timing
from cfel.deployment.election.rules import (
    Electorate,
    LeaderChanged,
    Resign,
    Role,
    Tick,
    Vote,
    VoteRequest,
    is_leading,
    next_tick_at,
    step,
)
from cfel.deployment.host import DiskHealth, make_host
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.edge_requests import ElectionRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import DiskError
from tests.deployment.conftest import deployed
from tests.deployment.election.test_rules import elected
from tests.deployment.memory_federation import Federation
from tests.simulation.drive import timeless
from tests.support.memory_transport import MemoryNetwork


def test_a_member_that_resigns_pauses_and_keeps_its_vote() -> None:
    """Elected at 11 s, it resigns at 12 s for 5 s: no leader, same term and vote, silent until 17 s."""
    after, actions = step(elected(), Resign(5.0), 12.0, 0.5)
    assert actions == (LeaderChanged(1, None),)
    assert (after.role, after.vote, next_tick_at(after)) == (Role.FOLLOWER, Vote(1, 0), 17.0)
    assert not is_leading(after, 12.0)
    assert step(after, Tick(), 16.9, 0.5) == (after, ())
    assert step(after, Resign(5.0), 13.0, 0.5) == (after, ())


def test_after_an_unexpected_failure_another_edge_server_leads(
    tmp_path: Path,
    simulated: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first two to plan the second round fail; the third does not, and nothing else is different."""
    failed: list[int] = []
    planned = Coordinator._plan

    async def fail_at_first(self: Coordinator, control: CoordinatorState) -> CoordinatorState:
        if control.control.rounds_done == 1 and len(failed) < 2 and self._number not in failed:
            failed.append(self._number)
            raise ZeroDivisionError(f"at edge server {self._number}")
        return await planned(self, control)

    monkeypatch.setattr(Coordinator, "_plan", fail_at_first)
    shown: list[str] = []

    async def play() -> list[dict[str, Any]]:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start()
            while not failed:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
            shown.append(federation.edges[failed[0]].take_snapshot().problem)
            await federation.finished()
            return timeless(federation.records())

    with caplog.at_level(logging.ERROR, "cfel.deployment.coordinator.coordinator"):
        assert asyncio.run(play()) == simulated
    assert len(failed) == 2
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError] * 2
    assert "ZeroDivisionError" in shown[0]


def test_a_vote_that_cannot_be_stored_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again after the disk failed, it still has not voted; once the disk works, it votes."""

    def no_space(_disk: object, path: Path, *_: object) -> None:
        raise DiskError(f"cannot write {path}")

    asked = ElectionRequest(VoteRequest(9, 1.0, preliminary=False))

    async def play() -> None:
        own, disk, host = Identity("edge", 0), DiskHealth(time.monotonic), make_host()
        calls = RemoteCalls(MemoryNetwork(0).client(own))
        path = tmp_path / "vote.json"
        electorate = Electorate(0, (0, 1, 2), scale_timing(0.01))
        voter = Member(electorate, path, calls, host, disk, lambda *_: None)
        running = asyncio.create_task(voter.run())
        await asyncio.sleep(0.02)
        with monkeypatch.context() as patched:
            patched.setattr(member_module, "save_vote", no_space)
            for _ in range(2):
                await voter.receive(Identity("edge", 1), asked)
                assert voter.state.vote == Vote()
            assert "cannot write" in disk.problem
        await voter.receive(Identity("edge", 1), asked)
        assert voter.state.vote == Vote(9, 1)
        assert disk.problem == ""
        assert not running.done()
        running.cancel()
        host.compute.close()

    asyncio.run(play())
