"""Rounds without a device would use a run up for nothing: the coordinator waits, and it is said why."""

import asyncio
from pathlib import Path

import pytest

from cfel.deployment.security.identity import Identity
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, until

EXPERIMENT = deployed(join_seconds=0.5, gone_seconds=0.3, election_seconds=0.2, round_seconds=5.0)


def edges(federation: Federation) -> list[Identity]:
    return [member for member in federation.everybody() if member.role == "edge"]


def devices(federation: Federation) -> list[Identity]:
    return [member for member in federation.everybody() if member.role == "device"]


def is_said(federation: Federation) -> bool:
    problems = [node.take_snapshot().problem for node in federation.edges.values()]
    return len(problems) == 3 and all("no device" in problem for problem in problems)


@pytest.mark.long
@pytest.mark.timeout(120)
def test_nothing_begins_without_a_device(tmp_path: Path) -> None:
    async def play() -> None:
        async with Federation(EXPERIMENT, tmp_path) as federation:
            federation.start(*edges(federation))
            await until("it is said", lambda: is_said(federation))
            assert not any(node.server.log.records for node in federation.edges.values())
            federation.start(*devices(federation))
            await federation.finished()
            assert {record.devices_taking_part for record in federation.records()} == {6}

    asyncio.run(play())


@pytest.mark.long
@pytest.mark.timeout(120)
def test_all_devices_are_gone_for_a_while(tmp_path: Path) -> None:
    """The edge round under way ends without them, and no other begins before one of them is back."""

    async def play() -> None:
        async with Federation(EXPERIMENT, tmp_path) as federation:
            federation.start()
            first = federation.edges
            await until("a round is done", lambda: any(n.server.log.records for n in first.values()))
            for gone in devices(federation):
                await federation.kill(gone)
            await until("it is said", lambda: is_said(federation))
            stood = max(node.server.state.position for node in first.values())
            await asyncio.sleep(1.0)
            assert max(node.server.state.position for node in first.values()) == stood
            federation.start(*devices(federation))
            await federation.finished()
            taking_part = [record.devices_taking_part for record in federation.records()]
            assert (len(taking_part), taking_part[-1]) == (3, 6)

    asyncio.run(play())


@pytest.mark.timeout(120)
def test_one_that_is_gone_for_good_holds_up_nobody_else(tmp_path: Path) -> None:
    """In round 2 only device 5 could take part, and it is gone: the round passes, and the run ends."""
    away = [[device, 1, 1] for device in range(5)]
    experiment = deployed(
        {"fleet": {"availability": {"away": away}}},
        join_seconds=0.5,
        gone_seconds=0.3,
        election_seconds=0.4,
        round_seconds=5.0,
    )

    async def play() -> list[int]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start(*(m for m in federation.everybody() if str(m) != "device-5"))
            await federation.finished()
            return [record.devices_taking_part for record in federation.records()]

    assert asyncio.run(play()) == [5, 0, 5]
