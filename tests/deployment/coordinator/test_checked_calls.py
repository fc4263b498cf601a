"""Answers of an edge server that do not fit the experiment, and a run that goes on without them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cfel.deployment.coordinator.checked_calls import CheckedCalls, check_answer, check_closing
from cfel.deployment.coordinator.control_state import initial_coordinator_state
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.coordinator_requests import (
    CloseCommand,
    DeviceEstimates,
    DeviceResult,
    EstimateAnswer,
    FetchAnswer,
    MixAnswer,
    ModelScores,
    NewestAnswer,
    NewestRequest,
    PlanAnswer,
)
from cfel.deployment.protocol.peer_requests import HelloAnswer, PeerModelAnswer, RecordsAnswer
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.messages import NO_BODY, Message
from cfel.errors import InputError, InvalidAnswerError, RejectedError
from cfel.learning.local.estimates import Estimates
from cfel.runlog import PlanTable, RoundRecord
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, until

WORLD = deployed().build_world()
ROWS = tuple(tuple(row.tolist()) for row in WORLD.setting.backhaul.weights)
RESULT = DeviceResult(4, 0.5, 0.25, 1.0, 1, 100, 0.5, None)
RECORD = RoundRecord(
    round=1,
    seconds=1.0,
    joules=1.0,
    seconds_expected=1.0,
    joules_expected=1.0,
    seconds_realised=1.0,
    joules_realised=1.0,
    rho_mean=0.5,
    theta_mean=0.5,
    sigma2=1.0,
    g2=1.0,
    wall_seconds=1.0,
    accuracy=None,
    loss=None,
    gap=None,
    feasible=True,
    wire_bytes=1,
    model_sha256="0" * 64,
)


def result(**changes: Any) -> PlanAnswer:
    return PlanAnswer((msgspec.structs.replace(RESULT, **changes),), (4, 5), 1.0)


def estimate(device: int, *kept: float) -> EstimateAnswer:
    return EstimateAnswer((DeviceEstimates(device, Estimates(1.0, 1.0, kept)),))


def records(*rounds: int) -> RecordsAnswer:
    return RecordsAnswer(tuple(replace(RECORD, round=number) for number in rounds))


def rows(*first: float) -> FetchAnswer:
    return FetchAnswer((0, 0, 0), (), (first, *ROWS[1:]))


@pytest.mark.parametrize(
    "answer",
    [
        result(),
        result(steps=0, loss=float("nan")),
        estimate(5),
        records(),
        records(1, 2),
        NewestAnswer((0, 0, 0), initial_coordinator_state(WORLD), (4, 5)),
        FetchAnswer((0, 0, 0), (0, 1), ROWS),
        FetchAnswer((0, 0, 0), (), tuple(tuple(row) for row in np.eye(3).tolist())),
        HelloAnswer(False, {4: "idle", 5: "lost"}),
        MixAnswer((0, 0, 0), ROWS, "0" * 64, 0.5, {}, (0.5, float("nan"))),
        ModelScores(0.5, {}, (0.5,) * 6),
    ],
)
def test_honest_answers_fit(answer: object) -> None:
    check_answer(WORLD, 2, answer)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (result(device=99), "device 99: is none of its own"),
        (result(device=0), "device 0: is none of its own"),
        (PlanAnswer((RESULT, RESULT), (), 1.0), "or there twice"),
        (PlanAnswer((), (2**53,), 1.0), "is none of its own"),
        (result(steps=10**6), "steps"),
        (result(wire_bits=2**53), "wire_bits"),
        (result(speed=0.0), "speed"),
        (result(loss=float("inf")), "loss"),
        (result(loss=float("nan")), "loss"),
        (result(loss=1.7e308), "loss"),
        (result(estimates=Estimates(1.0, 1.0, (0.5,))), "kept_energy"),
        (estimate(0), "is none of its own"),
        (estimate(4, 0.5), "kept_energy"),
        (NewestAnswer((0, 0, 0), None, (0,)), "is none of its own"),
        (
            NewestAnswer((0, 0, 0), replace(initial_coordinator_state(WORLD), metrics=()), ()),
            "state.metrics",
        ),
        (FetchAnswer((0, 0, 0), (3,), None), "received_from"),
        (rows(10.0, -9.0, 0.0), "rows: "),
        (rows(0.0, 0.0, 1.0), "rows: "),
        (rows(1.0), "rows: "),
        (MixAnswer((0, 0, 0), ROWS, "0" * 64, 0.5, {"f1": 0.5}), r"metrics: \['f1'\] are not the task's"),
        (MixAnswer((0, 0, 0), ROWS, "0" * 64, 0.5, {}, (0.5,)), "device_metrics: 1 entries, 2 expected"),
        (ModelScores(0.5, {}, (0.5, 0.5)), "device_metrics: 2 entries, 6 expected"),
        (records(1, 3), "must follow each other"),
        (records(0, 1), "must follow each other"),
        (records(10**6), "no such round"),
        (HelloAnswer(False, {0: "lost"}), "is none of its own"),
        (PeerModelAnswer((2**53, 0, 0), "0" * 64, NO_BODY), "no such position"),
    ],
)
def test_what_does_not_fit_is_rejected(answer: object, reason: str) -> None:
    with pytest.raises((InputError, RejectedError), match=reason):
        check_answer(WORLD, 2, answer)


class Garbage:
    """Nodes that answer every call with the same bytes."""

    async def send(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Client`."""
        del to, method, message, seconds
        return Message(b"\xc1")


def test_the_sender_of_an_answer_that_cannot_be_read_is_named() -> None:
    named: list[tuple[Identity, str, str]] = []
    calls = CheckedCalls(RemoteCalls(Garbage()), WORLD, lambda *each: named.append(each))
    with pytest.raises(InvalidAnswerError, match=r"edge-2 .* newest .*not MessagePack"):
        asyncio.run(calls.call(Identity("edge", 2), NewestRequest(1), 1.0))
    ((sender, method, reason),) = named
    assert (str(sender), method) == ("edge-2", "newest")
    assert "not MessagePack" in reason


def table(**changes: Any) -> PlanTable:
    names = ("rho", "theta", "mu", "alpha", "nu", "power", "steps", "seconds", "joules")
    columns: dict[str, Any] = dict.fromkeys((*names, "edge_round", "device", "cluster"), np.zeros(1))
    return PlanTable(**{"round": 1, **columns, **changes})


def test_a_round_ends_with_its_own_record_and_plans() -> None:
    check_closing(WORLD, CloseCommand(1, (0, 2, 0), RECORD, table(), False))
    for at, plans in (
        ((1, 2, 0), table()),
        ((0, 2, 0), table(round=2)),
        ((0, 2, 0), table(device=np.array([6]))),
        ((0, 2, 0), table(device=np.array([-1]))),
        ((0, 2, 0), table(edge_round=np.array([99]))),
    ):
        with pytest.raises(RejectedError):
            check_closing(WORLD, CloseCommand(1, at, RECORD, plans, False))


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "plan": (lambda answer: answer["devices"][0].update(device=99), "device 99"),
    "fetch": (lambda answer: answer.update(received_from=[77]), "received_from"),
    "mix": (lambda answer: answer.update(device_metrics=[0.5]), "device_metrics: 1 entries"),
}


@pytest.mark.parametrize("method", sorted(LIES))
def test_an_edge_server_that_answers_nonsense_does_not_stop_the_others(tmp_path: Path, method: str) -> None:
    """The coordinator goes on without it, and counts its answers."""
    experiment = deployed({"rounds": {"global": 3, "edge": 1}}, conditions="measured")
    reasons: list[str] = []

    async def play() -> int:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await until("one leads", lambda: federation.coordinator() is not None)
            leader = federation.coordinator()
            assert leader is not None
            liar = Identity("edge", (leader + 1) % 3)
            honest = federation.network.members[liar][method]

            async def lie(caller: Identity, message: Message) -> Message:
                answer = await honest.handle(caller, message)
                fields = msgspec.msgpack.decode(answer.header)
                if fields.get("devices") != []:
                    LIES[method][0](fields)
                return Message(msgspec.msgpack.encode(fields), answer.body)

            federation.network.members[liar][method] = replace(honest, handle=lie)
            await federation.finished()
            reasons.extend(reason for node in federation.edges.values() for reason in node.rejections)
            # Whoever led saw it; on a busy machine that may have been several.
            problems = [node.take_snapshot().problem for node in federation.edges.values()]
            assert any(f"{liar} answered {method} with what is not used" in each for each in problems)
            return len(federation.records())

    assert asyncio.run(play()) == 3
    assert any(LIES[method][1] in reason for reason in reasons), reasons
