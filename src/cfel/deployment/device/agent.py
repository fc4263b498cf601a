"""A device: asks for orders, trains, and uploads its update; it remembers before it sends.

It is a client only, so it works behind any firewall. What it keeps (memory of its algorithm, residual, last
upload) is on the disk before the upload is sent: an order that comes again gets the same bytes, and an upload
that its edge server did not use goes back into the residual, where error feedback is on.

Its link to the edge server may be slow and break at any time. Calls are repeated until they are answered,
with growing waits. What has arrived is kept on both sides: a model is fetched from the byte where it broke,
an upload continues where the edge server says that it broke.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from cfel import __version__
from cfel.cost import realised_seconds
from cfel.deployment.device.memory import (
    Home,
    Memory,
    Sent,
    load_home,
    load_memory,
    order_key,
    return_unused,
    save_home,
    save_memory,
)
from cfel.deployment.edge.devices import POLL_SECONDS
from cfel.deployment.host import DiskHealth, Host, write_until_done
from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.deployment.measurement.meters import Mark, SelfMeasurement
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import (
    count_difference_bytes,
    make_upload,
    model_size,
    read_difference,
    read_model,
)
from cfel.deployment.protocol.calls import Answer, Calls, Request
from cfel.deployment.protocol.device_requests import (
    MOST_WHAT_CHARACTERS,
    DivergedRequest,
    EstimatesRequest,
    ExperimentOver,
    ModelRequest,
    ModelStep,
    Moved,
    NextModel,
    NextOrder,
    NextRequest,
    NoOrder,
    Removed,
    UploadPartAnswer,
    UploadPartRequest,
    UploadRequest,
)
from cfel.deployment.protocol.messages import NO_BODY, Body
from cfel.deployment.protocol.transfer import DEVICE_PART_SECONDS, DEVICE_PARTS_AT_ONCE, Download, PartSize
from cfel.deployment.publishing import PublishedModels, encode_published
from cfel.deployment.security.identity import Identity
from cfel.errors import (
    DivergedError,
    NotAdmittedError,
    RejectedError,
    SilentEdgeServerError,
    UnreachableError,
)
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceOrder, Order
from cfel.learning.local.estimates import refresh_estimates
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel, complete_model
from cfel.learning.task import DeviceData
from cfel.membership import FleetChange
from cfel.seeding import make_generator
from cfel.world import World

_LOG = logging.getLogger(__name__)


def add_device(world: World, number: int) -> World:
    """The world with a device that its experiment does not know, because it joins later.

    What it holds and what it costs follow from its number; the rest of the world is not needed on a device.
    """
    if number < world.setting.fleet.devices:
        return world
    edge = world.setting.fleet.list_edges()[0]
    return world.with_changes((FleetChange(1, "add device", (number,), edge),))


class DeviceAgent:
    """One device.

    Args:
        parameters: how long calls may take, and emulation.
        energy: the host's counter of joules, if it has one and conditions are measured.
        homes: edge servers that it can ask when its own is gone; by default those of the experiment.
        reach: called with the address of an edge server that it is sent to.
    """

    def __init__(
        self,
        world: World,
        number: int,
        data: DeviceData,
        parameters: DeploymentParameters,
        calls: Calls,
        directory: Path,
        host: Host,
        energy: EnergyCounter | None = None,
        homes: Sequence[int] | None = None,
        reach: Callable[[Identity, str], None] = lambda _edge, _address: None,
    ) -> None:
        world = add_device(world, number)
        fleet = world.setting.fleet
        self._homes, self._reach = list(fleet.list_edges() if homes is None else homes), reach
        self._world, self._number, self._data, self._parameters = world, number, data, parameters
        self._calls, self._host = calls, host
        self._now = now = asyncio.get_running_loop().time
        self._health, self._path = DiskHealth(now), directory / "memory.bin"
        self._home_path = directory / "home.json"
        self._stored = load_home(host.disk, self._home_path, int(fleet.cluster[number]))
        self._edge = self._home = Identity("edge", self._stored.edge)
        # Whether an edge server has said so since it was started: its own may have left the fleet meanwhile.
        self._knows_home = False
        for edge, address in self._stored.addresses.items():
            self._know(Identity("edge", edge), address)
        self._memory = load_memory(host.disk, self._path, world.new_device)
        self._meter = SelfMeasurement(
            world, number, now, energy, self._memory.measured, enabled=parameters.measures
        )
        self._workspace = Workspace(world.task, world.training, world.compress)
        # Orders wait here while the device works on an earlier one; `_work` skips those that were replaced.
        self._orders: asyncio.Queue[NextModel | NextOrder] = asyncio.Queue()
        self._published = PublishedModels(host.disk, directory, parameters.published_models)
        self._newest = self._newest_model = ""
        self._answered_at = now()
        # The model after so many global rounds, to be published when the upload is sent.
        self._begun: tuple[int, FlatModel] | None = None
        # A model that is here before its order, with its digest.
        self._ahead: tuple[str, FlatModel] | None = None
        # Where devices fetch differences: the last model, to which they are.
        self._known: tuple[str, FlatModel] | None = None
        self._difference_bytes = 0
        # Each device draws its own waits, so that a restarted edge server is not called by all of them at
        # once.
        self._draw = make_generator(world.setting.seed, "patience", number).random
        self._asking, self._link = self._connect(self._edge)

    def _connect(self, edge: Identity) -> tuple["Backoff", "EdgeLink"]:
        """How it asks an edge server for orders, and how it works for it."""
        asking, working = (Backoff(str(edge), self._now, self._draw) for _ in range(2))
        return asking, EdgeLink(self._calls, edge, self._parameters, self._world.start, working)

    def _turn_to(self, edge: Identity) -> None:
        """Asks another edge server from now on; orders of the last one are void."""
        _LOG.warning("asks %s instead of %s", edge, self._edge)
        self._edge, self._newest, self._newest_model = edge, "", ""
        self._asking, self._link = self._connect(edge)

    def _know(self, edge: Identity, address: str) -> None:
        self._reach(edge, address)
        if edge.number not in self._homes:
            self._homes.append(edge.number)

    async def _follow(self, moved: Moved) -> None:
        """Goes to the edge server that it belongs to."""
        edge = Identity("edge", moved.edge)
        self._know(edge, moved.address)
        if self._edge != edge:
            self._turn_to(edge)
        await self._settle(edge, moved.address)

    async def _settle(self, edge: Identity, address: str = "") -> None:
        """Remembers where it belongs: started again, it would else ask one that may have left long ago."""
        self._home, self._knows_home, before = edge, True, self._stored
        addresses = {**before.addresses, edge.number: address} if address else before.addresses
        self._stored = Home(edge.number, addresses)
        if self._stored != before:
            write = partial(save_home, self._host.disk, self._home_path, self._stored)
            await write_until_done(self._host.compute, self._health, "home", write)

    def _try_others(self) -> None:
        """Asks the next edge server, if the present one has been silent for long.

        Soon if none has said yet where it belongs; the others send it back if it is to wait.
        """
        stays = self._knows_home and self._parameters.fail_over == "never"
        gone_seconds = self._parameters.gone_seconds
        patience = gone_seconds if self._knows_home else min(gone_seconds, MOST_SECONDS)
        if stays or len(self._homes) < 2 or self._asking.silent_seconds <= patience:
            return
        place = self._homes.index(self._edge.number) if self._edge.number in self._homes else -1
        self._turn_to(Identity("edge", self._homes[(place + 1) % len(self._homes)]))

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
                stays = self._edge == self._home or self._parameters.fail_over == "never"
                silent = None if stays else self._home.number
                request = NextRequest(self._newest, __version__, silent)
                answer = await self._calls.call(self._edge, request, POLL_SECONDS + 10)
            except UnreachableError as error:
                _LOG.info("no answer: %s", error)
                self._check_silence()
                await asyncio.sleep(self._asking.next_seconds())
                self._try_others()
                continue
            self._asking.reset()
            self._answered_at = self._now()
            match answer:
                case ExperimentOver():
                    _LOG.info("the experiment is over")
                    await self._publish_last(answer)
                    return
                case Removed():
                    _LOG.warning("this device does not belong to the fleet any more")
                    return
                case Moved():
                    await self._follow(answer)
                    # Both may be wrong about each other for a moment.
                    await asyncio.sleep(FIRST_SECONDS)
                case NoOrder():
                    continue
                case NextModel():
                    self._newest, self._newest_model = answer.serial, answer.model_sha256
                    self._orders.put_nowait(answer)
                case NextOrder():
                    await self._settle(self._edge)
                    self._newest, self._newest_model = answer.serial, answer.order.model
                    self._orders.put_nowait(answer)

    def _check_silence(self) -> None:
        """Ends a device that missed the end of the experiment: nobody is left to inform it."""
        silent, most = self._now() - self._answered_at, self._parameters.give_up_seconds
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
                    self._ahead = await self._fetch_model(order.model_sha256, order.steps)
                else:
                    await self._carry_out(order)
            except NotAdmittedError:
                # It ends, and gets its order again when it is started with a certificate that is admitted.
                # If it stayed, its edge server would wait for an answer that it has given up.
                raise
            except RejectedError as error:
                _LOG.warning("order %s given up: %s", order.serial, error)

    async def _carry_out(self, issued: NextOrder) -> None:
        try:
            await (self._estimate(issued) if issued.kind == "estimate" else self._update(issued))
        except DivergedError as error:
            # It continues: another device may have spoiled the model, and would end the processes of all.
            _LOG.error("order %s given up: %s", issued.serial, error)
            what = error.what[:MOST_WHAT_CHARACTERS]
            await self._send(issued, DivergedRequest(issued.kind, issued.order.round, what))

    async def _estimate(self, issued: NextOrder) -> None:
        order = await self._complete_order(issued)
        before, begin = self._memory.state, self._meter.begin()
        order = replace(order, model=complete_model(order.model, before.memory))
        fresh = await self._host.compute.run(lambda: device_estimate(order, self._data, self._workspace))
        measured = self._meter.finish_estimates(order, begin)
        state = replace(before, estimates=refresh_estimates(before.estimates, fresh))
        await self._remember(Memory(state, self._memory.sent, unused=self._memory.unused))
        await self._send(issued, EstimatesRequest(order.round, fresh, measured))

    async def _update(self, issued: NextOrder) -> None:
        sent = self._memory.sent
        # The same order again: its edge server lost the answer. Training again would change momentum and
        # residual twice.
        if sent is None or sent.key != order_key(issued.order):
            sent = await self._train(issued)
        await self._send(issued, sent.upload)
        global_round, edge_round = issued.order.round
        steps, size = sent.upload.steps, len(sent.upload.content)
        _LOG.info("round %d.%d: %d steps, %d bytes sent", global_round + 1, edge_round + 1, steps, size)
        begun, self._begun = self._begun, None
        if begun is not None:
            await self._publish(*begun)

    async def _train(self, issued: NextOrder) -> Sent:
        order = await self._complete_order(issued)
        memory = return_unused(self._memory, issued.last_used_round)
        begin = self._meter.begin()
        report, state = await self._host.compute.run(
            lambda: device_update(order, self._data, memory.state, self._workspace)
        )
        steps = float(self._world.setting.charge_steps(report.steps, order.rho))
        await self._emulate(order, begin, steps=steps)
        measured = self._meter.finish_training(order, begin, steps)
        sent = Sent(order_key(issued.order), make_upload(report, order, measured, memory.unused))
        # On disk before anything is sent: after a crash the device must not train the same order to other
        # bits.
        await self._remember(Memory(state, sent, unused=memory.unused))
        # The first order of a global round brings the model after the one before.
        if order.round[1] == 0 and self._parameters.publishes(order.round[0]):
            self._begun = (order.round[0], order.model)
        return sent

    async def _send(
        self, issued: NextOrder, request: EstimatesRequest | UploadRequest | DivergedRequest
    ) -> None:
        """Sends until it is answered; only the attempt that was answered counts as the time it took."""
        theta = issued.order.theta if isinstance(request, UploadRequest) else 0.0
        while issued.serial == self._newest:
            begin = self._meter.begin()
            await self._emulate(issued.order, begin, theta=theta)
            sent_bytes = await self._link.try_send(request)
            if sent_bytes is not None:
                self._meter.finish_call(begin, 8 * sent_bytes)
                return
        raise RejectedError("a newer order has come")

    async def _emulate(
        self, order: Order[Any], begin: Mark, *, steps: float = 0.0, theta: float = 0.0
    ) -> None:
        """Waits until the device of the experiment would have taken its steps, or sent its upload."""
        if not self._parameters.time_scale:
            return
        now = self._world.setting.conditions(*order.round)
        n = self._number
        # At a slower clock a step takes longer, as it is charged.
        seconds = float(realised_seconds(steps, theta, now.mu[n] / order.speed, now.nu[n]))
        left = seconds * self._parameters.time_scale - (self._now() - begin.seconds)
        await asyncio.sleep(max(0.0, left))

    async def _complete_order(self, issued: NextOrder) -> DeviceOrder:
        """The order with its model."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != issued.order.model:
            ahead = await self._fetch_model(issued.order.model, issued.steps)
        is_newest = issued.serial == self._newest
        if issued.kind == "estimate" or not is_newest:
            self._ahead = ahead  # the next order starts from the same model
        if not is_newest:
            raise RejectedError("a newer order has come")
        return issued.order.with_model(ahead[1])

    async def _fetch_model(self, sha256: str, steps: Sequence[ModelStep]) -> tuple[str, FlatModel]:
        """The model that is named, and its digest; tries until the newest order needs another one."""

        def is_wanted() -> bool:
            return sha256 == self._newest_model

        model = await self._fetch_differences(sha256, steps, is_wanted)
        if model is None:
            model = await self._link.fetch_model(sha256, is_wanted)
        if self._world.downloads is not None:
            self._known = sha256, model
        return sha256, model

    async def _fetch_differences(
        self, sha256: str, steps: Sequence[ModelStep], is_wanted: Callable[[], bool]
    ) -> FlatModel | None:
        """The model that differences from the last one lead to; None if the whole model has to be fetched."""
        differences, known = self._world.downloads, self._known
        if differences is None or known is None:
            return None
        if known[0] == sha256:
            return known[1]
        # The last place: a model that has not changed is issued twice under one name.
        places = [place for place, each in enumerate(steps) if each.known == known[0]]
        missing = steps[places[-1] :] if places else ()
        compute, model = self._host.compute, known[1]
        if not self._difference_bytes:
            count = partial(count_difference_bytes, differences, model)
            self._difference_bytes = await compute.run(count)
        if not 0 < len(missing) * self._difference_bytes < model_size(model):
            return None
        for each in missing:
            content = await self._link.fetch(each.difference, self._difference_bytes, is_wanted)
            model = await compute.run(partial(read_difference, content, model))
        if (await compute.run(model.sha256)).hex() != sha256:
            _LOG.warning("differences lead to another model than the one named; fetches the whole")
            return None
        return model

    async def _publish_last(self, over: ExperimentOver) -> None:
        """Fetches and publishes the last model, unless its edge server leaves before."""
        if over.model_sha256 is None:
            return
        deadline = self._now() + LAST_SECONDS
        try:
            model = await self._link.fetch_model(
                over.model_sha256, lambda: self._now() < max(deadline, self._link.answered_at + LAST_SECONDS)
            )
        except RejectedError as error:
            _LOG.warning("the last model is not published here: %s", error)
            return
        await self._publish(over.rounds, model)

    async def _publish(self, rounds: int, model: FlatModel) -> None:
        host, memory = self._host, self._memory.state.memory

        def write() -> None:
            self._published.publish(rounds, encode_published(self._world, model, memory))

        await write_until_done(host.compute, self._health, "published model", write)

    async def _remember(self, memory: Memory) -> None:
        memory = replace(memory, measured=self._meter.known)
        host, path = self._host, self._path
        write = partial(save_memory, host.disk, path, memory)
        await write_until_done(host.compute, self._health, "memory", write)
        self._memory = memory


FIRST_SECONDS = 0.3
MOST_SECONDS = 5.0
GROWTH = 1.5
LAST_SECONDS = 5.0
"""When the experiment is over, a silence of this length means that the edge server has ended, too."""
LOUD_SECONDS = 30.0
"""A silence of this length is logged, and again each time it has doubled."""


class Backoff:
    """The waits between calls to one node.

    Args:
        whom: the node, for the log.
        draw: a random number from [0, 1).
    """

    def __init__(self, whom: str, now: Callable[[], float], draw: Callable[[], float]) -> None:
        self._whom, self._now, self._draw = whom, now, draw
        self._wait, self._since, self._loud = FIRST_SECONDS, now(), LOUD_SECONDS

    def reset(self) -> None:
        """It answered: the next wait is short again."""
        if self._loud > LOUD_SECONDS:
            _LOG.warning("%s answers again after %.0f s", self._whom, self._now() - self._since)
        self._wait, self._since, self._loud = FIRST_SECONDS, self._now(), LOUD_SECONDS

    @property
    def silent_seconds(self) -> float:
        """How long it has not answered."""
        return self._now() - self._since

    def next_seconds(self) -> float:
        """How long to wait after one more call without an answer."""
        # Random, so that devices that lost the same edge server do not come back at the same moment.
        wait = self._wait * (0.5 + 0.5 * self._draw())
        self._wait = min(MOST_SECONDS, GROWTH * self._wait)
        silent = self.silent_seconds
        if silent >= self._loud:
            self._loud = 2 * silent
            _LOG.warning(
                "%s has not answered for %.0f s; a device stays with its edge server and keeps asking, "
                "at least every %.0f s",
                self._whom,
                silent,
                MOST_SECONDS,
            )
        return wait


class EdgeLink:
    """The calls of one device that carry models, estimates and uploads.

    Args:
        parameters: how long calls may take.
        start: any model of the experiment, for its size.
        backoff: the waits after calls without an answer.
    """

    def __init__(
        self,
        calls: Calls,
        edge: Identity,
        parameters: DeploymentParameters,
        start: FlatModel,
        backoff: Backoff,
    ) -> None:
        self._calls, self._edge, self._parameters = calls, edge, parameters
        self._start, self._backoff, self._now = start, backoff, asyncio.get_running_loop().time
        self._download = Download("", 0)
        self._down, self._up = PartSize(DEVICE_PART_SECONDS), PartSize(DEVICE_PART_SECONDS)
        self._broken_upload = ""

    @property
    def answered_at(self) -> float:
        """When the edge server answered last, by the event loop's clock."""
        return self._now() - self._backoff.silent_seconds

    async def fetch_model(self, sha256: str, is_wanted: Callable[[], bool]) -> FlatModel:
        """Fetches a model; tries until it is there or not wanted any more.

        Raises:
            RejectedError: it is not wanted any more, or the edge server has another one.
        """
        return read_model(await self.fetch(sha256, model_size(self._start), is_wanted), self._start)

    async def fetch(self, sha256: str, size: int, is_wanted: Callable[[], bool]) -> bytearray:
        """Fetches the bytes of a model, or of a difference; see `fetch_model`."""
        if self._download.sha256 != sha256:
            self._download = Download(sha256, size)
        download, began, breaks = self._download, self._now(), 0

        async def ask(offset: int, most_bytes: int) -> Body:
            if not is_wanted():
                raise RejectedError("a newer order needs another model")
            part = await self._call(ModelRequest(sha256, offset, most_bytes), most_bytes)
            return part.model

        while True:
            try:
                content = await download.complete(ask, self._down, self._now, DEVICE_PARTS_AT_ONCE)
            except UnreachableError as error:
                self._down.shrink()
                breaks += 1
                held, size = download.held_bytes, download.size
                _LOG.info("model: %s; resumes at byte %d of %d", error, held, size)
                await asyncio.sleep(self._backoff.next_seconds())
                continue
            break
        # The model keeps these bytes, so the next download must not find them.
        self._download = Download("", 0)
        seconds = self._now() - began
        _LOG.info("model: %d bytes in %.1f s, %d breaks", download.size, seconds, breaks)
        return content

    async def try_send(self, request: EstimatesRequest | UploadRequest | DivergedRequest) -> int | None:
        """Sends estimates, an upload, or why there is none.

        Returns:
            How many bytes of the body were sent by this attempt; None, after a while, if it was not answered.

        Raises:
            RejectedError: the edge server does not take it.
        """
        content = request.content if isinstance(request, UploadRequest) else NO_BODY
        sha256 = content.digest.hex()
        # An upload that broke once continues in parts, even if it would fit into one call.
        resumes = bool(self._broken_upload) and self._broken_upload == sha256
        self._broken_upload = ""
        try:
            if isinstance(request, UploadRequest) and (resumes or len(content) > self._up.bytes):
                return await self._send_parts(request, sha256, resumes=resumes)
            await self._call(request, len(content))
            return len(content)
        except UnreachableError as error:
            self._broken_upload = sha256 if len(content) else ""
            self._up.shrink()
            _LOG.info("%s: %s", request.method, error)
            await asyncio.sleep(self._backoff.next_seconds())
            return None

    async def _send_parts(self, request: UploadRequest, sha256: str, *, resumes: bool) -> int:
        """Sends what the edge server does not have yet, then the upload itself without its content."""
        content = memoryview(request.content.join())
        held = sent = 0
        if resumes:
            held = (await self._send_part(request, sha256, 0, content[:0])).held
            _LOG.info("upload: resumes at byte %d of %d", held, len(content))
        while held < len(content):
            part, began = content[held : held + self._up.bytes], self._now()
            answer = await self._send_part(request, sha256, held, part)
            self._up.adapt(len(part), self._now() - began)
            held, sent = answer.held, sent + len(part)
        await self._call(structs.replace(request, content=NO_BODY, content_sha256=sha256), 0)
        return sent

    async def _send_part(
        self, request: UploadRequest, sha256: str, held: int, part: memoryview
    ) -> UploadPartAnswer:
        body = Body.hash(part)
        return await self._call(UploadPartRequest(request.round, sha256, held, body), len(part))

    async def _call(self, request: Request[Answer], body_bytes: int) -> Answer:
        answer = await self._calls.call(self._edge, request, self._parameters.transfer_seconds(body_bytes))
        self._backoff.reset()
        return answer
