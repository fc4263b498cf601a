"""Rounds that an edge server missed: fetched from the coordinator, or from another that has them."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment import state_file
from cfel.deployment.edge.storage import EdgeLog, ProposalFile
from cfel.deployment.host import Disk, RealDisk
from cfel.deployment.protocol.calls import Answer, Request
from cfel.deployment.protocol.edge_requests import CloseCommand, ProposeCommand, ProposedRecord, RecordsAnswer
from cfel.deployment.security.identity import Identity
from cfel.errors import DiskError, RejectedError, UnreachableError
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import claim_term, led_edge_server, until
from tests.deployment.samples import RECORD, table

OWN, LEADER = Identity("edge", 0), Identity("edge", 1)
NINE_ROUNDS = deployed({"rounds": {"global": 9}})


@dataclass
class KnownNodes:
    """Edge servers with these rounds in their logs; the others are silent."""

    rounds: dict[int, tuple[int, ...]]

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        del request, seconds
        if to.number not in self.rounds:
            raise UnreachableError(f"{to}: nobody answers")
        found = tuple(replace(RECORD, round=number) for number in self.rounds[to.number])
        return RecordsAnswer(found)  # type: ignore[return-value]


def close_round_3(directory: Path, rounds: dict[int, tuple[int, ...]]) -> list[int]:
    """What is in the log after the third round, of an edge server whose log lacks the first two."""

    async def play() -> list[int]:
        async with led_edge_server(OWN, LEADER, NINE_ROUNDS, directory) as (federation, _):
            server = federation.edges[0].server
            server._calls = KnownNodes(rounds)
            server.state = replace(server.state, position=(3, 0, 0))
            command = CloseCommand(1, (2, 0, 0), replace(RECORD, round=3), table(round=3), False)
            await server.write_round(LEADER, command)
            return [record.round for record in server.log.records]

    return asyncio.run(play())


@pytest.mark.parametrize("rounds", [{1: (1, 2)}, {1: (), 2: (1, 2)}, {2: (1, 2, 3)}, {1: (1,), 2: (1, 2)}])
def test_missed_rounds_are_fetched_from_an_edge_server_that_has_them(
    tmp_path: Path, rounds: dict[int, tuple[int, ...]]
) -> None:
    assert close_round_3(tmp_path, rounds) == [1, 2, 3]


@pytest.mark.parametrize("rounds", [{}, {1: (2,)}, {1: (1,), 2: ()}])
def test_a_log_has_no_gaps(tmp_path: Path, rounds: dict[int, tuple[int, ...]]) -> None:
    with pytest.raises(RejectedError, match="are missing"):
        close_round_3(tmp_path, rounds)


@pytest.mark.parametrize(("term", "number"), [(1, 3), (2, 2)], ids=["next round", "next term"])
def test_a_proposal_that_is_written_late_does_not_replace_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, term: int, number: int
) -> None:
    """The disk is full when round 2 of term 1 is proposed, and has room again for the newer proposal."""
    save, full = state_file.save, [True]

    def save_if_room(disk: Disk, path: Path, *content: Any) -> None:
        if path.name == "proposal.bin" and full:
            full.clear()
            raise DiskError("no space left")
        save(disk, path, *content)

    monkeypatch.setattr(state_file, "save", save_if_room)

    async def play() -> None:
        async with led_edge_server(OWN, LEADER, NINE_ROUNDS, tmp_path) as (federation, _):
            server = federation.edges[0].server
            old = ProposeCommand(1, (1, 0, 0), replace(RECORD, round=2))
            late = asyncio.create_task(server.keep_proposal(LEADER, old))
            await until("the disk is full", lambda: not full)
            await claim_term(LEADER, OWN, term, federation.network)
            new = ProposeCommand(term, (number - 1, 0, 0), replace(RECORD, round=number))
            await server.keep_proposal(LEADER, new)
            with pytest.raises(RejectedError, match="a newer record"):
                await late
            kept = ProposalFile(RealDisk(), tmp_path / str(OWN)).newest
            assert kept == server.log.newest_proposal == ProposedRecord(term, new.record)

    asyncio.run(play())


@pytest.mark.parametrize(("kept", "left"), [(0, [1, 2, 3, 4]), (2, [3, 4])])
def test_plan_tables_are_kept_for_a_while(tmp_path: Path, kept: int, left: list[int]) -> None:
    """All rounds stay in the log."""
    log = EdgeLog(RealDisk(), tmp_path, has_others=False, kept_plans=kept)
    for number in range(1, 5):
        log.write(replace(RECORD, round=number), table())
    log.close()
    assert [each.round for each in log.records] == [1, 2, 3, 4]
    assert sorted(int(path.stem[-5:]) for path in (tmp_path / "plans").iterdir()) == left
