"""Rounds that an edge server missed: fetched from the coordinator, or from another that has them."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cfel.deployment.protocol.calls import Answer, Request
from cfel.deployment.protocol.coordinator_requests import CloseCommand
from cfel.deployment.protocol.peer_requests import RecordsAnswer
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError, UnreachableError
from tests.deployment.conftest import deployed
from tests.deployment.coordinator.test_checked_calls import RECORD, table
from tests.deployment.memory_federation import Federation, claim_term, until

OWN, LEADER = Identity("edge", 0), Identity("edge", 1)


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
    """What is in the log after the third round, of an edge server that missed the first two."""

    async def play() -> list[int]:
        async with Federation(deployed({"rounds": {"global": 9}}), directory) as federation:
            federation.start(OWN)
            await until("it is there", lambda: OWN in federation.network.members)
            log = federation.edges[0].server.log
            log._calls = KnownNodes(rounds)
            await claim_term(LEADER, OWN, 1, federation.network)
            command = CloseCommand(1, (2, 0, 0), replace(RECORD, round=3), table(round=3), False)
            await log.write_round(LEADER, command)
            return [record.round for record in log.records]

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
