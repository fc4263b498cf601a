"""How long a round waits for a device, by hand, and a device that polls and never uploads."""

import asyncio
import time
from pathlib import Path

import pytest
import torch

from cfel.deployment.health.lateness import Lateness
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.device_requests import ExperimentOver, NextRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import UnreachableError
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.models.flat import FlatModel
from cfel.runlog import RoundRecord
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, MemoryClient

pytestmark = pytest.mark.long

MODEL = FlatModel(torch.zeros(1), torch.zeros(0))
SILENT, EDGE = Identity("device", 5), Identity("edge", 2)


def order(rho: float = 0.5, theta: float = 0.1) -> DeviceOrder:
    return DeviceOrder(0, 0, 0, 5, rho, theta, 5, MODEL)


def test_a_device_gets_a_multiple_of_what_it_took() -> None:
    """It took 4 s: 12 s; five times the steps or twice the share: 60 s or 24 s; others took 10 s: 30 s."""
    lateness = Lateness(100.0, 1.0)
    assert lateness.find_deadline(5, "update", order(), [0.1]) == 100.0
    lateness.note_answer(5, "update", order(rho=0.2), 4.0, late=False)
    assert lateness.find_deadline(5, "update", order(rho=0.2), []) == 12.0
    assert lateness.find_deadline(5, "update", order(rho=1.0), []) == 60.0
    assert lateness.find_deadline(5, "update", order(rho=0.1, theta=0.2), []) == 24.0
    assert lateness.find_deadline(5, "update", order(rho=0.1), [1.0, 10.0, 11.0]) == 30.0
    assert lateness.find_deadline(5, "estimate", order(), []) == 100.0


def test_the_slowest_of_its_last_rounds_counts_and_bounds_hold() -> None:
    lateness = Lateness(100.0, 20.0)
    for seconds in (50.0, 9.0, 1.0, 1.0, 1.0):
        lateness.note_answer(5, "update", order(), seconds, late=False)
    assert lateness.find_deadline(5, "update", order(), []) == 100.0
    lateness.note_answer(5, "update", order(), 1.0, late=False)
    assert lateness.find_deadline(5, "update", order(), []) == 27.0
    for _ in range(5):
        lateness.note_answer(5, "update", order(), 1.0, late=False)
    assert lateness.find_deadline(5, "update", order(), []) == 20.0


def test_an_answer_that_came_too_late_extends_the_next_deadline() -> None:
    """So a slow device whose work grew is missed once, and not for ever."""
    lateness = Lateness(100.0, 1.0)
    lateness.note_answer(5, "update", order(), 4.0, late=False)
    lateness.note_answer(5, "update", order(), 20.0, late=True)
    assert lateness.find_deadline(5, "update", order(), []) == 60.0


def test_who_is_late_again_and_again_is_left_out_and_tried_ever_less_often() -> None:
    """Late three times, it misses 1 round; then 3, 7 and so on. An update brings it back for good."""
    lateness = Lateness(100.0, 1.0)
    asked = []
    for number in range(20):
        if not lateness.is_left_out(5):
            asked.append(number)
            lateness.note_missing(5)
        lateness.finish_round()
    assert asked == [0, 1, 2, 4, 8, 16]
    assert lateness.find_deadline(5, "update", order(), [2.0]) == 20.0
    lateness.note_answer(5, "update", order(), 4.0, late=True)
    assert lateness.is_left_out(5)
    lateness.note_answer(5, "update", order(), 4.0, late=False)
    assert not lateness.is_left_out(5)


async def poll(client: MemoryClient) -> None:
    """Takes every order and does nothing about it."""
    known = ""
    while True:
        try:
            answer = await RemoteCalls(client).call(EDGE, NextRequest(known, "0"), 60)
        except UnreachableError:
            await asyncio.sleep(0.05)
            continue
        if isinstance(answer, ExperimentOver):
            return
        known = getattr(answer, "serial", known)


@pytest.mark.parametrize("answers_first", [False, True])
def test_a_device_that_never_uploads_stretches_few_rounds(tmp_path: Path, answers_first: bool) -> None:
    """It holds up the estimates and two or three rounds of six; then it is left out for ever longer.

    If it was honest for a while, its deadline is far below `round_seconds`.
    """
    experiment = deployed(
        {"rounds": {"global": 9 if answers_first else 6, "edge": 1}},
        round_seconds=60.0 if answers_first else 2.0,
        gone_seconds=2.0,
    )

    async def play() -> tuple[list[RoundRecord], float]:
        async with Federation(experiment, tmp_path) as federation:
            honest = [member for member in federation.everybody() if member != SILENT]
            federation.start(*federation.everybody() if answers_first else honest)
            if answers_first:
                while (federation.edges.get(0) is None) or federation.edges[0].server.log.last_round < 3:
                    await asyncio.sleep(0.005)
                await federation.kill(SILENT)
            began = time.monotonic()
            silent = asyncio.create_task(poll(MemoryClient(SILENT, federation.network)))
            await federation.finished(100.0)
            silent.cancel()
            return federation.records(), time.monotonic() - began

    lines, seconds = asyncio.run(play())
    assert lines[-1].devices_taking_part == 5
    if answers_first:
        assert seconds < 45
    else:
        waited = [line.wall_seconds >= 2.0 for line in lines]
        assert waited[:2] == [True, True]
        assert sum(waited) <= 3
