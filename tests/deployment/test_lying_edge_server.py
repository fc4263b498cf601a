"""An edge server that was taken over: it cannot command the others, use up the terms, or end the run."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.coordinator.control_state import initial_coordinator_state
from cfel.deployment.election.state import Heartbeat, HeartbeatReply, VoteRequest
from cfel.deployment.election.vote_file import load_vote
from cfel.deployment.protocol.calls import AnyRequest, RemoteCalls
from cfel.deployment.protocol.codec import from_message, to_message
from cfel.deployment.protocol.coordinator_requests import (
    EstimateCommand,
    FetchCommand,
    MeanMetricRequest,
    PlanCommand,
)
from cfel.deployment.protocol.peer_requests import ElectionRequest, HelloAnswer
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.messages import Message
from cfel.errors import RejectedError, StaleTermError
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, MemoryClient, claim_term, until
from tests.simulation.drive import records, timeless

LIAR, HONEST = Identity("edge", 2), Identity("edge", 0)
MOST = 2**53


def lies(federation: Federation) -> list[AnyRequest]:
    state = replace(initial_coordinator_state(federation.world), available=(True,) * 6)
    terms = {node.member.state.term for node in federation.edges.values()}
    return [
        *(FetchCommand(term, (0, 0, 0), (0, 1, 2)) for term in (MOST, *terms)),
        PlanCommand(MOST, (0, 0, 0), state),
        *(ElectionRequest(Heartbeat(term, 0.0)) for term in (MOST, *(term + 1 for term in terms), *terms)),
        ElectionRequest(VoteRequest(MOST, 0.0, preliminary=False)),
        ElectionRequest(VoteRequest(MOST, 0.0, preliminary=True)),
        ElectionRequest(HeartbeatReply(MOST, 0.0)),
        MeanMetricRequest(),
    ]


def test_a_liar_stops_nobody(tmp_path: Path, simulated: list[dict[str, Any]]) -> None:
    """Commands and votes of any term come from an edge server that does not lead."""
    problems: list[str] = []
    answered: list[object] = []

    async def tell(federation: Federation, liar: int, to: int, lie: AnyRequest) -> None:
        calls = RemoteCalls(MemoryClient(Identity("edge", liar), federation.network))
        try:
            answered.append(await calls.call(Identity("edge", to), lie, 5))
        except RejectedError as error:
            problems.append(str(error))

    async def play() -> list[dict[str, Any]]:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start()
            await until("one leads", lambda: federation.coordinator() is not None)
            liar, *_ = (i for i in range(3) if i != federation.coordinator())
            others = [i for i in range(3) if i != liar]
            for _ in range(3):
                reported = [tell(federation, liar, to, lie) for to in others for lie in lies(federation)]
                await asyncio.gather(*reported)
            shown = [federation.edges[i].take_snapshot().problem for i in others]
            assert all(f"edge-{liar} sent a command of term" in each for each in shown)
            assert all(f"edge-{liar} shows term {MOST}" in each for each in shown)
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == simulated
    assert all(load_vote(tmp_path / f"edge-{i}" / "vote.json", i).term < 2000 for i in range(3))
    assert any("more than 1000 terms at once" in each for each in problems)


@pytest.mark.parametrize("term", [7, 8, MOST])
def test_only_the_leader_of_its_term_commands(tmp_path: Path, term: int) -> None:
    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start(HONEST)
            await until("it is there", lambda: HONEST in federation.network.members)
            await claim_term(Identity("edge", 1), HONEST, 7, federation.network)
            calls = RemoteCalls(MemoryClient(LIAR, federation.network))
            with pytest.raises(StaleTermError, match=f"term {term}, but (edge-1|nobody) leads term 7"):
                await calls.call(HONEST, EstimateCommand(term, (0, 0, 0), (True,) * 6), 5)
            assert f"edge-2 sent a command of term {term}" in federation.edges[0].take_snapshot().problem

    asyncio.run(play())


@pytest.mark.long
def test_the_run_is_not_over_because_one_edge_server_says_so(tmp_path: Path) -> None:
    """Devices take longer than an edge server waits for commands before it asks whether all is over."""
    experiment = deployed({"rounds": {"global": 1, "edge": 1}}, time_scale=3e-2)

    async def play() -> list[dict[str, Any]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await until("one leads", lambda: federation.coordinator() is not None)
            leader = federation.coordinator()
            liar = Identity("edge", next(i for i in range(3) if i != leader))
            methods = federation.network.members[liar]
            honest = methods["hello"]

            async def claim_end(caller: Identity, message: Message) -> Message:
                answer = from_message(await honest.handle(caller, message), HelloAnswer)
                return to_message(HelloAnswer(True, answer.devices))

            methods["hello"] = replace(honest, handle=claim_end)
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == timeless(records(experiment))
