"""Members as a deployment runs them, over the memory transport; and the vote that none may forget."""

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest

from cfel.deployment.election.member import Member, VoteRecovery, load_vote, save_vote, scale_timing
from cfel.deployment.election.rules import Electorate, Timing, Vote
from cfel.deployment.host import DiskHealth, Host, RealDisk
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.edge_requests import ElectionRequest
from cfel.deployment.protocol.messages import decode, encode
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError, StorageError
from tests.deployment.virtual_time import run_virtually
from tests.support.inline_compute import InlineCompute
from tests.support.memory_transport import LinkFaults, MemoryNetwork

DISK = RealDisk()


class VirtualElection:
    """Edge servers that elect, and who led which term as they saw it."""

    def __init__(self, size: int, seed: int, directory: Path) -> None:
        self.size, self.directory = size, directory
        chance = Random(seed)  # noqa: S311 (repeatable chance is the point)
        self.host = Host(DISK, InlineCompute(), chance, lambda: 0.0)
        faults = LinkFaults(drop=0.05, late=0.05, late_seconds=0.5, seconds=(0.001, 0.01))
        self.network = MemoryNetwork(seed, faults)
        self.members: dict[int, Member] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.leaders: defaultdict[int, set[int]] = defaultdict(set)

    def start(self, number: int) -> None:
        """Starts a member, with the vote it left."""
        own = Identity("edge", number)
        member = Member(
            Electorate(number, tuple(range(self.size)), scale_timing(0.7)),
            self.directory / f"{number}.json",
            RemoteCalls(self.network.client(own)),
            self.host,
            DiskHealth(asyncio.get_running_loop().time),
            lambda term, leader: self.note(term, leader),
        )
        self.members[number] = member
        self.network.serve(own, member.endpoints())
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
def test_partitions_and_kills_leave_one_leader_per_term(size: int, tmp_path: Path) -> None:
    """Cuts the leader off with a minority, heals, kills the next one, brings it back; three times over."""
    chance = Random(size)  # noqa: S311 (repeatable chance is the point)

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
        (1, {"type": "Heartbeat", "term": 2**60, "sent_at": 0.0}, "message.term"),
        (1, {"type": "Heartbeat", "term": 1, "sent_at": float("nan")}, "sent_at = nan"),
        (0, {"type": "Heartbeat", "term": 1, "sent_at": 0.0}, "sender: 0 is this member itself"),
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


FIVE = Electorate(1, (0, 1, 2, 3, 4), Timing())


def test_it_waits_for_every_other_member() -> None:
    """A majority is not enough: the last one may lead a later term by its forgotten vote."""
    lost = VoteRecovery(FIVE, "vote.json: not a vote")
    assert lost.describe().startswith("vote.json: not a vote. It takes no part in elections until it has")
    assert "heard of edge-0, edge-2, edge-3, edge-4." in lost.describe()
    assert [lost.note_term(member, 7) for member in (0, 2, 3, 3)] == [None] * 4
    assert "heard of edge-4." in lost.describe()
    assert lost.note_term(4, 9) == Vote(9, 1)


def test_the_newest_sign_of_each_member_counts() -> None:
    lost = VoteRecovery(FIVE, "")
    for member, term in ((0, 3), (2, 3), (3, 3), (0, 8)):
        assert lost.note_term(member, term) is None
    assert lost.note_term(4, 3) == Vote(8, 1)


@pytest.mark.parametrize("vote", [Vote(0), Vote(7), Vote(2**40, 3)])
def test_a_vote_comes_back(tmp_path: Path, vote: Vote) -> None:
    path = tmp_path / "vote.json"
    save_vote(DISK, path, 3, Vote(1, 1))
    save_vote(DISK, path, 3, vote)
    assert load_vote(DISK, path, 3) == vote
    assert list(tmp_path.iterdir()) == [path]


def test_a_first_start_has_an_empty_vote(tmp_path: Path) -> None:
    assert load_vote(DISK, tmp_path / "vote.json", 0) == Vote(0, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"version": 1, "member": 0, "te',
        b"[]",
        b'{"version": 2, "member": 0, "term": 1, "voted_for": null}',
        b'{"version": 1, "member": 0, "term": -1, "voted_for": null}',
        b'{"version": 1, "member": 0, "term": true, "voted_for": null}',
        b'{"version": 1, "member": 0, "term": 1, "voted_for": "0"}',
        b'{"version": 1, "member": 1, "term": 1, "voted_for": null}',
    ],
)
def test_anything_else_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vote.json"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="vote"):
        load_vote(DISK, path, 0)


def test_a_vote_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        save_vote(DISK, tmp_path / "missing" / "vote.json", 0, Vote(1))
