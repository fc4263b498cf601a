"""What an edge server tells others: the plan under way, and its model without holding up its event loop."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cfel.control.scheme import RoundPlan
from cfel.deployment.coordinator.state import initial_coordinator_state
from cfel.deployment.host import STUCK_SECONDS
from cfel.deployment.protocol.edge_requests import (
    FetchCommand,
    MixCommand,
    NewestRequest,
    PeerModelRequest,
    PlanCommand,
    ProposeCommand,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import DiskError, RejectedError, UnreachableError
from cfel.learning.models.flat import FlatModel
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import claim_term, led_edge_server, until
from tests.deployment.samples import RECORD

EDGE, OTHER = Identity("edge", 0), Identity("edge", 1)


def test_a_successor_hears_of_the_plan_under_way(tmp_path: Path) -> None:
    """The round waits for its devices; the coordinator dies; the next one asks for the newest state."""

    async def play() -> None:
        async with led_edge_server(EDGE, OTHER, deployed(), tmp_path) as (federation, calls):
            assert (await calls.call(EDGE, NewestRequest(1), 5)).state is None
            plan = RoundPlan(np.full(6, 0.5), np.full(6, 0.25), 1.0, 1.0, 0.0, 0.0, 0.0, True, ())
            state = initial_coordinator_state(federation.world, 0.0)
            state = replace(state, plan=plan, available=(True,) * 6)
            under_way = asyncio.create_task(calls.call(EDGE, PlanCommand(1, (0, 0, 0), state), 60))
            await until("it runs", lambda: bool(federation.edges[0].server.running))
            newest = (await calls.call(EDGE, NewestRequest(1), 5)).state
            assert newest is not None
            assert newest.plan is not None
            assert newest.plan.rho.tolist() == [0.5] * 6
            under_way.cancel()

    asyncio.run(play())


def test_a_successor_that_is_two_gossip_steps_behind_hears_of_both(tmp_path: Path) -> None:
    """Else its record would say that this edge server has mixed in one of them only."""

    async def play() -> None:
        async with led_edge_server(EDGE, OTHER, deployed(), tmp_path) as (federation, calls):
            state, rows = initial_coordinator_state(federation.world, 0.0), ((1.0, 0.0, 0.0),) * 3
            steps = [MixCommand(1, (0, 0, step), rows, False, state) for step in range(2)]
            answers = [await calls.call(EDGE, each, 5) for each in steps]
            assert [await calls.call(EDGE, each, 5) for each in steps] == answers
            await federation.kill(EDGE)
            federation.start(EDGE)
            await until("it is back", lambda: EDGE in federation.network.members)
            await claim_term(OTHER, EDGE, 1, federation.network)
            assert [await calls.call(EDGE, each, 5) for each in steps] == answers

    asyncio.run(play())


def test_a_model_comes_with_the_uploads_in_it(tmp_path: Path) -> None:
    """Who takes it may be the only one left who knows; a device that moves would send its upload again."""

    async def play() -> None:
        async with led_edge_server(EDGE, OTHER, deployed(), tmp_path) as (federation, calls):
            server = federation.edges[0].server
            server.state = replace(server.state, last_used_rounds={1: (2, 0)})
            assert (await calls.call(EDGE, PeerModelRequest(None), 5)).last_used_rounds == {1: (2, 0)}

    asyncio.run(play())


def test_a_command_that_comes_after_the_end_is_not_an_internal_error(tmp_path: Path) -> None:
    """The node has closed its log and its thread, but still answers for a moment."""

    async def play() -> None:
        async with led_edge_server(EDGE, OTHER, deployed(), tmp_path) as (federation, calls):
            methods = federation.network.members[EDGE]
            await federation.kill(EDGE)
            federation.network.members[EDGE] = methods
            with pytest.raises(UnreachableError, match="has ended"):
                await calls.call(EDGE, ProposeCommand(1, (0, 0, 0), RECORD), 5)

    asyncio.run(play())


def test_an_edge_server_that_cannot_write_says_so_at_once(tmp_path: Path) -> None:
    """Otherwise the others would wait for it until the deadline of every command."""

    async def play() -> None:
        async with led_edge_server(EDGE, OTHER, deployed(), tmp_path) as (federation, calls):
            health = federation.edges[0]._health
            now = health._now
            health.note_failure("state", DiskError("no space left"))
            health._now = lambda: now() + STUCK_SECONDS + 1
            command = FetchCommand(1, (0, 0, 0), (0, 1, 2))
            with pytest.raises(RejectedError, match="disk takes no writes"):
                await calls.call(EDGE, command, 5)
            health.note_success("state")
            assert (await calls.call(EDGE, command, 30)).position == (0, 0, 0)

    asyncio.run(play())


@pytest.mark.parametrize("devices", [5, 7])
def test_a_plan_for_another_fleet_is_rejected(tmp_path: Path, devices: int) -> None:
    async def play() -> None:
        async with led_edge_server(EDGE, OTHER, deployed(), tmp_path) as (federation, calls):
            state = replace(initial_coordinator_state(federation.world, 0.0), available=(True,) * 6)
            rho = np.full(devices, 0.5)
            plan = RoundPlan(rho, rho, 1.0, 1.0, 0.0, 0.0, 0.0, True, ())
            with pytest.raises(RejectedError, match=rf"state\.plan\.rho: {devices} entries"):
                await calls.call(EDGE, PlanCommand(1, (0, 0, 0), replace(state, plan=plan)), 5)

    asyncio.run(play())


def test_a_model_for_neighbours_is_hashed_once_and_not_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    digest = FlatModel.sha256

    def watch(model: FlatModel) -> bytes:
        threads.append(threading.get_ident())
        return digest(model)

    async def play() -> None:
        async with led_edge_server(EDGE, OTHER, deployed(), tmp_path) as (federation, calls):
            monkeypatch.setattr(FlatModel, "sha256", watch)
            for _ in range(3):
                answer = await calls.call(EDGE, PeerModelRequest((0, 0, 0)), 5)
                assert answer.model.digest == digest(federation.world.start)

    asyncio.run(play())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
