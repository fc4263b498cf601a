"""A device that misbehaves with a valid certificate: refused, counted, left out; the others go on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.device import agent as device_agent
from cfel.deployment.payloads import upload
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.messages import Message
from cfel.errors import RejectedError, UnreachableError
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.runlog import RoundRecord
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, MemoryCalls

ROGUE, EDGE = Identity("device", 5), Identity("edge", 2)


async def misbehave(calls: MemoryCalls, reasons: list[str]) -> None:
    """Takes orders and answers each with rubbish."""
    known = ""
    while True:
        try:
            order = await calls.call(EDGE, "next", Message({"after": known}), 60)
        except UnreachableError:
            await asyncio.sleep(0.05)
            continue
        if order.header["kind"] == "finished":
            return
        known = order.header.get("serial", known)
        place = {name: order.header.get(name) for name in ("global_round", "edge_round")}
        rubbish: dict[str, Any] = {**place, "steps": 1, "loss": 0.5, "samples": 3, "kept_energy": []}
        try:
            if order.header["kind"] == "update":
                await calls.call(EDGE, "upload", Message(rubbish, b"rubbish"), 60)
            else:
                await calls.call(EDGE, "estimates", Message({**place, "sigma2": -1.0, "g2": 1.0}), 60)
        except RejectedError as error:
            reasons.append(str(error))


@pytest.mark.parametrize("quarantine_after", [0, 2])
def test_rubbish_costs_the_others_nothing(tmp_path: Path, quarantine_after: int) -> None:
    """Nobody waits for the deadline of 60 s, although the rogue is there all the time."""
    experiment = deployed(
        {"rounds": {"global": 4, "edge": 1}, "local": {"estimator": "reuse"}},
        round_seconds=60.0,
        quarantine_after=quarantine_after,
    )
    reasons: list[str] = []

    async def play() -> tuple[list[RoundRecord], int]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start(*(member for member in federation.everybody() if member != ROGUE))
            rogue = asyncio.create_task(misbehave(MemoryCalls(ROGUE, federation.network), reasons))
            await federation.finished()
            rogue.cancel()
            return federation.records(), federation.edges[2].device_service.refused[5]

    lines, refused = asyncio.run(play())
    assert [line.devices_taking_part for line in lines] == [5] * 4
    assert refused == (quarantine_after or 5)
    assert all(line.wall_seconds < 60 for line in lines)
    assert reasons


@pytest.mark.parametrize(
    ("method", "message", "reason"),
    [
        ("upload", Message({"global_round": 0, "edge_round": 0}), "is asked of device 5"),
        ("estimates", Message({"global_round": 9, "edge_round": 0}), "is asked of device 5"),
        ("model", Message({"sha256": "0" * 64}), "not needed"),
        ("model", Message({}), "sha256"),
        ("plan", Message({"term": 99, "at": [0, 0, 0]}), "not for a device"),
        ("status", Message(), "not for a device"),
    ],
)
def test_calls_out_of_place(tmp_path: Path, method: str, message: Message, reason: str) -> None:
    async def play() -> None:
        async with Federation(deployed(join_seconds=600.0), tmp_path) as federation:
            federation.start(EDGE)
            while EDGE not in federation.network.members:
                await asyncio.sleep(0.01)
            with pytest.raises(RejectedError, match=reason):
                await MemoryCalls(ROGUE, federation.network).call(EDGE, method, message, 5)
            with pytest.raises(RejectedError, match="device-0 belongs to another edge server"):
                await MemoryCalls(Identity("device", 0), federation.network).call(EDGE, "next", Message(), 5)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message({"term": 1, "at": [0, 0, 0]}), "stale term 1"),
        (Message({"at": [0, 0, 0]}), "term"),
        (Message({"term": 9, "at": [0, 0]}), "no position"),
        (Message({"term": 9}), "no position"),
    ],
)
def test_commands_out_of_place(tmp_path: Path, message: Message, reason: str) -> None:
    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start(EDGE)
            while EDGE not in federation.network.members:
                await asyncio.sleep(0.01)
            federation.edges[2].server.obey(9)
            with pytest.raises(RejectedError, match=reason):
                await MemoryCalls(Identity("edge", 0), federation.network).call(EDGE, "plan", message, 5)

    asyncio.run(play())


def test_one_absurd_estimate_does_not_rule_the_plans_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Device 5 tells σ² = 10³⁰⁰ in every upload: not believed, counted, and nobody is asked for less."""
    experiment = deployed({"rounds": {"global": 3, "edge": 1}, "local": {"estimator": "reuse"}})

    def lying(report: DeviceReport, order: DeviceOrder) -> Message:
        message = upload(report, order)
        return Message({**message.header, "sigma2": 1e300}, message.body) if order.device == 5 else message

    async def play(directory: Path) -> tuple[list[float], int]:
        async with Federation(experiment, directory) as federation:
            federation.start()
            await federation.finished()
            counts = [
                node.refused.get("its σ² and G² are beyond belief", 0) for node in federation.edges.values()
            ]
            return [line.rho_mean for line in federation.records()], sum(counts)

    honest, none = asyncio.run(play(tmp_path / "honest"))
    monkeypatch.setattr(device_agent, "upload", lying)
    swayed, doubts = asyncio.run(play(tmp_path / "lying"))
    assert (none, doubts) == (0, 2)
    assert swayed[0] == honest[0]
    assert swayed[1] == pytest.approx(honest[1], rel=0.01)
    assert swayed[2] > 0.2


def test_emulation_takes_the_fleets_time(tmp_path: Path) -> None:
    """1 virtual second takes 1 ms: a round of some 500 virtual seconds takes at least its share of that."""
    experiment = deployed(
        {"rounds": {"global": 1}, "simulation": {"accounting": "realised"}}, time_scale=1e-3
    )

    async def play() -> RoundRecord:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await federation.finished()
            return federation.records()[0]

    line = asyncio.run(play())
    gossip = max(experiment.build_world().setting.backhaul_seconds)
    assert line.wall_seconds >= 1e-3 * (line.seconds - gossip)
