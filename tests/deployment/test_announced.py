"""A model that is named before its order: fetched once, ahead, and never in place of another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cfel.deployment.edge.devices import DeviceService
from cfel.deployment.host import make_host
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import EncodedModels
from cfel.deployment.protocol.calls import Answer, RemoteCalls, Request
from cfel.deployment.protocol.device_requests import (
    ModelRequest,
    NextAnswer,
    NextModel,
    NextOrder,
    NextRequest,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.models.flat import FlatModel
from cfel.rounds.kernel import make_order
from cfel.world import World
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import play_to_the_end

DEVICES = (0, 1)
WORLD: World = deployed().build_world()
MODEL = WORLD.start
OTHER = FlatModel(MODEL.parameters + 1, MODEL.buffers)


@asynccontextmanager
async def serving() -> AsyncIterator[DeviceService]:
    host = make_host()
    try:
        parameters = DeploymentParameters(round_seconds=0.3, quarantine_after=3)
        yield DeviceService(DEVICES, MODEL, parameters, host, EncodedModels(host.compute))
    finally:
        host.compute.close()


def orders(model: FlatModel, *devices: int) -> dict[int, DeviceOrder]:
    return {n: make_order(WORLD.setting, 0, 0, n, 1.0, 1.0, model) for n in devices}


async def news(at: DeviceService, device: int, known: str = "") -> NextAnswer:
    return await asyncio.wait_for(at.next(Identity("device", device), NextRequest(known)), 5)


async def next_order(at: DeviceService, device: int, known: str = "") -> NextOrder:
    found = await news(at, device, known)
    assert isinstance(found, NextOrder)
    return found


async def after_a_round(at: DeviceService, *devices: int) -> None:
    """Nobody answers; what counts is who was asked."""
    assert (await at.collect_reports(orders(MODEL, *devices), {})).values == {}


def test_the_model_is_named_and_can_be_fetched_before_its_order() -> None:
    async def play() -> None:
        async with serving() as at:
            await after_a_round(at, *DEVICES)
            await at.announce(OTHER)
            soon = await news(at, 0)
            assert isinstance(soon, NextModel)
            assert soon.model_sha256 == OTHER.sha256().hex()
            answer = await at.model(Identity("device", 0), ModelRequest(OTHER.sha256().hex()))
            assert answer.model.join() == OTHER.parameters.numpy().tobytes()
            with pytest.raises(RejectedError, match="not needed any more"):
                await at.model(Identity("device", 0), ModelRequest(MODEL.sha256().hex()))
            collecting = asyncio.create_task(at.collect_reports(orders(OTHER, *DEVICES), {}))
            update = await next_order(at, 0, soon.serial)
            assert (update.kind, update.order.model) == ("update", OTHER.sha256().hex())
            await collecting

    asyncio.run(play())


@pytest.mark.parametrize("asked", [(), (1,)])
def test_nothing_is_named_where_only_some_took_part(asked: tuple[int, ...]) -> None:
    async def play() -> None:
        async with serving() as at:
            await after_a_round(at, *asked)
            await at.announce(OTHER)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(at.next(Identity("device", 0), NextRequest("")), 0.2)

    asyncio.run(play())


def test_a_device_in_quarantine_gets_no_orders() -> None:
    async def play() -> None:
        async with serving() as at:
            await after_a_round(at, *DEVICES)
            at.rejected[0] = 100
            await at.announce(OTHER)
            assert at.states()[0] == "quarantined"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(at.next(Identity("device", 0), NextRequest("")), 0.2)
            assert isinstance(await news(at, 1), NextModel)

    asyncio.run(play())


def test_an_order_is_never_about_the_model_before() -> None:
    """Whoever asks while the pieces of the next model are still being cut waits for them."""

    async def play() -> None:
        async with serving() as at:
            await after_a_round(at, *DEVICES)
            collecting = asyncio.create_task(at.collect_reports(orders(OTHER, *DEVICES), {}))
            await asyncio.sleep(0)
            update = await next_order(at, 1)
            assert update.order.model == OTHER.sha256().hex()
            await collecting

    asyncio.run(play())


def test_a_late_announcement_does_not_disturb_an_order() -> None:
    async def play() -> None:
        async with serving() as at:
            await after_a_round(at, *DEVICES)
            collecting = asyncio.create_task(at.collect_reports(orders(OTHER, *DEVICES), {}))
            assert (await next_order(at, 0)).kind == "update"
            await at.announce(MODEL)
            answer = await at.model(Identity("device", 0), ModelRequest(OTHER.sha256().hex()))
            assert answer.model.digest == OTHER.sha256()
            await collecting

    asyncio.run(play())


def test_every_model_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three global rounds of two edge rounds, six devices: 36 orders; estimates use the first one's model.

    At the end, each of the six fetches the last model, which it publishes.
    """
    fetched: list[str] = []
    reported: list[str] = []
    call = RemoteCalls.call

    async def watch(self: RemoteCalls, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        if isinstance(request, ModelRequest):
            fetched.append(request.sha256)
        answer = await call(self, to, request, seconds)
        match answer:
            case NextOrder():
                reported.append(answer.kind)
            case NextModel():
                reported.append("next model")
        return answer

    monkeypatch.setattr(RemoteCalls, "call", watch)
    assert len(play_to_the_end(deployed(), tmp_path)) == 3
    assert len(fetched) == 36 + 6
    assert reported.count("update") == 36
    # After the first edge round of each global round and between global rounds; a busy device may miss one.
    assert 15 <= reported.count("next model") <= 30
