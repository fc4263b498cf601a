"""A device that misbehaves with a valid certificate: rejected, counted, left out; the others continue."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.device import agent as device_agent
from cfel.deployment.payloads import make_upload
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.device_requests import (
    ExperimentOver,
    Moved,
    NextOrder,
    NextRequest,
    UploadRequest,
)
from cfel.deployment.protocol.messages import Body, Message, encode
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError, StaleTermError, UnreachableError
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.runlog import RoundRecord
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, MemoryClient, claim_term, play_to_the_end

ROGUE, EDGE = Identity("device", 5), Identity("edge", 2)
UPLOAD = {
    "round": (0, 0),
    "steps": 1,
    "loss": 0.5,
    "samples": 1,
    "buffers": 0,
    "content": None,
    "estimates": None,
}
ESTIMATES = {"round": (9, 0), "estimates": {"sigma2": 1.0, "g2": 1.0}}


async def misbehave(client: MemoryClient, reasons: list[str]) -> None:
    """Takes orders and answers each with rubbish."""
    known = ""
    while True:
        try:
            order = await RemoteCalls(client).call(EDGE, NextRequest(known), 60)
        except UnreachableError:
            await asyncio.sleep(0.05)
            continue
        if isinstance(order, ExperimentOver):
            return
        if not isinstance(order, NextOrder):
            continue
        known = order.serial
        upload = UploadRequest(order.order.round, 1, 0.5, 3, 0, Body.hash(b"rubbish"), None)
        estimates = {"round": order.order.round, "estimates": {"sigma2": -1.0, "g2": 1.0}}
        try:
            if order.kind == "update":
                await RemoteCalls(client).call(EDGE, upload, 60)
            else:
                await client.send(EDGE, "estimates", Message(encode(estimates)), 60)
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
            rogue = asyncio.create_task(misbehave(MemoryClient(ROGUE, federation.network), reasons))
            await federation.finished()
            rogue.cancel()
            return federation.records(), federation.edges[2].devices.rejected[5]

    lines, rejected = asyncio.run(play())
    assert [line.devices_taking_part for line in lines] == [5] * 4
    assert rejected == (quarantine_after or 5)
    assert all(line.wall_seconds < 60 for line in lines)
    assert reasons


@pytest.mark.parametrize(
    ("method", "fields", "reason"),
    [
        ("upload", UPLOAD, "no update is asked of device 5"),
        ("estimates", ESTIMATES, "no estimate is asked of device 5"),
        ("model", {"sha256": "0" * 64}, "not needed"),
        ("model", {}, "sha256: is missing"),
        ("model", {"sha256": "../../state"}, "sha256 = '../../state'"),
        ("plan", {"term": 99, "position": [0, 0, 0]}, "not for a device"),
        ("status", {}, "not for a device"),
    ],
)
def test_calls_out_of_place(tmp_path: Path, method: str, fields: object, reason: str) -> None:
    async def play() -> None:
        async with Federation(deployed(join_seconds=600.0), tmp_path) as federation:
            federation.start(EDGE)
            while EDGE not in federation.network.members:
                await asyncio.sleep(0.01)
            with pytest.raises(RejectedError, match=reason):
                await MemoryClient(ROGUE, federation.network).send(EDGE, method, Message(encode(fields)), 5)
            other = RemoteCalls(MemoryClient(Identity("device", 0), federation.network))
            assert await other.call(EDGE, NextRequest(""), 5) == Moved(0)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"term": 1, "position": [0, 0, 0]}, StaleTermError, "stale term 1"),
        ({"position": [0, 0, 0]}, RejectedError, "term: is missing"),
        ({"term": 9, "position": [0, 0]}, RejectedError, r"position = \[0, 0\]"),
        ({"term": 9, "position": [0, -1, 0]}, RejectedError, r"position\[1\] = -1"),
        ({"term": 9}, RejectedError, "position: is missing"),
        ({"term": 9, "position": [0, 0, 0], "available": [True]}, RejectedError, "1 entries for 6 devices"),
    ],
)
def test_commands_out_of_place(
    tmp_path: Path, fields: dict[str, object], error: type[RejectedError], reason: str
) -> None:
    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start(EDGE)
            while EDGE not in federation.network.members:
                await asyncio.sleep(0.01)
            await claim_term(Identity("edge", 0), EDGE, 9, federation.network)
            client = MemoryClient(Identity("edge", 0), federation.network)
            with pytest.raises(error, match=reason):
                await client.send(EDGE, "estimate", Message(encode({"available": [True] * 6, **fields})), 5)

    asyncio.run(play())


def exaggerate(report: DeviceReport, order: DeviceOrder, *rest: Any) -> UploadRequest:
    """Device 5 tells an absurd σ²; the rest of its upload is well formed."""
    if order.device == 5 and report.estimates is not None:
        report = replace(report, estimates=replace(report.estimates, sigma2=1e90, g2=1.0))
    return make_upload(report, order, *rest)


@pytest.mark.parametrize(
    ("scheme", "tolerance"),
    # HCEF+ plans batches of whole samples, so a slightly different mean of σ² can give another batch.
    [("hcef", 0.01), ("hcef_plus", 0.3)],
)
def test_one_absurd_estimate_does_not_rule_the_plans_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, tolerance: float
) -> None:
    """Device 5 tells σ² = 10⁹⁰ in every upload: not believed, counted, and nobody is asked for less."""
    experiment = deployed(
        {"rounds": {"global": 3, "edge": 1}, "local": {"estimator": "reuse"}, "scheme": {"name": scheme}}
    )

    async def play(directory: Path) -> tuple[list[RoundRecord], int]:
        async with Federation(experiment, directory) as federation:
            federation.start()
            await federation.finished()
            counts = [
                node.rejections.get("its σ² and G² are not plausible", 0)
                for node in federation.edges.values()
            ]
            return federation.records(), sum(counts)

    honest, none = asyncio.run(play(tmp_path / "honest"))
    monkeypatch.setattr(device_agent, "make_upload", exaggerate)
    swayed, doubts = asyncio.run(play(tmp_path / "lying"))
    assert (none, doubts) == (0, 3)
    assert swayed[0].rho_mean == honest[0].rho_mean
    assert swayed[1].rho_mean == pytest.approx(honest[1].rho_mean, rel=tolerance)
    assert swayed[2].rho_mean > 0.2
    # Device 5 counts as the mean of the others.
    assert swayed[1].sigma2 == pytest.approx(honest[1].sigma2, rel=0.5)


@pytest.mark.parametrize("scheme", ["hcef", "hcef_plus"])
def test_repeated_absurd_estimates_lead_to_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Its updates are well formed, so its edge server never rejects one."""
    monkeypatch.setattr(device_agent, "make_upload", exaggerate)
    experiment = deployed(
        {"rounds": {"global": 4, "edge": 1}, "local": {"estimator": "reuse"}, "scheme": {"name": scheme}},
        quarantine_after=2,
    )
    lines = play_to_the_end(experiment, tmp_path)
    assert [line.devices_taking_part for line in lines] == [6, 6, 5, 5]


def test_negative_variances_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With batch norm, their roots would make every output of every model NaN."""

    def lie(report: DeviceReport, order: DeviceOrder, *rest: Any) -> UploadRequest:
        report = replace(report, buffers=-10 * report.buffers.abs()) if order.device == 5 else report
        return make_upload(report, order, *rest)

    monkeypatch.setattr(device_agent, "make_upload", lie)
    model = {"model": {"name": "tests.architectures:batch_norm_of_values"}, "data": {"batch": 10}}
    (line,) = play_to_the_end(deployed({"rounds": {"global": 1, "edge": 1}, **model}), tmp_path)
    assert line.devices_taking_part == 5
    assert line.loss is not None
    assert math.isfinite(line.loss)


@pytest.mark.parametrize("loss", [1.7e308, -1.7e308])
def test_losses_near_the_largest_float_do_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    """Two of them in one global round add up to more than a float can hold."""

    def lie(report: DeviceReport, order: DeviceOrder, *rest: Any) -> UploadRequest:
        return make_upload(replace(report, loss=loss) if order.device == 5 else report, order, *rest)

    monkeypatch.setattr(device_agent, "make_upload", lie)
    (line,) = play_to_the_end(deployed({"rounds": {"global": 1, "edge": 6}}), tmp_path)
    assert line.loss is not None
    assert abs(line.loss) < 100


def test_emulation_takes_the_fleets_time(tmp_path: Path) -> None:
    """1 virtual second takes 1 ms: a round of some 500 virtual seconds takes at least its share of that."""
    experiment = deployed(
        {"rounds": {"global": 1}, "simulation": {"accounting": "realised"}}, time_scale=1e-3
    )
    line = play_to_the_end(experiment, tmp_path)[0]
    gossip = max(experiment.build_world().setting.backhaul_seconds)
    assert line.wall_seconds >= 1e-3 * (line.seconds - gossip)
