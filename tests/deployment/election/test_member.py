"""Members as a deployment runs them, over the memory transport: partitions, kills and returns."""

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest

from cfel.deployment.election import member as member_module
from cfel.deployment.election.member import Member
from cfel.deployment.protocol.calls import RemoteCalls, to_methods
from cfel.deployment.protocol.codec import decode, encode
from cfel.deployment.protocol.peer_requests import ElectionRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from tests.deployment.virtual_time import run_virtually
from tests.support.memory_transport import LinkFaults, MemoryNetwork


class VirtualElection:
    """Edge servers that elect, and who led which term as they saw it."""

    def __init__(self, size: int, seed: int, directory: Path) -> None:
        self.size, self.directory = size, directory
        faults = LinkFaults(drop=0.05, late=0.05, late_seconds=0.5, seconds=(0.001, 0.01))
        self.network = MemoryNetwork(seed, faults)
        self.members: dict[int, Member] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.leaders: defaultdict[int, set[int]] = defaultdict(set)

    def start(self, number: int) -> None:
        """Starts a member, with the vote it left."""
        own = Identity("edge", number)
        member = Member(
            number,
            self.size,
            0.7,
            self.directory / f"{number}.json",
            RemoteCalls(self.network.client(own)),
            lambda term, leader: self.note(term, leader),
        )
        self.members[number] = member
        self.network.serve(own, to_methods(member.endpoints()))
        self.tasks[number] = asyncio.create_task(member.run())

    def note(self, term: int, leader: int | None) -> None:
        """Keeps who is said to lead a term."""
        if leader is not None:
            self.leaders[term].add(leader)

    def kill(self, number: int) -> None:
        """Ends a member."""
        self.network.leave(Identity("edge", number))
        self.tasks.pop(number).cancel()
        del self.members[number]

    def part(self, side: set[int]) -> None:
        """Cuts a side off from the others."""
        everybody = [Identity("edge", number) for number in range(self.size)]
        self.network.part(
            [one for one in everybody if one.number in side],
            [one for one in everybody if one.number not in side],
        )

    def acting(self) -> list[int]:
        """Those that may act as coordinator now."""
        return [number for number, member in self.members.items() if member.is_leading()]

    async def led_by(self) -> int:
        """The one that acts, as soon as there is one."""
        async with asyncio.timeout(10):
            while not self.acting():
                await asyncio.sleep(0.02)
        (leader,) = self.acting()
        return leader


@pytest.mark.parametrize("size", [3, 5, 8])
def test_partitions_and_kills_leave_one_leader_per_term(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts the leader off with a minority, heals, kills the next one, brings it back; three times over."""
    chance = Random(size)  # noqa: S311 (repeatable chance is the point)
    monkeypatch.setattr(member_module, "SystemRandom", lambda: chance)

    async def scenario() -> VirtualElection:
        electorate = VirtualElection(size, size, tmp_path)
        for number in range(size):
            electorate.start(number)
        for _ in range(3):
            old = await electorate.led_by()
            others = [number for number in range(size) if number != old]
            electorate.part({old, *chance.sample(others, (size - 1) // 2 - 1)})
            await asyncio.sleep(3.0)
            new = await electorate.led_by()
            assert new != old
            electorate.network.restore_links()
            await asyncio.sleep(1.0)
            killed = await electorate.led_by()
            electorate.kill(killed)
            assert await electorate.led_by() != killed
            electorate.start(killed)
            await asyncio.sleep(1.0)
        for number in range(size):
            electorate.kill(number)
        return electorate

    electorate = run_virtually(scenario())
    assert electorate.network.failures == []
    assert len(electorate.leaders) >= 6
    assert all(len(leaders) == 1 for leaders in electorate.leaders.values())


async def deliver(member: Member, caller: int, message: dict[str, object]) -> None:
    """Hands a member what came over the network."""
    await member.receive(Identity("edge", caller), decode(encode({"message": message}), ElectionRequest))


@pytest.mark.parametrize(
    ("caller", "message", "reason"),
    [
        (1, {"type": "Coup"}, "message.type = 'Coup'"),
        (1, {"type": "Heartbeat", "term": 1}, "message.sent_at: is missing"),
        (1, {"type": "Heartbeat", "term": 1.5, "sent_at": 0.0}, "message.term = 1.5"),
        (1, {"type": "Heartbeat", "term": 2**60, "sent_at": 0.0}, "must be a whole number from 0 to"),
        (1, {"type": "Heartbeat", "term": 1, "sent_at": float("nan")}, "sent_at = nan"),
        (9, {"type": "Heartbeat", "term": 1, "sent_at": 0.0}, "sender: 9 is not another member"),
    ],
)
def test_what_is_no_message_of_an_election_is_rejected(
    caller: int, message: dict[str, object], reason: str, tmp_path: Path
) -> None:
    async def scenario() -> VirtualElection:
        electorate = VirtualElection(3, 0, tmp_path)
        electorate.start(0)
        before = electorate.members[0].state
        with pytest.raises(RejectedError, match=reason):
            await deliver(electorate.members[0], caller, message)
        assert electorate.members[0].state is before
        electorate.kill(0)
        return electorate

    run_virtually(scenario())
    assert not (tmp_path / "0.json").exists()
