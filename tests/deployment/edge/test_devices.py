"""Which answers of a device count: those to its present order, and copies of one that was accepted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from cfel.deployment.edge import devices as device_service
from cfel.deployment.edge.checks import UploadLimits, verify_upload
from cfel.deployment.edge.devices import DeviceService
from cfel.deployment.health import DevicePresence
from cfel.deployment.host import make_host
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import EncodedModels
from cfel.deployment.protocol.device_requests import (
    Confirmation,
    EstimatesRequest,
    ExperimentOver,
    NextRequest,
    UploadRequest,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.learning.local.estimates import Estimates
from tests.deployment.edge.test_checks import MODEL, ORDER, UPLOAD
from tests.support.clock import Clock

DEVICE = Identity("device", 4)
ESTIMATES = EstimatesRequest((3, 1), Estimates(1.0, 1.0))


@asynccontextmanager
async def serving() -> AsyncIterator[DeviceService]:
    host = make_host()
    parameters = DeploymentParameters(round_seconds=5.0, gone_seconds=5.0)
    try:
        models = EncodedModels(host.compute)
        yield DeviceService((4, 5), MODEL, parameters, host, models, UploadLimits(kept_entries=1))
    finally:
        host.compute.close()


async def begin(service: DeviceService) -> None:
    """Lets a round that was just started hand out its orders."""
    while service.states()[4] == "idle" or not service._round.waiting:
        await asyncio.sleep(0)


def other_round() -> UploadRequest:
    return UploadRequest(
        (2, 1), UPLOAD.steps, UPLOAD.loss, UPLOAD.samples, UPLOAD.buffers, UPLOAD.content, UPLOAD.estimates
    )


def test_devices_that_are_silent_for_a_minute_are_named() -> None:
    """And what to do about them; `gone_seconds` is 5."""

    async def play() -> None:
        async with serving() as service:
            clock = Clock()
            service.presence = DevicePresence((4, 5), 5.0, clock)
            clock.seconds = 59.0
            assert service.problem == ""
            clock.seconds = 61.0
            with service.presence.hold_request(4, ""):
                assert service.problem == (
                    "silent: device-5; the others continue without; if gone for good, "
                    "`cfel fleet remove device N`"
                )

    asyncio.run(play())


def test_an_upload_is_not_accepted_because_estimates_are_held() -> None:
    async def play() -> None:
        async with serving() as service:
            collecting = asyncio.create_task(service.collect_estimates({4: ORDER}))
            await begin(service)
            await service.estimates(DEVICE, ESTIMATES)
            with pytest.raises(RejectedError, match="no update is asked of device 4"):
                await service.upload(DEVICE, UPLOAD)
            assert list((await collecting).values) == [4]
            with pytest.raises(RejectedError, match="no update is asked of device 4"):
                await service.upload(DEVICE, UPLOAD)

    asyncio.run(play())


def test_a_copy_is_confirmed_and_that_of_another_round_is_not() -> None:
    """Also after the round: the answer to the first copy may have been lost."""

    async def play() -> None:
        async with serving() as service:
            collecting = asyncio.create_task(service.collect_reports({4: ORDER}, {}))
            await begin(service)
            assert await service.upload(DEVICE, UPLOAD) == Confirmation()
            assert await service.upload(DEVICE, UPLOAD) == Confirmation()
            assert {n: report.steps for n, report in (await collecting).values.items()} == {4: UPLOAD.steps}
            assert await service.upload(DEVICE, UPLOAD) == Confirmation()
            with pytest.raises(RejectedError, match="no update is asked of device 4"):
                await service.upload(DEVICE, other_round())

    asyncio.run(play())


def test_two_copies_at_once_are_both_confirmed() -> None:
    async def play() -> None:
        async with serving() as service:
            collecting = asyncio.create_task(service.collect_reports({4: ORDER}, {}))
            await begin(service)
            both = await asyncio.gather(service.upload(DEVICE, UPLOAD), service.upload(DEVICE, UPLOAD))
            assert list(both) == [Confirmation(), Confirmation()]
            assert list((await collecting).values) == [4]

    asyncio.run(play())


def test_copies_at_once_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred at once kept the edge server from the uploads of all others; bad ones count once, too."""
    verified: list[Any] = []

    def verify(*arguments: Any) -> Any:
        verified.append(arguments)
        return verify_upload(*arguments)

    monkeypatch.setattr(device_service, "verify_upload", verify)
    too_many_steps = structs.replace(UPLOAD, steps=99)

    async def play() -> None:
        async with serving() as service:
            for upload, expected in ((UPLOAD, Confirmation), (too_many_steps, RejectedError)):
                verified.clear()
                collecting = asyncio.create_task(service.collect_reports({4: ORDER}, {}))
                await begin(service)
                copies = (service.upload(DEVICE, upload) for _ in range(20))
                found = await asyncio.gather(*copies, return_exceptions=True)
                await collecting
                assert [type(each) for each in found] == [expected] * 20
                assert len(verified) == 1
            assert service.rejected[4] == 1

    asyncio.run(play())


def test_a_device_of_another_edge_server_hears_of_the_end() -> None:
    """Its own is gone, and nobody takes it over after the last round; it must not ask for ever."""

    async def play() -> None:
        async with serving() as service:
            await service.finish(0.0, 7, MODEL)
            assert await service.next(Identity("device", 9), NextRequest("")) == ExperimentOver(7)

    asyncio.run(play())
