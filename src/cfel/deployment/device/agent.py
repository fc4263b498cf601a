"""A device: asks for orders, trains, and uploads its update; it remembers before it sends.

It is a client only, so it works behind any firewall. What it keeps (memory of its algorithm, residual, last
upload) is on the disk before the upload is sent: an order that comes again gets the same bytes, and an upload
that its edge server did not use goes back into the residual, where error feedback is on.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cfel import __version__
from cfel.cost import realised_seconds
from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.device.backoff import Backoff
from cfel.deployment.device.edge_link import EdgeLink
from cfel.deployment.device.memory import Memory, Sent, load_memory, order_key, return_unused, save_memory
from cfel.deployment.disk_writes import DiskHealth, DiskWrites
from cfel.deployment.edge.device_service import POLL_SECONDS
from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.deployment.measurement.meters import Mark
from cfel.deployment.measurement.self_measurement import SelfMeasurement
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import make_upload
from cfel.deployment.protocol.calls import Calls
from cfel.deployment.protocol.device_requests import (
    MOST_WHAT_CHARACTERS,
    DivergedRequest,
    EstimatesRequest,
    ExperimentOver,
    IssuedOrder,
    NextModel,
    NextRequest,
    NoOrder,
    UploadRequest,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import (
    DivergedError,
    NotAdmittedError,
    RejectedError,
    SilentEdgeServerError,
    UnreachableError,
)
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.local.estimates import refresh_estimates
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel, complete_model
from cfel.learning.task import DeviceData
from cfel.rounds.kernel import make_order
from cfel.seeding import make_generator
from cfel.world import World

_LOG = logging.getLogger(__name__)


class DeviceAgent:
    """One device.

    Args:
        world: what is run.
        number: which device.
        data: what it holds.
        parameters: how long calls may take, and emulation.
        calls: how it reaches its edge server.
        directory: where its memory is kept.
        compute: where it trains.
        now: a monotonic clock.
        energy: the host's counter of joules, if it has one and conditions are measured.
    """

    def __init__(
        self,
        world: World,
        number: int,
        data: DeviceData,
        parameters: DeploymentParameters,
        calls: Calls,
        directory: Path,
        compute: ComputeThread,
        now: Callable[[], float],
        energy: EnergyCounter | None = None,
    ) -> None:
        self._world, self._number, self._data, self._parameters = world, number, data, parameters
        self._calls, self._compute, self._now = calls, compute, now
        self._edge = Identity("edge", int(world.setting.fleet.cluster[number]))
        self._disk = DiskWrites(compute, DiskHealth(now))
        self._path = directory / "memory.bin"
        self._memory = load_memory(self._path, world.new_device)
        self._meter = SelfMeasurement(
            world, number, now, energy, self._memory.measured, enabled=parameters.measures
        )
        self._workspace = Workspace(world.task, world.training, world.compress)
        # Orders wait here while the device works on an earlier one; `_work` skips those that were replaced.
        self._orders: asyncio.Queue[NextModel | IssuedOrder] = asyncio.Queue()
        self._newest = self._newest_model = ""
        # A model that is here before its order, with its digest.
        self._ahead: tuple[str, FlatModel] | None = None
        # Each device draws its own waits, so that a restarted edge server is not called by all of them at
        # once.
        draw = make_generator(world.setting.seed, "patience", number).random
        self._asking = Backoff(str(self._edge), now, draw)
        working = Backoff(str(self._edge), now, draw)
        self._link = EdgeLink(calls, self._edge, parameters, world.start, working, now)

    async def run(self) -> None:
        """Works until the experiment is over.

        Raises:
            RejectedError: its edge server does not admit it any more.
            SilentEdgeServerError: its edge server has been silent for `give_up_seconds`.
        """
        # Two tasks: an open request for orders shows the edge server that the device is there while it
        # trains.
        parts = [asyncio.create_task(self._listen()), asyncio.create_task(self._work())]
        try:
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        for part in ended:
            part.result()

    async def _listen(self) -> None:
        """Keeps one request for a new order open until there are no more."""
        while True:
            try:
                request = NextRequest(self._newest, __version__)
                answer = await self._calls.call(self._edge, request, POLL_SECONDS + 10)
            except UnreachableError as error:
                _LOG.info("no answer: %s", error)
                self._check_silence()
                await asyncio.sleep(self._asking.next_seconds())
                continue
            self._asking.reset()
            match answer:
                case ExperimentOver():
                    _LOG.info("the experiment is over")
                    return
                case NoOrder():
                    continue
                case _:
                    self._newest, self._newest_model = answer.serial, answer.model_sha256
                    self._orders.put_nowait(answer)

    def _check_silence(self) -> None:
        """Ends a device that missed the end of the experiment: nobody is left to inform it."""
        silent, most = self._asking.silent_seconds, self._parameters.give_up_seconds
        if most and silent > most:
            raise SilentEdgeServerError(
                f"{self._edge} has not answered for {silent:.0f} s: the experiment is probably over; "
                "if it is not, start the device again"
            )

    async def _work(self) -> None:
        while True:
            order = await self._orders.get()
            # A newer order has arrived meanwhile, so nobody waits for the answer to this one.
            if order.serial != self._newest:
                continue
            try:
                if isinstance(order, NextModel):
                    self._ahead = await self._fetch_model(order)
                else:
                    await self._carry_out(order)
            except NotAdmittedError:
                # It ends, and gets its order again when it is started with a certificate that is admitted.
                # If it stayed, its edge server would wait for an answer that it has given up.
                raise
            except RejectedError as error:
                _LOG.warning("order %s given up: %s", order.serial, error)

    async def _carry_out(self, issued: IssuedOrder) -> None:
        try:
            await (self._estimate(issued) if issued.kind == "estimate" else self._update(issued))
        except DivergedError as error:
            # It continues: another device may have spoiled the model, and would end the processes of all.
            _LOG.error("order %s given up: %s", issued.serial, error)
            what = error.what[:MOST_WHAT_CHARACTERS]
            await self._send(issued, DivergedRequest(issued.kind, issued.round, what))

    async def _estimate(self, issued: IssuedOrder) -> None:
        order = await self._complete_order(issued)
        before, begin = self._memory.state, self._meter.begin()
        order = replace(order, model=complete_model(order.model, before.memory))
        fresh = await self._compute.run(lambda: device_estimate(order, self._data, self._workspace))
        measured = self._meter.finish_estimates(order, begin)
        state = replace(before, estimates=refresh_estimates(before.estimates, fresh))
        await self._remember(Memory(state, self._memory.sent))
        await self._send(issued, EstimatesRequest(issued.round, fresh, measured))

    async def _update(self, issued: IssuedOrder) -> None:
        sent = self._memory.sent
        # The same order again: its edge server lost the answer. Training again would change momentum and
        # residual twice.
        if sent is None or sent.key != order_key(issued):
            sent = await self._train(issued)
        await self._send(issued, sent.upload)
        global_round, edge_round = issued.round
        steps, size = sent.upload.steps, len(sent.upload.content)
        _LOG.info("round %d.%d: %d steps, %d bytes sent", global_round + 1, edge_round + 1, steps, size)

    async def _train(self, issued: IssuedOrder) -> Sent:
        order = await self._complete_order(issued)
        memory = self._memory
        if self._world.training.error_feedback:
            memory = return_unused(memory, issued.last_used_round)
        begin = self._meter.begin()
        report, state = await self._compute.run(
            lambda: device_update(order, self._data, memory.state, self._workspace)
        )
        steps = float(self._world.setting.charge_steps(report.steps, order.rho))
        await self._emulate(issued, begin, steps=steps)
        measured = self._meter.finish_training(order, begin, steps)
        sent = Sent(order_key(issued), make_upload(report, order, measured))
        # On disk before anything is sent: after a crash the device must not train the same order to other
        # bits.
        await self._remember(Memory(state, sent))
        return sent

    async def _send(
        self, issued: IssuedOrder, request: EstimatesRequest | UploadRequest | DivergedRequest
    ) -> None:
        """Sends until it is answered; only the attempt that was answered counts as the time it took."""
        theta = issued.theta if isinstance(request, UploadRequest) else 0.0
        while issued.serial == self._newest:
            begin = self._meter.begin()
            await self._emulate(issued, begin, theta=theta)
            sent_bytes = await self._link.try_send(request)
            if sent_bytes is not None:
                self._meter.finish_call(begin, 8 * sent_bytes)
                return
        raise RejectedError("a newer order has come")

    async def _emulate(
        self, issued: IssuedOrder, begin: Mark, *, steps: float = 0.0, theta: float = 0.0
    ) -> None:
        """Waits until the device of the experiment would have taken its steps, or sent its upload."""
        if not self._parameters.time_scale:
            return
        now = self._world.setting.conditions(*issued.round)
        n = self._number
        # At a slower clock a step takes longer, as it is charged.
        seconds = float(realised_seconds(steps, theta, now.mu[n] / issued.speed, now.nu[n]))
        left = seconds * self._parameters.time_scale - (self._now() - begin.seconds)
        await asyncio.sleep(max(0.0, left))

    async def _complete_order(self, issued: IssuedOrder) -> DeviceOrder:
        """The order with its model."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != issued.model_sha256:
            ahead = await self._fetch_model(issued)
        is_newest = issued.serial == self._newest
        if issued.kind == "estimate" or not is_newest:
            self._ahead = ahead  # the next order starts from the same model
        if not is_newest:
            raise RejectedError("a newer order has come")
        setting, asked = self._world.setting, (issued.rho, issued.theta)
        return make_order(setting, *issued.round, self._number, *asked, model=ahead[1], rate=issued.rate)

    async def _fetch_model(self, issued: NextModel | IssuedOrder) -> tuple[str, FlatModel]:
        """The model that is named, and its digest; tries until the newest order needs another one."""
        sha256 = issued.model_sha256
        return sha256, await self._link.fetch_model(sha256, lambda: sha256 == self._newest_model)

    async def _remember(self, memory: Memory) -> None:
        memory = replace(memory, measured=self._meter.known)
        await self._disk.write("memory", lambda: save_memory(self._path, memory))
        self._memory = memory
