"""Schedules of faults with whole nodes: no promise is broken, and planted bugs are found."""

import asyncio

import pytest

from tests.deployment.memory_federation import until
from tests.deployment.virtual_time import run_virtually
from tests.whole_federation.federation import HOME, WholeFederation, play, world
from tests.whole_federation.history import History, find_violations, records_are_equal_everywhere
from tests.whole_federation.schedule import DEVICES, EDGES, Schedule, draw_schedule


def test_a_run_goes_on_when_the_votes_of_all_edge_servers_are_deleted() -> None:
    """As an operator may do; the records that they store still say which terms there have been."""
    history = History(Schedule(0, True, ()), world(is_patient=True))

    async def run() -> int:
        async with WholeFederation(history.schedule, history) as federation:
            federation.start(*DEVICES)
            for _ in range(3):
                federation.start(*EDGES)
                await until("one leads", lambda: federation.coordinator() is not None)
                await asyncio.sleep(9.0)
                for edge in EDGES:
                    await federation.kill(edge)
            for edge in EDGES:
                del federation.disks[edge].files[HOME / str(edge) / "vote.json"]
            federation.start(*EDGES)
            await federation.finished(300.0)
            history.disks = {member: disk.files for member, disk in federation.disks.items()}
            return len(history.log(EDGES[0]))

    assert run_virtually(run()) == 3
    assert not list(records_are_equal_everywhere(history))
