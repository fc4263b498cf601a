"""Edge servers trust each other, and name what cannot be: commands of others than the leader, and nonsense.

A coordinator that hangs is replaced, though its heartbeats go on.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.coordinator.calls import TermCalls
from cfel.deployment.election.rules import Heartbeat
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.edge_requests import ElectionRequest, EstimateCommand
from cfel.deployment.protocol.messages import Message
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError, StaleTermError
from cfel.runlog.records import parse_log
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, MemoryClient, claim_term, until, virtual_hosts
from tests.deployment.virtual_time import run_virtually
from tests.simulation.drive import timeless
from tests.support.memory_disk import MemoryDisk
from tests.support.raw_endpoint import raw_endpoint

EDGE, OTHER = Identity("edge", 0), Identity("edge", 2)


@pytest.mark.parametrize("term", [7, 8, 2**53])
def test_only_the_leader_of_its_term_commands(tmp_path: Path, term: int) -> None:
    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start(EDGE)
            await until("it is there", lambda: EDGE in federation.network.members)
            await claim_term(Identity("edge", 1), EDGE, 7, federation.network)
            calls = RemoteCalls(MemoryClient(OTHER, federation.network))
            with pytest.raises(StaleTermError, match=f"term {term}, .*(edge-1|nobody) .* 7"):
                await calls.call(EDGE, EstimateCommand(term, (0, 0, 0), (True,) * 6), 5)
            assert f"edge-2 sent a command of term {term}" in federation.edges[0].take_snapshot().problem

    asyncio.run(play())


def test_a_term_out_of_reach_is_rejected_and_its_sender_named(tmp_path: Path) -> None:
    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start(EDGE)
            await until("it is there", lambda: EDGE in federation.network.members)
            calls = RemoteCalls(MemoryClient(OTHER, federation.network))
            with pytest.raises(RejectedError, match="more than 1000000 terms"):
                await calls.call(EDGE, ElectionRequest(Heartbeat(2**53, 0.0)), 5)
            assert federation.edges[0].member.state.term < 1000
            assert "edge-2 sent a message of the election" in federation.edges[0].take_snapshot().problem

    asyncio.run(play())


def test_an_edge_server_that_answers_nonsense_is_left_out_and_named(tmp_path: Path) -> None:
    """Its answers to `plan` cannot be decoded, as those of another version: the others continue without."""
    experiment = deployed({"rounds": {"global": 2, "edge": 1}})

    async def play() -> int:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await until("one leads", lambda: federation.coordinator() is not None)
            leader = federation.coordinator()
            assert leader is not None
            wrong = Identity("edge", (leader + 1) % 3)

            async def answer(caller: Identity, message: Message) -> Message:
                del caller, message
                return Message(b"\xc1")

            federation.network.members[wrong]["plan"] = raw_endpoint("plan", ("edge",), answer)
            await federation.finished()
            shown = [node.take_snapshot().problem for node in federation.edges.values()]
            assert any(
                f"{wrong} answered plan with what is not used: not MessagePack" in each for each in shown
            )
            return len(federation.records())

    assert asyncio.run(play()) == 2


def test_a_coordinator_that_hangs_is_replaced(
    monkeypatch: pytest.MonkeyPatch, simulated: list[dict[str, Any]]
) -> None:
    """The calls of the first coordinator never return; its event loop, and so its heartbeats, go on."""
    hung: list[TermCalls] = []
    call_until = TermCalls._call_until

    async def call(self: TermCalls, edge: int, command: Any, deadline: float) -> Any:
        if not hung:
            hung.append(self)
        if self in hung:
            await asyncio.Event().wait()
        return await call_until(self, edge, command, deadline)

    monkeypatch.setattr(TermCalls, "_call_until", call)
    waits = {"join_seconds": 1.0, "gossip_seconds": 1.0, "round_seconds": 2.0}
    disk, home = MemoryDisk(), Path("/nowhere")

    async def play() -> list[dict[str, Any]]:
        hosts = virtual_hosts(disk, 0)
        async with Federation(deployed(**waits), home, make=hosts) as federation:
            federation.start()
            await until("one leads", lambda: federation.coordinator() is not None)
            first = federation.coordinator()
            await until("another leads", lambda: federation.coordinator() not in (None, first))
            await federation.finished()
        log = home / "edge-0" / "rounds.jsonl"
        return timeless(parse_log(log, disk.files[log]).records)

    assert run_virtually(play()) == simulated
    assert len(hung) == 1
