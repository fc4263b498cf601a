"""An edge server that was taken over: it cannot command the others, use up the terms, or end the run."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cfel.deployment.coordinator.control_state import initial_coordinator_state
from cfel.deployment.coordinator.edge_calls import TermCalls
from cfel.deployment.election.state import Heartbeat, HeartbeatReply, VoteRequest
from cfel.deployment.election.vote_file import load_vote
from cfel.deployment.protocol.calls import AnyRequest, RemoteCalls
from cfel.deployment.protocol.codec import from_message, to_message
from cfel.deployment.protocol.coordinator_requests import (
    CloseCommand,
    EstimateCommand,
    FetchCommand,
    MeanMetricRequest,
    MixCommand,
    PlanCommand,
)
from cfel.deployment.protocol.peer_requests import ElectionRequest, HelloAnswer
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.messages import Message
from cfel.errors import RejectedError, StaleTermError
from cfel.runlog.records import read_log
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
            with pytest.raises(StaleTermError, match=f"term {term}, .*(edge-1|nobody) .* 7"):
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


@pytest.mark.long
@pytest.mark.parametrize("kind", [PlanCommand, MixCommand, CloseCommand])
def test_an_elected_liar_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Invalid commands of the first coordinator: the others name it, elect another one and continue."""
    liars: list[TermCalls] = []
    shown: set[str] = set()
    honest_call = TermCalls._call_until

    async def call(self: TermCalls, edge: int, command: Any, deadline: float) -> Any:
        if not liars and type(command) is kind:
            liars.append(self)
        if self in liars and isinstance(command, kind):
            command = spoil(command)
        return await honest_call(self, edge, command, deadline)

    monkeypatch.setattr(TermCalls, "_call_until", call)

    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start()
            await until("one leads", lambda: federation.coordinator() is not None)
            first = federation.coordinator()
            others = [i for i in range(3) if i != first]

            def is_named() -> bool:
                shown.update(federation.edges[i].take_snapshot().problem for i in others)
                return any(f"edge-{first} sent a command that is not valid" in each for each in shown)

            await until("it is named", is_named)
            await until("another leads", lambda: federation.coordinator() in others)
            await federation.finished()
            assert [federation.edges[i].server.state.position for i in others] == [(3, 0, 0)] * 2

    asyncio.run(play())
    logs = [read_log(tmp_path / f"edge-{i}" / "rounds.jsonl").records for i in range(3)]
    assert [each.round for each in logs[0]] == [1, 2, 3]
    assert all(each.devices_taking_part >= 4 for log in logs for each in log)


def spoil(command: Any) -> Any:
    """The same command, as no honest coordinator would send it."""
    match command:
        case PlanCommand():
            assert command.state.plan is not None
            plan = replace(command.state.plan, rho=command.state.plan.rho + 1.0)
            return msgspec.structs.replace(command, state=replace(command.state, plan=plan))
        case MixCommand():
            return msgspec.structs.replace(command, rows=((0.0, 0.0, 1.0),) * 3)
        case CloseCommand():
            return msgspec.structs.replace(command, last=not command.last)


@pytest.mark.long
@pytest.mark.parametrize("left_out", [(0, 1, 2), (0,)], ids=["all", "one"])
def test_a_coordinator_that_leaves_others_out_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: tuple[int, ...]
) -> None:
    """The first coordinator, which is edge server 2, commands nobody, or leaves one of the two others out."""
    honest_call = TermCalls._call_until
    liars: list[TermCalls] = []
    shown: set[str] = set()

    async def call(self: TermCalls, edge: int, command: Any, deadline: float) -> Any:
        if not liars:
            liars.append(self)
        if self in liars and edge in left_out:
            return None
        return await honest_call(self, edge, command, deadline)

    monkeypatch.setattr(TermCalls, "_call_until", call)
    waits = {"join_seconds": 2.0, "gone_seconds": 1.0, "gossip_seconds": 1.0, "round_seconds": 4.0}
    # Devices that wait leave the event loop time for elections.
    experiment = deployed(
        {"rounds": {"global": 1000, "edge": 1}}, election_seconds=1.0, time_scale=1e-2, **waits
    )

    async def play() -> None:
        async with Federation(experiment, tmp_path) as federation:
            federation.start(LIAR, HONEST)
            await until("it leads", lambda: is_led_by(federation, LIAR.number))
            federation.start(Identity("edge", 1), *(Identity("device", n) for n in range(6)))

            def is_named() -> bool:
                there = [federation.edges[i] for i in (0, 1) if i in federation.edges]
                shown.update(each.take_snapshot().problem for each in there)
                return any("edge-2 leads, but has kept this edge server waiting" in each for each in shown)

            await until("it is named", is_named)
            await until("another leads", lambda: federation.coordinator() in (0, 1))
            await until("it gets on", lambda: all(federation.edges[i].server.log.records for i in (0, 1)))

    asyncio.run(play())


def is_led_by(federation: Federation, number: int) -> bool:
    """Keeps deposing others until one leads."""
    leader = federation.coordinator()
    if leader is not None and leader != number:
        member = federation.edges[leader].member
        member.resign(member.state.term, 5.0)
    return leader == number


def test_a_round_that_nobody_else_has_reached_is_not_commanded(tmp_path: Path) -> None:
    """Edge server 2 leads, as far as 0 knows, and commands round 3; 1 is there, too, before round 1."""

    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            other = Identity("edge", 1)
            federation.start(HONEST, other)
            await until("both are there", lambda: {HONEST, other} <= federation.network.members.keys())
            await claim_term(LIAR, HONEST, 7, federation.network)
            calls = RemoteCalls(MemoryClient(LIAR, federation.network))
            with pytest.raises(RejectedError, match="round 3: no other edge server"):
                await calls.call(HONEST, EstimateCommand(7, (2, 0, 0), (True,) * 6), 5)
            assert federation.edges[0].server.state.position == (0, 0, 0)
            assert "edge-2 sent a command that is not valid" in federation.edges[0].take_snapshot().problem
            assert federation.edges[0].member.distrusted == (2,)

    asyncio.run(play())


def test_the_end_is_believed_only_with_the_records_that_show_it(tmp_path: Path) -> None:
    """An edge server poses as the coordinator of the next term, and says that all is over."""

    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start(HONEST, LIAR)
            await until("both are there", lambda: {HONEST, LIAR} <= federation.network.members.keys())
            await claim_term(LIAR, HONEST, 7, federation.network)
            server = federation.edges[0].server
            with pytest.raises(RejectedError, match="does not show the end"):
                await server.adopt_end(LIAR.number)
            assert not server.log.finished.is_set()
            shown = federation.edges[0].take_snapshot().problem
            assert "edge-2 says that the experiment is over, but its log does not show it" in shown

    asyncio.run(play())
