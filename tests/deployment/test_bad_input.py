"""Every kind of bad input, over TLS, at a desk with an open round: refused, counted, nobody else notices.

Device 4 misbehaves, device 5 does not. `docs/security.md` lists the kinds by the names used here.
"""

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import upload
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Credentials, GrpcCalls, GrpcServer, Method
from cfel.deployment.transport.messages import MOST_HEADER_BYTES, Message, pieces
from cfel.errors import RejectedError
from cfel.learning.compression.compressors import DenseUpdate
from tests.deployment.test_payloads import (
    GOOD,
    INDICES_AT,
    MODEL,
    ORDER,
    REPORT,
    UPDATE_AT,
    VALUES_AT,
    header,
    patched,
)

EDGE, BAD, OTHER, ELSEWHERE = (
    Identity("edge", 0),
    Identity("device", 4),
    Identity("device", 5),
    Identity("device", 6),
)
OPERATOR = Identity("operator", 0)


@dataclass(frozen=True)
class Kind:
    """One kind of bad input.

    Attributes:
        sent: the bytes, piece by piece.
        reason: part of what the sender hears.
        method: what is called.
        caller: by whom.
        again: whether the same device's good upload is taken afterwards.
    """

    sent: list[bytes]
    reason: str
    method: str = "upload"
    caller: Identity = BAD
    again: bool = True


def wire(message: Message) -> list[bytes]:
    return list(pieces(message))


def content(message: Message, reason: str) -> Kind:
    """A whole message with a bad content: whoever sends it is not waited for in this round."""
    return Kind(wire(message), reason, again=False)


FIRST, BODY = wire(GOOD)


def started(offset: int, form: str, value: int) -> bytes:
    """The first piece of a good upload with another number in its fixed part."""
    field = struct.pack(form, value)
    return FIRST[:offset] + field + FIRST[offset + len(field) :]


def with_header(text: bytes) -> list[bytes]:
    return [started(6, "<I", len(text))[:50] + text, BODY]


WIDER = replace(REPORT, update=DenseUpdate(MODEL.parameters.new_zeros(41)))

KINDS = {
    "garbage bytes": Kind([b"\x00" + os.urandom(99)], "not a message of cfel"),
    "nothing at all": Kind([], "an empty message"),
    "an empty piece": Kind([b""], "not the start of a message"),
    "protocol version from the future": Kind([started(4, "<H", 9), BODY], "protocol version 9"),
    "protocol version from the past": Kind([started(4, "<H", 0), BODY], "protocol version 0"),
    "truncated message": Kind([FIRST, BODY[:-3]], "cut short"),
    "truncated header": Kind([FIRST[:-3], BODY], "were announced"),
    "more bytes than announced": Kind([FIRST, BODY, b"more"], "more than the"),
    "damaged on the way": Kind([FIRST, bytes(reversed(BODY))], "SHA-256"),
    "header that is not JSON": Kind(with_header(b"{'round': 1}"), "not JSON"),
    "header nested without end": Kind(with_header(b"[" * 100_000), "not JSON"),
    "header that is no object": Kind(with_header(b"[1, 2, 3]"), "not an object"),
    "oversized body": Kind([started(10, "<Q", 2**40), BODY], "too large"),
    "oversized header": Kind([started(6, "<I", MOST_HEADER_BYTES + 1), BODY], "too large"),
    "body where none belongs": Kind(wire(Message({}, b"body")), "too large", "next"),
    "wrong global round": Kind(wire(header(global_round=2)), "of round"),
    "wrong edge round": Kind(wire(header(edge_round=0)), "of round"),
    "whole number beyond all bounds": Kind(wire(header(global_round=10**400)), "global_round"),
    "estimates when an update is asked": Kind(
        wire(Message({"sigma2": 1.0, "g2": 1.0})), "no estimate", "estimates"
    ),
    "model that is not on offer": Kind(wire(Message({"sha256": "0" * 64})), "not needed", "model"),
    "device of another edge server": Kind(wire(GOOD), "belongs to another edge server", caller=ELSEWHERE),
    "command of another role": Kind(wire(Message({"term": 9})), "not for a device", "plan"),
    "operator that sends an upload": Kind(wire(GOOD), "not for a operator", caller=OPERATOR),
    "method that does not exist": Kind(wire(Message()), "not found", "format_disk"),
    "fields missing": content(Message({"global_round": 3, "edge_round": 1}, GOOD.body), "steps"),
    "NaN in the update": content(patched(VALUES_AT, struct.pack("<f", float("nan"))), "finite"),
    "Inf in the update": content(patched(VALUES_AT, struct.pack("<f", float("inf"))), "finite"),
    "NaN in the buffers": content(patched(0, struct.pack("<f", float("nan"))), "finite"),
    "indices out of order": content(patched(INDICES_AT, b"\x00\x00\x00"), "ascending"),
    "indices out of range": content(patched(INDICES_AT, b"\xff\xff\xff"), "ascending"),
    "wrong shape": content(upload(WIDER, ORDER), "the model has 40"),
    "more values than the model has": content(patched(UPDATE_AT + 5, struct.pack("<I", 2**31)), "update"),
    "unknown kind of update": content(patched(UPDATE_AT, b"\x07"), "unknown kind"),
    "update cut short": content(Message(GOOD.header, GOOD.body[:-1]), "update"),
    "bytes behind the update": content(Message(GOOD.header, GOOD.body + b"\0"), "update"),
    "more steps than asked": content(header(steps=6), "at most 5"),
    "no samples": content(header(samples=0), "samples"),
    "loss that is no number": content(header(loss="low"), "loss"),
    "NaN as estimate": content(header(sigma2=float("nan")), "sigma2"),
    "negative variance": content(header(sigma2=-1.0), "sigma2"),
    "Inf as estimate": content(header(g2=float("inf")), "g2"),
    "shares of energy beyond 1": content(header(kept_energy=[2.0]), "kept_energy"),
    "wrong number of shares": content(header(kept_energy=[0.5] * 9), "kept_energy"),
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_authority(directory)
    for member in (EDGE, BAD, OTHER, ELSEWHERE, OPERATOR):
        issue(directory, member, hours=1)
    return directory


class Open:
    """A desk with devices 4 and 5 and an open round, and what came of it."""

    def __init__(self, certificates: Path, **limits: Any) -> None:
        self._certificates = certificates
        self.refused: list[tuple[Identity | None, str, str]] = []
        parameters = DeploymentParameters(round_seconds=30.0, gone_seconds=30.0, **limits)
        self._compute = ComputeThread()
        now = asyncio.get_running_loop().time
        self.desk = DeviceService((4, 5), MODEL, parameters, self._compute, now, kept_entries=1)
        methods = {**self.desk.methods(), "plan": Method(("edge",), self._never)}
        credentials = Credentials.read(certificates, EDGE)
        self._server = GrpcServer(credentials, methods, lambda *each: self.refused.append(each), parameters)
        orders = {4: ORDER, 5: replace(ORDER, device=5)}
        self.reports = asyncio.ensure_future(self.desk.collect_reports(orders, {}))
        self.address = ""

    async def start(self) -> None:
        """Listens."""
        self.address = f"127.0.0.1:{await self._server.start('127.0.0.1:0')}"

    async def stop(self) -> None:
        """Leaves nothing behind."""
        self.reports.cancel()
        await self._server.stop(0)
        self._compute.close()

    async def _never(self, caller: Identity, message: Message) -> Message:
        raise AssertionError(f"{caller} got through with {message}")

    async def raw(self, caller: Identity, method: str, sent: Iterable[bytes] | AsyncIterator[bytes]) -> str:
        """Sends bytes as they are; what the caller hears."""
        own = Credentials.read(self._certificates, caller)
        secure = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        options = (("grpc.ssl_target_name_override", EDGE.host),)
        async with grpc.aio.secure_channel(self.address, secure, options=options) as channel:
            call = channel.stream_stream(f"/cfel.Federation/{method}")(sent, timeout=20)
            try:
                _ = [piece async for piece in call]
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
            return "accepted"

    async def good(self, who: Identity) -> Message:
        """An honest upload."""
        calls = GrpcCalls(Credentials.read(self._certificates, who), {EDGE: self.address}, 1000)
        try:
            return await calls.call(EDGE, "upload", GOOD, 20)
        finally:
            await calls.close()


@asynccontextmanager
async def opened(certificates: Path, **limits: Any) -> AsyncIterator[Open]:
    desk = Open(certificates, **limits)
    await desk.start()
    try:
        yield desk
    finally:
        await desk.stop()


@pytest.mark.parametrize("name", KINDS)
def test_refused_counted_and_nobody_else_notices(certificates: Path, name: str) -> None:
    kind = KINDS[name]

    async def play() -> None:
        async with opened(certificates) as desk:
            heard = await desk.raw(kind.caller, kind.method, iter(kind.sent))
            assert kind.reason.lower() in heard.lower()
            if kind.method != "format_disk":
                ((who, method, reason),) = desk.refused
                assert (who, method) == (kind.caller, kind.method)
                assert kind.reason in reason
            assert (await desk.good(OTHER)).header == {"accepted": True}
            if kind.again:
                await desk.good(BAD)
            else:
                with pytest.raises(RejectedError, match="no update is asked of device 4"):
                    await desk.good(BAD)
            assert sorted(await desk.reports) == ([4, 5] if kind.again else [5])

    asyncio.run(play())


def test_replay_and_claims_to_be_somebody_else(certificates: Path) -> None:
    """A copy in the round is acknowledged and not used; after it, refused. The certificate says who sends."""
    posing = Message({**GOOD.header, "device": 5}, GOOD.body)

    async def play() -> None:
        async with opened(certificates) as desk:
            assert await desk.raw(BAD, "upload", iter(wire(posing))) == "accepted"
            assert await desk.raw(BAD, "upload", iter(wire(header(steps=1)))) == "accepted"
            await desk.good(OTHER)
            reports = await desk.reports
            assert {n: report.steps for n, report in reports.items()} == {4: 3, 5: 3}
            later = {4: replace(ORDER, global_round=4)}
            again = asyncio.ensure_future(desk.desk.collect_reports(later, {}))
            await asyncio.sleep(0.05)
            assert "update of round (3, 1), asked was (4, 1)" in await desk.raw(
                BAD, "upload", iter(wire(GOOD))
            )
            again.cancel()

    asyncio.run(play())


def test_slow_loris_is_cut_off_and_a_slow_link_is_not(certificates: Path) -> None:
    """0.3 s for a request and 100 bytes a second besides: 61 bytes in 0.6 s are in time, silence is not."""

    async def dripped() -> AsyncIterator[bytes]:
        yield FIRST
        for at in range(0, len(BODY), 8):
            await asyncio.sleep(0.05)
            yield BODY[at : at + 8]

    async def silent() -> AsyncIterator[bytes]:
        yield FIRST
        await asyncio.sleep(15)

    async def play() -> None:
        async with opened(certificates, receive_seconds=0.3, least_bytes_per_second=50.0) as desk:
            assert len(BODY) > 30
            assert "too slowly" in await desk.raw(BAD, "upload", silent())
            assert [reason for _, _, reason in desk.refused] == ["the request came too slowly"]
            assert await desk.raw(BAD, "upload", dripped()) == "accepted"
            await desk.good(OTHER)

    asyncio.run(play())


def test_whoever_dies_in_the_middle_is_not_counted_as_refused(certificates: Path) -> None:
    async def cut_off() -> AsyncIterator[bytes]:
        yield FIRST
        await asyncio.sleep(15)

    async def play() -> None:
        async with opened(certificates) as desk:
            call = asyncio.create_task(desk.raw(BAD, "upload", cut_off()))
            await asyncio.sleep(0.3)
            call.cancel()
            await asyncio.wait([call])
            await asyncio.sleep(0.2)
            await desk.good(OTHER)
            await desk.good(BAD)
            assert desk.refused == []

    asyncio.run(play())


def test_a_flood_is_told_to_come_later_and_others_are_served(certificates: Path) -> None:
    """5 calls a second, 10 at once: of 50 within some seconds many are refused, and all of these counted."""

    async def play() -> None:
        async with opened(certificates, calls_per_second=5.0) as desk:
            ask = wire(Message({"sha256": "0" * 64}))
            heard = await asyncio.gather(*(desk.raw(BAD, "model", iter(ask)) for _ in range(50)))
            busy = sum(each.startswith("RESOURCE_EXHAUSTED: more than 5 calls a second") for each in heard)
            assert busy >= 15
            assert sum("calls a second" in reason for _, _, reason in desk.refused) == busy
            await desk.good(OTHER)

    asyncio.run(play())


def test_a_fault_of_the_servers_own_is_logged_and_not_the_end_of_it(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with opened(certificates) as desk:
            asked = wire(Message({"term": 1}))
            assert (await desk.raw(EDGE, "plan", iter(asked))).startswith("INTERNAL: failed: AssertionError")
            await desk.good(OTHER)

    asyncio.run(play())
    assert "plan of edge-0 failed" in caplog.text


def test_the_documentation_lists_every_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    assert [name for name in KINDS if f"| {name} |" not in page] == []
