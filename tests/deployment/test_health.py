"""What an edge server knows of the others and of its devices: who is there, who is late, what is wrong."""

import asyncio
import time
from pathlib import Path

import pytest
import torch

from cfel.deployment.health import (
    Absence,
    DevicePresence,
    InstanceWatch,
    InTouch,
    Lateness,
    PeerContacts,
    Stall,
    list_nodes,
)
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.device_requests import ExperimentOver, NextRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import UnreachableError
from cfel.learning.device_messages import DeviceOrder, Order
from cfel.learning.models.flat import FlatModel
from cfel.runlog import RoundRecord
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, MemoryClient
from tests.support.clock import Clock


def test_silence_makes_suspect_and_then_lost() -> None:
    """Asked every 2 s: suspect until first heard of and beyond 5 s of silence, lost beyond 10 s."""
    clock = Clock()
    contacts = PeerContacts([1, 2], 2.0, clock)
    assert [contacts.state(i) for i in range(3)] == ["alive", "suspect", "suspect"]
    contacts.note(Identity("edge", 1))
    contacts.note(Identity("device", 2))
    assert [contacts.state(i) for i in range(3)] == ["alive", "alive", "suspect"]
    clock.seconds = 6.0
    assert contacts.state(1) == "suspect"
    clock.seconds = 10.5
    assert contacts.find_lost() == [1, 2]
    contacts.note(Identity("edge", 2))
    assert contacts.find_lost() == [1]


def test_silence_beyond_gone_seconds_and_two_questions_makes_gone() -> None:
    """Asked every 2 s, so after 4 s at the earliest; without any answer, it counts from the start.

    Edge server 2 calls after 3 s, but does not answer.
    """
    clock = Clock()
    contacts = PeerContacts([1, 2], 2.0, clock)
    clock.seconds = 3.0
    contacts.note_answer(Identity("edge", 1))
    contacts.note(Identity("edge", 2))
    assert [contacts.is_gone(i, 1.0) for i in range(3)] == [False, False, False]
    clock.seconds = 4.5
    assert [contacts.is_gone(i, 1.0) for i in range(3)] == [False, False, True]
    assert not contacts.is_gone(2, 10.0)
    clock.seconds = 13.5
    assert [contacts.is_gone(i, 10.0) for i in range(3)] == [False, True, True]
    contacts.note_answer(Identity("edge", 1))
    assert not contacts.is_gone(1, 10.0)


def test_one_that_calls_for_long_but_does_not_answer_is_not_reachable() -> None:
    """Asked every 2 s: it counts after 10 s of calls without a break, so not right after a restart."""
    clock = Clock()
    contacts = PeerContacts([1, 2], 2.0, clock)
    clock.seconds = 30.0
    for _ in range(7):
        assert contacts.find_unreachable() == []
        clock.seconds += 2.0
        contacts.note(Identity("edge", 1))
        contacts.note_answer(Identity("edge", 2))
    assert contacts.find_unreachable() == [1]
    contacts.note_answer(Identity("edge", 1))
    assert contacts.find_unreachable() == []


def watch_instances(clock: Clock, names: str) -> InstanceWatch:
    """Instances that spoke for edge server 1, one a second; "-" for one that says nothing."""
    watch = InstanceWatch(clock)
    for name in names:
        watch.note(1, name.replace("-", ""))
        clock.seconds += 1.0
    return watch


def test_restarts_are_not_taken_for_a_second_process() -> None:
    assert watch_instances(Clock(), "aaabbbccc-cd--ddefghijklmnop").find_doubled() == []


def test_instances_that_come_back_are_two_processes_for_a_minute() -> None:
    """In "abaab" a and b come back: two returns are not enough, the third is."""
    clock = Clock()
    assert not watch_instances(clock, "abaab").is_doubled(1)
    watch = watch_instances(clock, "abaaba")
    assert watch.find_doubled() == [1]
    assert not watch.is_doubled(0)
    clock.seconds += 60.0
    assert watch.find_doubled() == []


def test_an_endless_supply_of_instances_takes_no_memory() -> None:
    watch = InstanceWatch(Clock())
    for number in range(1000):
        watch.note(1, str(number))
    watch.note(1, "0")
    assert not watch.is_doubled(1)
    assert len(watch._seen[1]) < 10


pytestmark = pytest.mark.long

MODEL = FlatModel(torch.zeros(1), torch.zeros(0))
SILENT, EDGE = Identity("device", 5), Identity("edge", 2)


def order(rho: float = 0.5, theta: float = 0.1) -> DeviceOrder:
    return Order(0, 0, 0, 5, rho, theta, 5, MODEL)


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


def test_a_device_between_two_requests_is_not_lost() -> None:
    """Lost after 10 s; rounds stop waiting at the same time."""
    clock = Clock()
    presence = DevicePresence((3, 4), 10.0, clock)
    assert 3 in presence
    assert 5 not in presence
    with presence.hold_request(3, "0.1"):
        assert presence.list_connected() == [3]
        clock.seconds = 60.0
        assert not presence.is_lost(3)
    assert presence.list_connected() == []
    clock.seconds = 69.0
    assert not presence.is_lost(3)
    clock.seconds = 71.0
    assert presence.is_lost(3)
    assert presence.is_gone(3)
    assert presence.version(3) == "0.1"
    assert presence.version(4) == ""


def test_one_that_never_came_is_lost_after_the_same_time() -> None:
    clock = Clock()
    presence = DevicePresence((0,), 10.0, clock)
    assert not presence.is_lost(0)
    clock.seconds = 11.0
    assert presence.is_lost(0)


def test_the_grace_period_is_not_shorter_than_a_reconnection() -> None:
    """Rounds need not wait at all, but the status gives a device 3 s."""
    clock = Clock()
    presence = DevicePresence((0,), 0.0, clock)
    clock.seconds = 2.0
    assert presence.is_gone(0)
    assert not presence.is_lost(0)


def test_a_second_process_differs_from_a_restart() -> None:
    """One overlap is a restart; three within a minute are two processes; a minute later it is forgotten."""
    clock = Clock()
    presence = DevicePresence((0,), 10.0, clock)
    with presence.hold_request(0, ""):
        for number in range(3):
            assert not presence.is_doubled(0), number
            with presence.hold_request(0, ""):
                clock.seconds += 10.0
        assert presence.is_doubled(0)
        clock.seconds += 60.0
        assert not presence.is_doubled(0)


def test_in_touch() -> None:
    assert InTouch(3, 2, ()).describe() == ""
    one = InTouch(3, 2, (2,))
    assert one.has_majority
    assert one.describe() == (
        "not in touch: edge-2; the others continue without; if it is gone for good, "
        "`cfel fleet remove edge 2`"
    )
    two = InTouch(3, 2, (1, 2))
    assert not two.has_majority
    assert two.describe().startswith("no majority: 1 of 3 edge servers are in touch, 2 are needed")
    assert "edge-1, edge-2" in two.describe()


def test_a_short_absence_is_no_problem() -> None:
    clock = Clock()
    absence = Absence(5.0, "nobody", clock)
    clock.seconds = 5.0
    assert absence.describe(is_there=False) == ""
    clock.seconds = 5.1
    assert absence.describe(is_there=False) == "nobody"
    assert absence.describe(is_there=True) == ""


def test_a_run_that_makes_no_progress_says_so() -> None:
    """After 30 s; the text stays the same while it lasts."""
    clock = Clock()
    stall = Stall(clock, clock)
    assert stall.describe(1, "training", [3]) == ""
    clock.seconds = 30.0
    assert stall.describe(1, "training", [3]) == ""
    clock.seconds = 31.0
    words = stall.describe(1, "training", [3])
    assert words == "no progress since 00:00:00 UTC: training, waits for device-3"
    clock.seconds = 300.0
    assert stall.describe(1, "training", [3]) == words
    assert stall.describe(2, "gossip", []) == ""


def test_slow_rounds_are_not_stalled() -> None:
    """A step of 100 s has been seen, so one of 200 s is not remarkable, and one of 301 s is."""
    clock = Clock()
    stall = Stall(clock, clock)
    stall.describe(1, "", [])
    clock.seconds = 100.0
    stall.describe(2, "", [])
    clock.seconds = 300.0
    assert stall.describe(2, "training", []) == ""
    clock.seconds = 401.0
    assert stall.describe(2, "training", []).endswith("training")


def test_lists_are_short() -> None:
    assert list_nodes("device", range(2)) == "device-0, device-1"
    assert list_nodes("device", range(10)).endswith("device-7 and 2 more")
