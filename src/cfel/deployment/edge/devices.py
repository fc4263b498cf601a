"""What an edge server offers to its devices: orders, the model, and a place for estimates and uploads.

Devices are clients only. Each keeps one request for a new order open at all times, also while it trains: so
its edge server knows that it is there, and an order reaches it at once. No arithmetic on models here; uploads
are checked in `checks`.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from cfel.deployment.edge.checks import NO_LIMITS, UploadLimits, verify_upload
from cfel.deployment.health import Applicants, ChangeSignal, DevicePresence, RoundWaits, list_nodes
from cfel.deployment.host import Host
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import EncodedModel, EncodedModels, Step, most_upload_bytes
from cfel.deployment.protocol.calls import Endpoint, serve
from cfel.deployment.protocol.device_requests import (
    Confirmation,
    DivergedRequest,
    EstimatesRequest,
    ExperimentOver,
    MeasurementReport,
    ModelAnswer,
    ModelRequest,
    ModelStep,
    Moved,
    NextAnswer,
    NextModel,
    NextOrder,
    NextRequest,
    NoOrder,
    OrderKind,
    Removed,
    Round,
    RoundOnly,
    UploadRequest,
)
from cfel.deployment.protocol.messages import Body, decode
from cfel.deployment.protocol.transfer import UploadParts
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel

POLL_SECONDS = 20.0
# How long a device waits here to become this edge server's before it asks again.
_ADMISSION_SECONDS = 5.0
FindHome = Callable[[int, NextRequest], Moved | Removed | NoOrder]
"""Says where a device of another edge server belongs; `NoOrder` if it is to wait."""
FindSteps = Callable[[FlatModel], tuple[Step, ...]]
"""The differences that lead to a model, where devices fetch differences."""
# A device that disappears changes nothing that could wake a waiting round, so rounds look at this interval.
_LOOK_SECONDS = 0.25
_LOG = logging.getLogger(__name__)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAnswers(Generic[Value]):
    """What devices answered in time."""

    values: dict[int, Value]  # by device, in increasing order
    measured: dict[int, MeasurementReport]  # their measurements, where conditions are measured
    answer_seconds: dict[int, float]  # seconds from the orders to each answer
    seconds: float  # how long the edge server waited for all of them
    diverged: tuple[int, ...] = ()  # devices whose training diverged instead
    # Rounds that each trained for in vain, where there are any.
    unused: Mapping[int, tuple[Round, ...]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class OpenRound:
    """A round of orders of one kind: what each device is asked, and what has arrived.

    Attributes:
        kind: estimates or updates.
        serial: tells its orders from earlier ones.
        started_at: when, in seconds of the event loop's clock.
        size: how many devices were asked.
        waiting: orders without an answer.
        answered: orders that were answered.
        last_used_rounds: per device, the round of its last upload that went into a model.
        values, measured, answer_seconds, unused: see `DeviceAnswers`.
        diverged: devices whose training diverged instead.
    """

    kind: OrderKind = "estimate"
    serial: str = ""
    started_at: float = 0.0
    size: int = 0
    waiting: dict[int, DeviceOrder] = field(default_factory=dict)
    answered: dict[int, DeviceOrder] = field(default_factory=dict)
    last_used_rounds: Mapping[int, Round] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    measured: dict[int, MeasurementReport] = field(default_factory=dict)
    answer_seconds: dict[int, float] = field(default_factory=dict)
    diverged: set[int] = field(default_factory=set)
    unused: dict[int, tuple[Round, ...]] = field(default_factory=dict)

    def find(self, device: int, kind: OrderKind, sent: Round) -> DeviceOrder:
        """The order that an answer belongs to.

        Raises:
            RejectedError: no such answer is asked of the device now.
        """
        order = self.waiting.get(device)
        if order is None or self.kind != kind:
            raise RejectedError(f"no {kind} is asked of device {device} now")
        # An answer to an earlier order that was on its way when the round closed.
        if sent != order.round:
            raise RejectedError(f"{kind} of round {sent}, asked was {order.round}")
        return order

    def holds(self, device: int, kind: OrderKind, sent: Round) -> bool:
        """Whether the device's answer of this kind and round has been accepted already."""
        order = self.answered.get(device)
        return order is not None and self.kind == kind and order.round == sent

    def accept(self, device: int, value: object, measured: MeasurementReport | None, now: float) -> None:
        """Keeps an answer that has just arrived."""
        self.answered[device], self.values[device] = self.waiting.pop(device), value
        self.answer_seconds[device] = now - self.started_at
        if measured is not None:
            self.measured[device] = measured

    def drop(self, device: int, order: DeviceOrder) -> bool:
        """Stops waiting for an answer; whether it was still waited for."""
        if self.waiting.get(device) is not order:
            return False
        del self.waiting[device]
        return True

    def close(self, now: float) -> DeviceAnswers[Any]:
        """Ends the round; later answers are rejected."""
        self.waiting = {}
        return DeviceAnswers(
            dict(sorted(self.values.items())),
            self.measured,
            self.answer_seconds,
            now - self.started_at,
            tuple(sorted(self.diverged)),
            self.unused,
        )


class DeviceService:
    """Issues orders, receives estimates and uploads.

    Args:
        devices: those of this edge server.
        start: any model of the experiment, for sizes.
        limits: what uploads must be like.
        models: where the edge server keeps encoded models.
        kept_entries: at how many shares θ devices report the energy of the largest entries.

    Attributes:
        presence: which of them are there.
        rejected: how many uploads and estimates of each device were rejected for their content.
        diverged: devices whose training diverged when they were last asked.
        applicants: devices that ask here and are no members of the fleet.
    """

    def __init__(
        self,
        devices: tuple[int, ...],
        start: FlatModel,
        parameters: DeploymentParameters,
        host: Host,
        models: EncodedModels,
        limits: UploadLimits = NO_LIMITS,
    ) -> None:
        self.devices, self._models, self._limits = devices, models, limits
        self.rejected: dict[int, int] = dict.fromkeys(devices, 0)
        self.diverged: set[int] = set()
        self._start, self._parameters, self._compute = start, parameters, host.compute
        self._now = asyncio.get_running_loop().time
        # Serials of an earlier process must not look like known ones to a device.
        self._boot, self._count = host.make_token(8), 0
        self._round = OpenRound()
        self._parts = UploadParts(most_upload_bytes(start), self._find_upload)
        self._model: EncodedModel | None = None
        self._announced = ""
        self.presence = DevicePresence(devices, parameters.gone_seconds, self._now)
        self._waits = RoundWaits(self.presence, parameters, self._now)
        self._over: ExperimentOver | None = None
        self._informed: set[int] = set()
        # Devices that know of the end, and have not fetched all of the last model.
        self._without_last_model: set[int] = set()
        self._fetched_at = 0.0
        self._changed = ChangeSignal()
        self._verifying: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.find_home: FindHome = lambda _device, _request: NoOrder()
        self.find_steps: FindSteps = lambda _model: ()
        self.applicants = Applicants(self._now)

    def change_devices(self, devices: tuple[int, ...]) -> None:
        """The devices of this edge server from now on; the others hear where they belong."""
        if devices == self.devices:
            return
        self.devices = devices
        self.presence.change_devices(devices)
        for device in devices:
            self.rejected.setdefault(device, 0)
        self._notifying = asyncio.ensure_future(self._changed.notify())

    def endpoints(self) -> list[Endpoint]:
        """What devices may call."""
        most_bytes = most_upload_bytes(self._start)
        return [
            serve(NextRequest, self.next),
            serve(ModelRequest, self.model),
            serve(EstimatesRequest, self.estimates, on_invalid=partial(self._reject_form, "estimate")),
            self._parts.endpoint(),
            serve(UploadRequest, self.upload, most_bytes, on_invalid=partial(self._reject_form, "update")),
            serve(DivergedRequest, self.note_diverged),
        ]

    @property
    def problem(self) -> str:
        """Whose training diverged, who is silent, left out or asks in vain, and what to do about it."""
        missed = [n for n in self.presence.list_missed() if n not in self._informed]
        found = (
            (sorted(self.diverged), "training diverged at {}; most likely local.learning_rate is too large"),
            (
                missed,
                "silent: {}; the others continue without; if gone for good, `cfel fleet remove device N`",
            ),
            (
                [n for n in self.devices if self._is_quarantined(n)],
                "left out after implausible reports: {}; check what it measures, and its software",
            ),
        )
        parts = [words.format(list_nodes("device", devices)) for devices, words in found if devices]
        return "; ".join([*parts, *filter(None, [self.applicants.problem])])

    @property
    def measures(self) -> bool:
        """Whether conditions are measured on the devices."""
        return self._parameters.measures

    def list_connected(self) -> list[int]:
        """Devices that are there."""
        return self.presence.list_connected()

    def list_plannable(self) -> list[int]:
        """Connected devices to plan the next round with: neither in quarantine nor late again and again."""
        found = self.list_connected()
        return [n for n in found if not (self._is_quarantined(n) or self._waits.is_left_out(n))]

    def states(self) -> dict[int, str]:
        """What each device is doing, in the words of `cfel.status`."""
        return {device: self._state(device) for device in self.devices}

    def _state(self, device: int) -> str:
        if self._is_quarantined(device):
            return "quarantined"
        # Once it knows of the end, a device may leave.
        if device in self._informed:
            return "done"
        if self.presence.is_lost(device):
            return "lost"
        if device in self._round.waiting:
            return "training"
        if device in self.diverged:
            return "diverged"
        return "done" if device in self._round.answered else "idle"

    def list_awaited(self) -> list[int]:
        """Devices that the round under way waits for."""
        return sorted(self._round.waiting)

    async def collect_estimates(self, orders: Mapping[int, DeviceOrder]) -> DeviceAnswers[Estimates]:
        """Asks devices for σ² and G², and waits for them."""
        return await self._collect("estimate", orders, {})

    async def collect_reports(
        self, orders: Mapping[int, DeviceOrder], last_used_rounds: Mapping[int, Round]
    ) -> DeviceAnswers[DeviceReport]:
        """Asks devices for updates, and waits for them.

        Args:
            orders: by device.
            last_used_rounds: round of each device's last upload that went into a model.
        """
        return await self._collect("update", orders, last_used_rounds)

    async def announce(self, model: FlatModel) -> None:
        """Names the model of the next order, so that devices fetch it while their edge server is busy.

        Not if only some of them took part in the last round: the others would fetch it without need.
        """
        if self._round.size < len(self.devices) or not self.devices:
            return
        encoded = await self._models.get(model)
        if self._round.waiting:
            return  # the next order was faster
        self._model, self._announced = encoded, self._make_serial()
        await self._changed.notify()

    async def finish(self, seconds: float, rounds: int, model: FlatModel) -> None:
        """Lets every device know that the experiment is over, and fetch the last model.

        Waits for those that are connected, for so many seconds after anything has happened.
        """
        self._model = await self._models.get(model)
        self._over = ExperimentOver(rounds, self._model.sha256)
        await self._changed.notify()
        self._fetched_at = self._now()
        while self._now() < self._fetched_at + seconds and (
            set(self.list_connected()) - self._informed or self._without_last_model
        ):
            await self._changed.wait(_LOOK_SECONDS)

    async def _collect(
        self, kind: OrderKind, orders: Mapping[int, DeviceOrder], last_used_rounds: Mapping[int, Round]
    ) -> DeviceAnswers[Any]:
        self._round = OpenRound(kind, self._make_serial(), self._now(), len(orders))
        # Parts of uploads for the last round are of no use in this one.
        self._parts.clear()
        model = next(iter(orders.values())).model if orders else self._start
        self._model = await self._models.get(model)
        self._waits.begin(kind, orders)
        self._round.last_used_rounds = last_used_rounds
        self._round.waiting = {n: order for n, order in orders.items() if not self._is_quarantined(n)}
        self._announced = ""
        await self._changed.notify()
        while self._waits.is_worth_waiting(self._round.waiting):
            await self._changed.wait(_LOOK_SECONDS)
        if self._round.waiting:
            _LOG.warning("%s: nothing in time from devices %s", kind, sorted(self._round.waiting))
        self._waits.end(self._round.waiting)
        return self._round.close(self._now())

    async def next(self, caller: Identity, request: NextRequest) -> NextAnswer:
        """Returns the order that a device does not know yet; waits for one for a while."""
        if caller.number not in self.presence:
            return await self._redirect(caller.number, request)
        device = caller.number
        with self.presence.hold_request(device, request.version):
            deadline = self._now() + POLL_SECONDS
            while self._now() < deadline and device in self.presence:
                news = self._find_news(device, request.known)
                if news is not None:
                    return news
                await self._changed.wait(deadline - self._now())
            return NoOrder()

    async def _redirect(
        self, device: int, request: NextRequest
    ) -> Moved | Removed | NoOrder | ExperimentOver:
        """Where a device of another edge server belongs; one that is not a member yet waits here.

        At the end nobody takes a device over any more: it ends without the last model.
        """
        deadline = self._now() + _ADMISSION_SECONDS
        while self._now() < deadline and device not in self.presence:
            found = self.find_home(device, request)
            if not isinstance(found, NoOrder):
                return found
            if self._over is not None:
                return ExperimentOver(self._over.rounds)
            await self._changed.wait(_LOOK_SECONDS)
        return NoOrder()

    def _find_news(self, device: int, known: str) -> ExperimentOver | NextModel | NextOrder | None:
        if self._over is not None:
            if device not in self._informed:
                self._without_last_model.add(device)
            self._informed.add(device)
            return self._over
        current, order = self._round, self._round.waiting.get(device)
        serial = current.serial if order else self._announced
        if self._model is None or serial in ("", known) or self._is_quarantined(device):
            return None
        found = self.find_steps(self._model.model)
        steps = tuple(ModelStep(each.known, each.difference.digest.hex()) for each in found)
        if order is None:
            return NextModel(serial, self._model.sha256, steps)
        named = order.with_model(self._model.sha256)
        return NextOrder(serial, current.kind, named, current.last_used_rounds.get(device), steps)

    async def model(self, caller: Identity, request: ModelRequest) -> ModelAnswer:
        """Returns a part of the model of the present order, or of a difference that leads to it."""
        self._waits.note_progress(self._check_own(caller))
        whole = self._find_body(request.sha256)
        if whole is None:
            raise RejectedError("this model is not needed any more")
        part = await self._models.part(whole, request.offset, request.most_bytes)
        self._fetched_at = self._now()
        if request.offset + len(part) >= len(whole):
            self._without_last_model.discard(caller.number)
            await self._changed.notify()
        return ModelAnswer(part)

    def _find_body(self, sha256: str) -> Body | None:
        if self._model is None:
            return None
        steps = (each.difference for each in self.find_steps(self._model.model))
        return next((each for each in (self._model.body, *steps) if each.digest.hex() == sha256), None)

    async def estimates(self, caller: Identity, request: EstimatesRequest) -> Confirmation:
        """Takes a device's σ² and G²."""
        device = self._check_own(caller)
        self._round.find(device, "estimate", request.round)
        await self._accept(device, request.estimates, request)
        return Confirmation()

    async def upload(self, caller: Identity, request: UploadRequest) -> Confirmation:
        """Takes a device's update, once it is verified."""
        # One after the other: a hundred copies at once would keep the compute thread from all other devices.
        async with self._verifying[self._check_own(caller)]:
            return await self._verify_and_accept(caller, request)

    async def _verify_and_accept(self, caller: Identity, request: UploadRequest) -> Confirmation:
        current, (device, order) = self._round, self._find_upload(caller, request.round)
        if order is None:
            return Confirmation()  # the answer to the first copy was lost on its way
        request = self._parts.complete(device, request)
        try:
            report = await self._compute.run(lambda: verify_upload(request, order, self._limits))
        except RejectedError:
            await self._give_up(device, order)
            raise
        # Other calls were served while the upload was verified.
        if current.waiting.get(device) is not order:
            raise RejectedError("too late: the round has been closed")
        await self._accept(device, report, request)
        return Confirmation()

    async def note_diverged(self, caller: Identity, request: DivergedRequest) -> Confirmation:
        """Stops waiting for a device whose training diverged."""
        device = self._check_own(caller)
        if device in self._round.diverged:
            return Confirmation()  # the answer to the first copy was lost on its way
        order = self._round.find(device, request.kind, request.round)
        at, what = f"{request.round[0] + 1}.{request.round[1] + 1}", request.what
        _LOG.error("training of device %d diverged in round %s: %s", device, at, what)
        self._round.drop(device, order)
        self._round.diverged.add(device)
        self.diverged.add(device)
        await self._changed.notify()
        return Confirmation()

    def _find_upload(self, caller: Identity, sent: Round) -> tuple[int, DeviceOrder | None]:
        """The caller's number and its order; None if its upload was accepted already."""
        device = self._check_own(caller)
        self._waits.note_upload(device, sent)
        if self._is_quarantined(device):
            raise RejectedError(f"in quarantine after {self.rejected[device]} rejected uploads")
        # A repeated upload is confirmed again, so that the device stops sending it.
        if self._round.holds(device, "update", sent):
            return device, None
        return device, self._round.find(device, "update", sent)

    def _is_quarantined(self, device: int) -> bool:
        most = self._parameters.quarantine_after
        return bool(most) and self.rejected[device] >= most

    async def _reject_form(self, kind: OrderKind, caller: Identity, header: bytes) -> None:
        """Gives up on a device whose answer to the present order has fields that are not valid."""
        device = self._check_own(caller)
        sent = decode(header, RoundOnly).round
        await self._give_up(device, self._round.find(device, kind, sent))

    async def _give_up(self, device: int, order: DeviceOrder) -> None:
        """Counts a rejection, and stops waiting: a device that sends this once would send it again."""
        self.rejected[device] += 1
        if self._round.drop(device, order):
            await self._changed.notify()

    async def _accept(self, device: int, value: object, sent: EstimatesRequest | UploadRequest) -> None:
        self._waits.note_answer(device)
        self.diverged.discard(device)
        self._round.accept(device, value, sent.measured if self._parameters.measures else None, self._now())
        if isinstance(sent, UploadRequest) and sent.unused:
            self._round.unused[device] = sent.unused
        await self._changed.notify()

    def _check_own(self, caller: Identity) -> int:
        if caller.number not in self.presence:
            # It has moved meanwhile: the next request for an order says where it belongs.
            raise RejectedError(f"{caller} belongs to another edge server")
        return caller.number

    def _make_serial(self) -> str:
        self._count += 1
        return f"{self._boot}-{self._count}"
