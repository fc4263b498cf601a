"""Fleets that change while a federation runs: what it has logged, the simulator repeats bit for bit."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.host import Host
from cfel.deployment.node import ask_until_it_holds
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.edge_requests import ChangeRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.experiment import Experiment
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.membership import FleetChange, apply_changes, merge_losses, start_membership
from cfel.runlog import RoundRecord
from cfel.runlog.records import parse_log
from cfel.world import World
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, MemoryClient, Network, until
from tests.deployment.virtual_time import run_virtually
from tests.simulation.drive import outcomes, timeless
from tests.support.inline_compute import InlineCompute
from tests.support.memory_disk import MemoryDisk

HOME = Path("/nowhere")
OPERATOR = Identity("operator", 0)


SENT: Mapping[str, Mapping[str, Any]] = {
    "whole models": {},
    "differences between edge servers": {"topology": {"theta": 0.2, "bits": 8}},
    "differences to devices": {"compression": {"download_theta": 0.05, "download_bits": 8}},
}


@cache
def experiment(sent: str = "whole models") -> Experiment:
    """Devices take seconds for an edge round."""
    waits = {"round_seconds": 20.0, "gossip_seconds": 8.0, "gone_seconds": 6.0, "join_seconds": 60.0}
    return deployed(SENT[sent], **waits, election_seconds=1.5, linger_seconds=20.0, time_scale=0.02)


@cache
def world() -> World:
    return experiment().build_world()


class Changing(Federation):
    """A federation on a virtual clock, with an operator."""

    def __init__(
        self,
        asked: Experiment | None = None,
        built: World | None = None,
        network: Network | None = None,
    ) -> None:
        self.disks: dict[Identity, MemoryDisk] = {}
        super().__init__(asked or experiment(), HOME, network, self._host, built or world())
        self._count = 0

    def _host(self, member: Identity) -> Host:
        chance = random.Random(str(member))  # noqa: S311 (repeatable chance is the point)
        disk = self.disks.setdefault(member, MemoryDisk())
        return Host(disk, InlineCompute(), chance, asyncio.get_running_loop().time)

    async def ask(self, what: str, *, of: int = 0, **fields: Any) -> int:
        """Asks an edge server for a change, until it holds; returns its first round."""
        self._count += 1
        change = FleetChange(1, what, ticket=f"change {self._count}", **fields)
        calls = RemoteCalls(MemoryClient(OPERATOR, self.network))
        while True:
            answer = await calls.call(Identity("edge", of), ChangeRequest(change), 10)
            if answer.refused:
                raise RejectedError(answer.refused)
            if answer.round:
                return answer.round
            await asyncio.sleep(0.5)

    def log(self, edge: int = 0) -> list[RoundRecord]:
        """The rounds that an edge server has logged."""
        path = HOME / f"edge-{edge}" / "rounds.jsonl"
        return list(parse_log(path, self.disks[Identity("edge", edge)].files.get(path, b"")).records)

    def devices(self, edge: int) -> tuple[int, ...]:
        """The devices of an edge server now."""
        return self.edges[edge].devices.devices


def repeat(records: list[RoundRecord], asked: Experiment | None = None) -> list[dict[str, Any]]:
    """What the simulator makes of the changes and losses in a log."""
    found = tuple(change for record in records for change in record.changes)
    losses = merge_losses(loss for record in records for loss in record.losses)
    base = asked or experiment()
    changed = replace(base, fleet=replace(base.fleet, changes=found, losses=losses))
    return timeless([each.record for each in outcomes(changed)])


def play(
    operate: Callable[[Changing], Awaitable[None]],
    asked: Experiment | None = None,
    built: World | None = None,
    network: Network | None = None,
) -> tuple[Changing, list[RoundRecord]]:
    """A federation that an operator changes until it has ended, and its log."""

    async def run() -> tuple[Changing, list[RoundRecord]]:
        async with Changing(asked, built, network) as federation:
            federation.start()
            await until("one leads", lambda: federation.coordinator() is not None)
            await operate(federation)
            await federation.finished(600.0)
            return federation, max((federation.log(i) for i in federation.edges), key=len)

    # As in a node's own process: results must not depend on how many threads torch uses.
    prepare_process()
    prepare_thread()
    return run_virtually(run())


@pytest.mark.parametrize("sent", ["whole models", "differences to devices"])
def test_devices_come_move_and_go(sent: str) -> None:
    async def operate(federation: Changing) -> None:
        federation.start(Identity("device", 6))
        asked = [
            federation.ask("add device", device=(6,), edge=0),
            federation.ask("move device", device=(1,), edge=2),
            federation.ask("extend", rounds=2),
        ]
        assert await asyncio.gather(*asked) == [2, 2, 2]
        assert await federation.ask("remove device", device=(4,)) == 3
        await until("it has ended", federation.tasks[Identity("device", 4)].done)

    asked = experiment(sent)
    federation, records = play(operate, asked, asked.build_world())
    assert [len(each.changes) for each in records] == [3, 1, 0, 0, 0]
    assert [each.devices_taking_part for each in records] == [6, 7, 6, 6, 6]
    assert timeless(records) == repeat(records, asked)
    assert federation.devices(2) == (1, 5)


@pytest.mark.parametrize("sent", SENT)
def test_an_edge_server_joins_and_another_leaves(sent: str) -> None:
    """Edge 3 joins without devices, gets some, and edge 0 leaves: its devices go to the smaller clusters."""

    async def operate(federation: Changing) -> None:
        federation.start(Identity("edge", 3))
        await federation.ask("extend", rounds=3)
        assert await federation.ask("add edge", edge=3) == 3
        assert await federation.ask("move device", device=(2,), edge=3) == 4
        assert await federation.ask("remove edge", edge=0, of=1) == 5
        await until("it has ended", federation.tasks[Identity("edge", 0)].done)

    asked = experiment(sent)
    federation, records = play(operate, asked, asked.build_world())
    assert len(records) == 6
    assert timeless(records) == repeat(records, asked)
    assert [federation.devices(i) for i in (1, 2, 3)] == [(0, 3), (4, 5), (1, 2)]
    for i in (1, 2, 3):
        assert federation.edges[i].member.state.electorate.members == (1, 2, 3)
        assert federation.log(i) == records


@pytest.mark.parametrize(
    ("seconds", "sent"),
    [(each, "whole models") for each in (0.0, 1.0, 2.0, 4.0, 7.0)]
    + [(each, "differences to devices") for each in (1.0, 4.0)],
)
def test_devices_of_an_edge_server_that_is_gone_work_elsewhere(seconds: float, sent: str) -> None:
    """Edge 2 dies early in the run and never comes back; its devices 4 and 5 take part again.

    Some of their updates die with it, at different moments of a round. The simulator repeats even that.
    """

    async def operate(federation: Changing) -> None:
        await federation.ask("extend", rounds=3)
        await asyncio.sleep(seconds)
        await federation.kill(Identity("edge", 2))
        await until("they are taken over", lambda: {4, 5} <= {*federation.devices(0), *federation.devices(1)})

    asked = experiment(sent)
    _, records = play(operate, asked, asked.build_world())
    assert [each.devices_taking_part for each in records][-2:] == [6, 6]
    moves = [change for record in records for change in record.changes if change.what == "move device"]
    assert sorted(n for each in moves for n in each.device) == [4, 5]
    assert {each.home for each in moves} == {2}
    assert any(loss.lost or loss.absent for record in records for loss in record.losses)
    names = ("round", "model_sha256", "seconds", "joules", "devices_taking_part", "download_bytes")
    repeated = repeat(records, asked)
    assert [[getattr(each, name) for name in names] for each in records] == [
        [each[name] for name in names] for each in repeated
    ]


def test_an_edge_server_with_a_full_disk_says_so_and_holds_nobody_up() -> None:
    """Edge 2 takes no part while its disk is full, and the others do not wait for its model in gossip.

    A global round takes about 5 s of the virtual clock. Waiting `gossip_seconds` for a model in each would
    allow for 2 rounds in 30 s at most.
    """
    seen: dict[str, Any] = {}

    async def operate(federation: Changing) -> None:
        await federation.ask("extend", rounds=20)
        others = [i for i in federation.edges if i != federation.coordinator()]
        full = Identity("edge", others[0])
        federation.disks[full].is_full = True
        await asyncio.sleep(30.0)
        first = len(federation.log(others[1]))
        await asyncio.sleep(30.0)
        seen["rounds"] = len(federation.log(others[1])) - first
        seen["unready"] = [federation.edges[i].take_snapshot().unready for i in others]
        seen["problem"] = federation.edges[others[0]].take_snapshot().problem
        federation.disks[full].is_full = False
        await asyncio.sleep(30.0)
        seen["later"] = federation.edges[others[0]].take_snapshot().unready

    play(operate)
    assert seen["rounds"] >= 4, seen
    assert "this node tries again by itself" in seen["unready"][0]
    assert seen["unready"][0] in seen["problem"]
    assert (seen["unready"][1], seen["later"]) == ("", "")


def test_a_device_that_is_no_member_is_named_with_what_to_do() -> None:
    async def operate(federation: Changing) -> None:
        federation.start(Identity("device", 6))
        await federation.ask("extend", rounds=20)
        await asyncio.sleep(20.0)
        assert federation.edges[0].take_snapshot().applicants == (6,)
        assert federation.edges[0].take_snapshot().problem == ""
        await asyncio.sleep(60.0)
        words = "not in the fleet: device-6; `cfel fleet add device 6 --edge N` adds them"
        assert words in federation.edges[0].take_snapshot().problem
        await federation.ask("add device", device=(6,), edge=1)
        assert federation.edges[0].take_snapshot().applicants == ()

    _, records = play(operate)
    assert records[-1].devices_taking_part == 7


def test_an_edge_server_that_was_removed_while_it_was_away_ends() -> None:
    """Nobody calls it any more; it asks the others, and they know that edge servers have left."""

    async def operate(federation: Changing) -> None:
        await federation.ask("extend", rounds=3)
        away = next(i for i in range(3) if i != federation.coordinator())
        await federation.kill(Identity("edge", away))
        await federation.ask("remove edge", edge=away, of=(away + 1) % 3)
        federation.start(Identity("edge", away))
        await until("it has ended", federation.tasks[Identity("edge", away)].done)
        assert len(federation.log((away + 1) % 3)) < 6

    play(operate)


def test_an_edge_server_that_the_last_record_removes_has_all_records() -> None:
    """There is no next round that it could be missing in: it takes the end from the others, as any member."""
    away: list[int] = []

    async def operate(federation: Changing) -> None:
        away.append(next(i for i in range(3) if i != federation.coordinator()))
        gone, asked = Identity("edge", away[0]), (away[0] + 1) % 3
        await federation.kill(gone)
        federation.start(Identity("edge", 3))
        assert await federation.ask("add edge", edge=3, of=asked) == 2
        await until("the last round", lambda: len(federation.log(asked)) == 2)
        assert await federation.ask("remove edge", edge=gone.number, of=asked) == 4
        federation.start(gone)

    federation, records = play(operate)
    assert [each.round for each in records] == [1, 2, 3]
    assert federation.log(away[0]) == records
    assert HOME / str(Identity("edge", away[0])) / "model.safetensors" in _files(federation, away[0])


def _files(federation: Changing, edge: int) -> dict[Path, bytes]:
    return federation.disks[Identity("edge", edge)].files


def test_of_two_edge_servers_the_coordinator_leaves() -> None:
    """The other one must know before its vote, which a majority of two needs, is gone."""

    async def operate(federation: Changing) -> None:
        await federation.ask("extend", rounds=4)
        first = next(i for i in range(3) if i != federation.coordinator())
        await federation.ask("remove edge", edge=first, of=(first + 1) % 3)
        leader = federation.coordinator()
        assert leader is not None
        await federation.ask("remove edge", edge=leader, of=leader)
        assert federation.edges[3 - first - leader].server.members.edges == (3 - first - leader,)

    _, records = play(operate)
    assert len(records) == 7
    assert timeless(records) == repeat(records)


def test_a_device_that_is_started_again_remembers_where_it_belongs() -> None:
    """Its first edge server has left: it would have to wait for `gone_seconds` before it asked another."""

    async def operate(federation: Changing) -> None:
        await federation.ask("extend", rounds=3)
        await federation.ask("remove edge", edge=0, of=1)
        await until("it has moved", lambda: any(0 in federation.devices(i) for i in (1, 2)))
        await asyncio.sleep(1.0)
        asked: list[Identity] = []
        federation.network.on_call = lambda caller, to, _: asked.append(to) if caller.number == 0 else None
        await federation.kill(Identity("device", 0))
        federation.start(Identity("device", 0))
        await until("it asks", lambda: Identity("edge", 1) in asked or Identity("edge", 2) in asked)
        assert Identity("edge", 0) not in asked

    play(operate)


@pytest.mark.parametrize("fail_over", ["stay", "never"])
def test_a_device_that_was_away_while_its_edge_server_left_asks_the_others(fail_over: str) -> None:
    """Neither waits for `gone_seconds`: device 0 came back, device 6 joins, and both first ask edge 0."""

    async def operate(federation: Changing) -> None:
        await federation.ask("extend", rounds=5)
        await federation.kill(Identity("device", 0))
        await federation.ask("remove edge", edge=0, of=1)
        await until("it has ended", federation.tasks[Identity("edge", 0)].done)
        await federation.kill(Identity("edge", 0))  # else its process, which the test shares, still answers
        federation.start(Identity("device", 0), Identity("device", 6))
        await federation.ask("add device", device=(6,), edge=2, of=1)

    waits = {"round_seconds": 60.0, "gossip_seconds": 8.0, "gone_seconds": 60.0}
    asked = deployed(**waits, fail_over=fail_over, election_seconds=1.5, linger_seconds=20.0, time_scale=0.02)
    _, records = play(operate, asked, asked.build_world())
    assert records[-1].devices_taking_part == 7
    assert all(6 not in (*each.lost, *each.absent) for record in records for each in record.losses)
    # The simulator is told who was missing, and names nobody.
    assert [{**each, "losses": ()} for each in timeless(records)] == repeat(records, asked)


def test_a_finished_edge_server_tells_a_removed_one_that_missed_the_end_and_its_device() -> None:
    """Both were down until after the end. It answers its device, which so does not give up."""

    async def operate(federation: Changing) -> None:
        away = next(i for i in range(3) if i != federation.coordinator())
        gone = (Identity("edge", away), Identity("device", federation.devices(away)[0]))
        others = [Identity("edge", i) for i in range(3) if i != away]
        for each in gone:
            await federation.kill(each)
        await federation.ask("remove edge", edge=away, of=others[0].number)
        await until("the others have ended", lambda: all(federation.tasks[each].done() for each in others))
        for each in others:
            await federation.kill(each)  # else their process, which the test shares, still answers
        federation.start(*gone)
        await asyncio.sleep(300.0)
        assert not any(federation.tasks[each].done() for each in gone)
        federation.start(others[0])
        await until("both have ended", lambda: all(federation.tasks[each].done() for each in gone))

    waits = {"gossip_seconds": 8.0, "gone_seconds": 6.0, "join_seconds": 60.0, "give_up_seconds": 100.0}
    play(operate, deployed(**waits, election_seconds=1.5, linger_seconds=20.0, time_scale=0.02))


def test_a_device_that_is_drained_to_its_home_is_no_guest_any_more() -> None:
    """Nor is one whose home has left: neither may be sent back."""
    start = start_membership([0, 0, 1, 1, 2, 2])
    moved = apply_changes(start, [FleetChange(2, "move device", (4, 5), 1, home=2)])
    assert moved.guests == ((4, 2), (5, 2))
    left = FleetChange(3, "remove device", (2, 3, 5))
    drained = apply_changes(moved, [left, FleetChange(3, "drain edge", edge=1)])
    assert (drained.edge_of[4], drained.guests) == (2, ())
    assert apply_changes(moved, [FleetChange(3, "remove edge", edge=2)]).guests == ()


def test_a_coordinator_that_has_waited_for_those_who_never_came_does_not_resign() -> None:
    """It may wait longer for them than a step of a round may take."""

    async def operate(federation: Changing) -> None:
        away = next(i for i in range(3) if i != federation.coordinator())
        await federation.kill(Identity("edge", away))
        other = federation.edges[(away + 1) % 3]
        term = other.member.state.term
        await asyncio.sleep(180.0)
        assert other.server.log.last_round > 0
        assert other.member.state.term == term

    play(operate, deployed(join_seconds=150.0, election_seconds=1.5, linger_seconds=20.0, time_scale=0.02))


def test_a_pause_lasts_until_somebody_resumes() -> None:
    async def operate(federation: Changing) -> None:
        assert await federation.ask("pause") == 2
        await asyncio.sleep(100.0)
        assert len(federation.log()) == 1
        assert "paused by an operator" in federation.edges[0].take_snapshot().problem
        leader = federation.coordinator()
        assert leader is not None
        await federation.kill(Identity("edge", leader))
        await asyncio.sleep(30.0)
        federation.start(Identity("edge", leader))
        await asyncio.sleep(30.0)
        assert len(federation.log((leader + 1) % 3)) == 1
        assert await federation.ask("resume", of=(leader + 1) % 3) == 3

    _, records = play(operate)
    assert timeless(records) == repeat(records)
    assert [each.what for record in records for each in record.changes] == ["pause", "resume"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"what": "move device", "device": (9,), "edge": 1}, "device 9 is no member"),
        ({"what": "remove edge", "edge": 7}, "edge 7 is no member"),
    ],
)
def test_an_impossible_change_is_refused_at_once(fields: dict[str, Any], words: str) -> None:
    async def operate(federation: Changing) -> None:
        with pytest.raises(RejectedError, match=words):
            await federation.ask(**fields)

    _, records = play(operate)
    assert not any(each.changes for each in records)


EXTEND = FleetChange(1, "extend", rounds=1, ticket="longer")
ALL_EDGES = [Identity("edge", i) for i in range(3)]


def test_a_change_that_a_coordinator_took_and_forgot_holds_once() -> None:
    """It dies before a majority has the record; whoever asked asks its successor, and hears that it holds."""
    found: list[int] = []

    async def operate(federation: Changing) -> None:
        calls = RemoteCalls(MemoryClient(OPERATOR, federation.network))
        asking = asyncio.create_task(ask_until_it_holds(calls, ALL_EDGES, EXTEND, 600.0))
        leader = federation.coordinator()
        assert leader is not None
        pending = federation.edges[leader]._role.pending
        await until("it waits for the end of the round", lambda: EXTEND in pending.waiting)
        await federation.kill(Identity("edge", leader))
        found.append(await asking)
        federation.start(Identity("edge", leader))

    records = play(operate)[1]
    logged = [each for record in records for each in record.changes if each.ticket == "longer"]
    assert [each.round for each in logged] == found
    assert len(records) == 1 + world().setting.rounds.global_rounds
