"""A device's part: asks for orders, trains, and leaves its upload; remembers before it sends.

It is a client only, so it works behind any firewall. What it keeps (momentum, residual, last upload) is on
the disk before the upload goes out: an order that comes again gets the same bytes, and an upload that its
edge server did not use goes back into the residual, where error feedback is on.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cfel.cost import realised_seconds
from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.device.backoff import Backoff
from cfel.deployment.device.memory import Key, Memory, Sent, load_memory, save_memory, with_unused_returned
from cfel.deployment.edge.device_service import POLL_SECONDS
from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.deployment.measurement.meters import Mark
from cfel.deployment.measurement.self_measurement import SelfMeasurement
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import model_from, upload
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls
from cfel.deployment.transport.messages import Message
from cfel.errors import RejectedError, UnreachableError
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.local.estimates import refresh_estimates
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import device_estimate, device_update
from cfel.learning.task import DeviceData
from cfel.rounds.orders import make_order
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
        now: a clock that only runs forward.
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
        self._path = directory / "memory.bin"
        self._memory = load_memory(self._path)
        self._meter = SelfMeasurement(
            world, number, now, energy, self._memory.measured, enabled=parameters.measures
        )
        self._workspace = Workspace(world.task, world.local, world.compress)
        self._orders: asyncio.Queue[Message] = asyncio.Queue()
        self._newest = ""
        self._ahead: tuple[str, FlatModel] | None = None
        draw = make_generator(world.setting.seed, "patience", number).random
        self._asking = Backoff(str(self._edge), now, draw)
        self._working = Backoff(str(self._edge), now, draw)

    async def run(self) -> None:
        """Works until the experiment is over.

        Raises:
            RejectedError: its edge server lets it in no more.
        """
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
        """Keeps one question for a new order open until there are no more."""
        while True:
            try:
                asked = Message({"after": self._newest})
                answer = await self._calls.call(self._edge, "next", asked, POLL_SECONDS + 10)
            except UnreachableError as error:
                _LOG.info("no answer: %s", error)
                await asyncio.sleep(self._asking.seconds())
                continue
            self._asking.answered()
            kind = answer.text("kind")
            if kind == "finished":
                _LOG.info("the experiment is over")
                return
            if kind != "nothing":
                self._newest = answer.text("serial")
                self._orders.put_nowait(answer)

    async def _work(self) -> None:
        while True:
            order = await self._orders.get()
            if order.text("serial") != self._newest:
                continue
            try:
                match order.text("kind"):
                    case "soon":
                        self._ahead = await self._fetched(order)
                    case "estimate":
                        await self._estimate(order)
                    case _:
                        await self._update(order)
            except RejectedError as error:
                _LOG.warning("%s %s given up: %s", order.text("kind"), order.text("serial"), error)

    async def _estimate(self, asked: Message) -> None:
        order = await self._order(asked)
        before, begin = self._memory.state, self._meter.begin()
        fresh = await self._compute.run(lambda: device_estimate(order, self._data, self._workspace))
        told = self._meter.finish_estimates(order, begin)
        state = replace(before, estimates=refresh_estimates(before.estimates, fresh))
        await self._remember(Memory(state, self._memory.sent))
        found = {"sigma2": fresh.sigma2, "g2": fresh.g2}
        await self._send(asked, "estimates", Message({**_place(order), **found, **told}))

    async def _update(self, asked: Message) -> None:
        sent = self._memory.sent
        key = (*_round(asked), asked.text("model_sha256"), asked.number("rho"), asked.number("theta"))
        if sent is None or sent.key != key:
            sent = await self._trained(asked, key)
        await self._send(asked, "upload", Message(sent.header, sent.body))
        _LOG.info("round %d.%d: %d steps, %d bytes sent", *_told(asked, sent))

    async def _trained(self, asked: Message, key: Key) -> Sent:
        order = await self._order(asked)
        used = asked.header.get("used")
        memory = self._memory
        if self._world.local.error_feedback:
            memory = with_unused_returned(memory, None if used is None else (used[0], used[1]))
        begin = self._meter.begin()
        report, state = await self._compute.run(
            lambda: device_update(order, self._data, memory.state, self._workspace)
        )
        await self._emulated(_round(asked), begin, steps=report.steps)
        message, told = upload(report, order), self._meter.finish_training(order, begin, report.steps)
        sent = Sent(key, {**message.header, **told}, message.body)
        await self._remember(Memory(state, sent))
        return sent

    async def _send(self, asked: Message, method: str, message: Message) -> None:
        """Sends until it is answered; only the try that was counts as the time it took."""
        at, theta = _round(asked), asked.number("theta") if message.body else 0.0
        while asked.text("serial") == self._newest:
            begin = self._meter.begin()
            await self._emulated(at, begin, theta=theta)
            if await self._tried(method, message) is not None:
                self._meter.finish_call(begin, 8 * len(message.body))
                return
        raise RejectedError("a newer order has come")

    async def _emulated(
        self, at: tuple[int, int], begin: Mark, *, steps: int = 0, theta: float = 0.0
    ) -> None:
        """Waits until the device of the experiment would have taken its steps, or sent its upload."""
        if not self._parameters.time_scale:
            return
        now = self._world.setting.conditions(*at)
        n = self._number
        seconds = float(realised_seconds(steps, theta, now.mu[n], now.nu[n]))
        left = seconds * self._parameters.time_scale - (self._now() - begin.seconds)
        await asyncio.sleep(max(0.0, left))

    async def _order(self, asked: Message) -> DeviceOrder:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != asked.text("model_sha256"):
            ahead = await self._fetched(asked)
        rho, theta = asked.number("rho"), asked.number("theta")
        return make_order(self._world.setting, *_round(asked), self._number, rho, theta, ahead[1])

    async def _fetched(self, asked: Message) -> tuple[str, FlatModel]:
        """The model that is named, and its digest."""
        digest = asked.text("model_sha256")
        answer = await self._patiently(asked, "model", Message({"sha256": digest}))
        if answer.digest.hex() != digest:
            raise RejectedError("the model that came is another one")
        return digest, model_from(answer.body, self._world.start)

    async def _patiently(self, asked: Message, method: str, message: Message) -> Message:
        """Calls until it is answered, or the order is no longer the newest."""
        while asked.text("serial") == self._newest:
            answer = await self._tried(method, message)
            if answer is not None:
                return answer
        raise RejectedError("a newer order has come")

    async def _tried(self, method: str, message: Message) -> Message | None:
        """The answer to one call; None, after a while, if nobody answered."""
        try:
            answer = await self._calls.call(self._edge, method, message, self._parameters.round_seconds)
        except UnreachableError as error:
            _LOG.info("%s: %s", method, error)
            await asyncio.sleep(self._working.seconds())
            return None
        self._working.answered()
        return answer

    async def _remember(self, memory: Memory) -> None:
        memory = replace(memory, measured=self._meter.known)
        await self._compute.run(lambda: save_memory(self._path, memory))
        self._memory = memory


def _round(asked: Message) -> tuple[int, int]:
    return asked.whole("global_round"), asked.whole("edge_round")


def _told(asked: Message, sent: Sent) -> tuple[int, int, int, int]:
    """Global and edge round, counted from 1, steps and bytes."""
    global_round, edge_round = _round(asked)
    return global_round + 1, edge_round + 1, sent.header["steps"], len(sent.body)


def _place(order: DeviceOrder) -> dict[str, int]:
    return {"global_round": order.global_round, "edge_round": order.edge_round}
