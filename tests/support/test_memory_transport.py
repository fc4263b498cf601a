"""The transport without a network: what it keeps of a real one, and what it does to messages."""

import asyncio

import pytest

from cfel.deployment.protocol.messages import Body, Message
from cfel.deployment.security.identity import Identity
from cfel.errors import InputError, RejectedError, UnreachableError
from tests.deployment.virtual_time import run_virtually
from tests.support.memory_transport import LinkFaults, MemoryNetwork
from tests.support.raw_endpoint import raw_endpoint

EDGE, OTHER, DEVICE = Identity("edge", 0), Identity("edge", 1), Identity("device", 4)


def network(faults: LinkFaults | None = None, seed: int = 1) -> tuple[MemoryNetwork, list[tuple[float, int]]]:
    """`EDGE` serves "add" to devices and notes when it was called with what."""
    made = MemoryNetwork(seed, faults or LinkFaults())
    seen: list[tuple[float, int]] = []

    async def add(caller: Identity, message: Message) -> Message:
        value = int(message.header)
        seen.append((asyncio.get_running_loop().time(), value))
        if value == 13:
            raise RejectedError("13 is rejected")
        if value == 99:
            raise ZeroDivisionError
        return Message(str(value + caller.number).encode(), Body.hash(message.body.join()[::-1]))

    made.serve(EDGE, [raw_endpoint("add", ("device",), add, 3)])
    return made, seen


async def call(made: MemoryNetwork, value: int, body: bytes = b"", own: Identity = DEVICE) -> Message:
    return await made.client(own).send(EDGE, "add", Message(str(value).encode(), Body.hash(body)), 5.0)


def test_a_call_is_answered() -> None:
    made, _ = network()
    answer = run_virtually(call(made, 3, b"abc"))
    assert (answer.header, answer.body.join()) == (b"7", b"cba")


def test_rejections_are_those_of_the_real_transport() -> None:
    made, seen = network()
    with pytest.raises(RejectedError, match="13 is rejected"):
        run_virtually(call(made, 13))
    with pytest.raises(RejectedError, match="not for a edge"):
        run_virtually(call(made, 1, own=OTHER))
    with pytest.raises(RejectedError, match="too large"):
        run_virtually(call(made, 1, b"four"))
    with pytest.raises(RejectedError, match="no such method"):
        run_virtually(made.client(DEVICE).send(EDGE, "subtract", Message(), 1.0))
    with pytest.raises(UnreachableError, match="ZeroDivisionError"):
        run_virtually(call(made, 99))
    assert [value for _, value in seen] == [13, 99]
    assert [type(failure) for failure in made.failures] == [ZeroDivisionError]


def test_a_killed_member_is_noticed_at_once_a_cut_one_when_time_is_up() -> None:
    async def scenario() -> list[float]:
        made, _ = network()
        waits = []
        for killed in (False, True):
            if killed:
                made.leave(EDGE)
            else:
                made.part([DEVICE], [EDGE, OTHER])
            begin = asyncio.get_running_loop().time()
            with pytest.raises(UnreachableError):
                await call(made, 1)
            waits.append(asyncio.get_running_loop().time() - begin)
            made.restore_links()
        return waits

    assert run_virtually(scenario()) == [5.0, 0.0]


def test_a_way_back_that_is_cut_loses_the_answer_but_not_the_deed() -> None:
    made, seen = network()
    made.cut(EDGE, DEVICE)
    with pytest.raises(UnreachableError, match=r"no answer within 5.0 s"):
        run_virtually(call(made, 1))
    assert len(seen) == 1


def test_messages_are_lost_doubled_or_late_as_requested() -> None:
    made, seen = network(LinkFaults(drop=1.0))
    with pytest.raises(UnreachableError):
        run_virtually(call(made, 1))
    assert seen == []

    made, seen = network(LinkFaults(double=1.0))
    assert run_virtually(call(made, 1)).header == b"5"
    assert [value for _, value in seen] == [1, 1]

    made, seen = network(LinkFaults(seconds=(0.25, 0.25)))
    run_virtually(call(made, 1))
    assert seen == [(0.25, 1)]


def run_many(seed: int) -> list[tuple[float, int]]:
    """Forty calls a tenth of a second apart, over links that lose, double and delay."""
    made, seen = network(LinkFaults(drop=0.2, double=0.2, late=0.3, seconds=(0.01, 0.02)), seed)

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            for value in range(100, 140):
                group.create_task(attempt(value))
                await asyncio.sleep(0.1)

    async def attempt(value: int) -> None:
        try:
            await call(made, value)
        except UnreachableError:
            return

    run_virtually(scenario())
    return seen


def test_a_schedule_follows_from_its_seed_and_reorders() -> None:
    once = run_many(7)
    assert run_many(7) == once
    assert run_many(8) != once
    values = [value for _, value in once]
    assert values != sorted(values)
    assert len(set(values)) < len(values)
    assert len(set(values)) < 40


def test_impossible_faults_are_rejected() -> None:
    with pytest.raises(InputError, match="drop"):
        LinkFaults(drop=1.5)
    with pytest.raises(InputError, match="seconds"):
        LinkFaults(seconds=(0.2, 0.1))
