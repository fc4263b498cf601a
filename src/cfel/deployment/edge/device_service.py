"""An edge server's device_service: where its devices ask for orders, fetch the model and leave their uploads.

Devices are clients only. Each keeps one question for a new order open at all times, also while it trains: so
it knows who is there, and an order reaches its device at once. It does no arithmetic on models.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Literal

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.measurement.self_measurement import MeasurementReport, read_report
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import given_estimates, model_views, most_upload_bytes, report_from
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Method
from cfel.deployment.transport.messages import Message, cut
from cfel.errors import NotAdmittedError, RejectedError
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel

POLL_SECONDS = 20.0
# How long the device_service looks away at most before it sees who has gone.
_LOOK_SECONDS = 0.25
_LOG = logging.getLogger(__name__)

Round = tuple[int, int]
Kind = Literal["estimate", "update"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a device is asked at the moment.

    Attributes:
        kind: estimates or an update.
        serial: names it, so that a device can tell a new one from one it knows.
        order: what is asked.
        used: round of the device's last upload that went into a model, or None.
    """

    kind: Kind
    serial: str
    order: DeviceOrder
    used: Round | None


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A model for devices to fetch: its digest, and its bytes in pieces for the wire."""

    model: FlatModel
    digest: str
    pieces: tuple[bytes, ...]

    @classmethod
    def of(cls, model: FlatModel) -> "Offer":
        """The offer of a model."""
        pieces = tuple(piece for view in model_views(model) for piece in cut(view))
        return cls(model, model.sha256().hex(), pieces)


class DeviceService:
    """Orders out, estimates and reports in.

    Args:
        devices: those of this edge server.
        start: any model of the experiment, for sizes.
        parameters: deadlines and limits.
        compute: where bytes are checked.
        now: a clock that only runs forward.
        kept_entries: at how many shares θ reports tell the energy of the largest entries.
    """

    def __init__(
        self,
        devices: tuple[int, ...],
        start: FlatModel,
        parameters: DeploymentParameters,
        compute: ComputeThread,
        now: Callable[[], float],
        kept_entries: int = 0,
    ) -> None:
        self.devices = devices
        self._kept_entries = kept_entries
        self.refused: dict[int, int] = dict.fromkeys(devices, 0)
        self._start, self._parameters, self._compute, self._now = start, parameters, compute, now
        self._boot, self._count = secrets.token_hex(4), 0
        self._assigned: dict[int, Assignment] = {}
        self._answers: dict[int, Any] = {}
        self._offer: Offer | None = None
        self._announced = ""
        self._polls: dict[int, int] = dict.fromkeys(devices, 0)
        self._left_at: dict[int, float] = dict.fromkeys(devices, now())
        self._reported: dict[int, MeasurementReport] = {}
        self._orders: Mapping[int, DeviceOrder] = {}
        self._began = now()
        self._finished = False
        self._doubtful: set[int] = set()
        self._told: set[int] = set()
        self._changed = asyncio.Condition()

    def methods(self) -> dict[str, Method]:
        """What devices may call."""
        return {
            "next": Method(("device",), self.next),
            "model": Method(("device",), self.model),
            "estimates": Method(("device",), self.estimates),
            "upload": Method(("device",), self.upload, most_upload_bytes(self._start)),
        }

    def connected(self) -> list[int]:
        """Devices that are there."""
        return [device for device in self.devices if self._polls[device]]

    def states(self) -> dict[int, str]:
        """What each device is doing, in the words of `cfel.status`."""
        return {device: self._state(device) for device in self.devices}

    def _state(self, device: int) -> str:
        if self._is_quarantined(device):
            return "quarantined"
        if not self._polls[device]:
            return "lost"
        if device in self._assigned:
            return "training"
        return "done" if device in self._answers else "idle"

    def measured(self, devices: Iterable[int]) -> dict[str, Any]:
        """What to tell of the orders just collected, where conditions are measured; nothing elsewhere.

        Args:
            devices: those whose answers arrived.
        """
        if not self._parameters.measures:
            return {}
        rows = [
            [n, self._orders[n].rho, self._orders[n].theta, astuple(self._reported[n])]
            for n in devices
            if n in self._reported
        ]
        return {"measured": rows, "seconds": self._now() - self._began}

    async def collect_estimates(self, orders: Mapping[int, DeviceOrder]) -> dict[int, Estimates]:
        """Asks devices for σ² and G²; those who answered in time."""
        return await self._collect("estimate", orders, {})

    async def collect_reports(
        self, orders: Mapping[int, DeviceOrder], used: Mapping[int, Round]
    ) -> dict[int, DeviceReport]:
        """Asks devices for updates; those that arrived in time."""
        return await self._collect("update", orders, used)

    async def announce(self, model: FlatModel) -> None:
        """Names the model of the next order, so that devices fetch it while their edge server is busy.

        Not where only some of them took part in the last round: the others might fetch it for nothing.
        """
        if len(self._orders) < len(self.devices):
            return
        offer = await asyncio.to_thread(Offer.of, model)
        if self._assigned:
            return  # the next order was faster
        self._offer, self._announced = offer, self._serial()
        await self._tell()

    async def finish(self, seconds: float) -> None:
        """Tells every device that the experiment is over, and waits until those who are there know."""
        self._finished = True
        await self._tell()
        deadline = self._now() + seconds
        while set(self.connected()) - self._told and self._now() < deadline:
            await self._wait_for_change(_LOOK_SECONDS)

    async def _collect(
        self, kind: Kind, orders: Mapping[int, DeviceOrder], used: Mapping[int, Round]
    ) -> dict[int, Any]:
        self._answers, self._reported, self._orders, self._began = {}, {}, orders, self._now()
        model = next(iter(orders.values())).model if orders else self._start
        if self._offer is None or self._offer.model is not model:
            self._offer = await self._compute.run(lambda: Offer.of(model))
        for device, order in orders.items():
            if not self._is_quarantined(device):
                self._assigned[device] = Assignment(kind, self._serial(), order, used.get(device))
        self._announced = ""
        await self._tell()
        deadline = self._now() + self._parameters.round_seconds
        while self._is_worth_waiting(deadline):
            await self._wait_for_change(_LOOK_SECONDS)
        late, self._assigned = sorted(self._assigned), {}
        if late:
            _LOG.warning("%s: nothing in time from devices %s", kind, late)
        return dict(sorted(self._answers.items()))

    def _is_worth_waiting(self, deadline: float) -> bool:
        now = self._now()
        patience = self._parameters.gone_seconds
        there = (self._polls[n] or now - self._left_at[n] <= patience for n in self._assigned)
        return now < deadline and any(there)

    async def next(self, caller: Identity, message: Message) -> Message:
        """The order a device does not know yet; waits for one for a while."""
        device = self._own(caller)
        known = message.header.get("after")
        self._polls[device] += 1
        if self._polls[device] > 1 and device not in self._doubtful:
            self._doubtful.add(device)
            _LOG.warning(
                "device %d asks twice at once: it has just come back, or there are two of it", device
            )
        try:
            deadline = self._now() + POLL_SECONDS
            while self._now() < deadline:
                answer = self._news(device, known)
                if answer is not None:
                    return answer
                await self._wait_for_change(deadline - self._now())
            return Message({"kind": "nothing"})
        finally:
            self._polls[device] -= 1
            self._left_at[device] = self._now()

    def _news(self, device: int, known: object) -> Message | None:
        if self._finished:
            self._told.add(device)
            return Message({"kind": "finished"})
        assignment = self._assigned.get(device)
        serial = assignment.serial if assignment else self._announced
        if self._offer is None or serial in ("", known) or self._is_quarantined(device):
            return None
        if assignment is None:
            return Message({"kind": "soon", "serial": serial, "model_sha256": self._offer.digest})
        order = assignment.order
        return Message(
            {
                "kind": assignment.kind,
                "serial": serial,
                "global_round": order.global_round,
                "edge_round": order.edge_round,
                "rho": order.rho,
                "theta": order.theta,
                "model_sha256": self._offer.digest,
                "used": assignment.used,
            }
        )

    async def model(self, caller: Identity, message: Message) -> Message:
        """The model of the present order."""
        self._own(caller)
        offer, wanted = self._offer, message.text("sha256")
        if offer is None or wanted != offer.digest:
            raise RejectedError("this model is not needed any more")
        return Message(digest=bytes.fromhex(offer.digest), parts=offer.pieces)

    async def estimates(self, caller: Identity, message: Message) -> Message:
        """Takes a device's σ² and G²."""
        device = self._own(caller)
        assignment = self._asked(device, "estimate", message)
        try:
            found, told = given_estimates(message), self._measured_in(message)
        except RejectedError:
            await self._give_up(device, assignment)
            raise
        await self._take(device, found, told)
        return Message()

    async def upload(self, caller: Identity, message: Message) -> Message:
        """Takes a device's update, once every check is passed."""
        device = self._own(caller)
        if self._is_quarantined(device):
            raise RejectedError(f"in quarantine after {self.refused[device]} refused uploads")
        if device in self._answers:
            return Message({"accepted": True})
        assignment = self._asked(device, "update", message)
        try:
            report = await self._compute.run(
                lambda: report_from(message, assignment.order, self._parameters.clip_norm, self._kept_entries)
            )
            told = self._measured_in(message)
        except RejectedError:
            await self._give_up(device, assignment)
            raise
        if self._assigned.get(device) is not assignment:
            raise RejectedError("too late: the round has been closed")
        await self._take(device, report, told)
        return Message({"accepted": True})

    def _is_quarantined(self, device: int) -> bool:
        most = self._parameters.quarantine_after
        return bool(most) and self.refused[device] >= most

    def _asked(self, device: int, kind: Kind, message: Message) -> Assignment:
        assignment = self._assigned.get(device)
        if assignment is None or assignment.kind != kind:
            raise RejectedError(f"no {kind} is asked of device {device} now")
        asked = (assignment.order.global_round, assignment.order.edge_round)
        sent = (message.whole("global_round"), message.whole("edge_round"))
        if sent != asked:
            raise RejectedError(f"{kind} of round {sent}, asked was {asked}")
        return assignment

    async def _give_up(self, device: int, assignment: Assignment) -> None:
        """Counts a refusal; nobody waits for another try, as whoever sends this once would send it again."""
        self.refused[device] += 1
        if self._assigned.get(device) is assignment:
            del self._assigned[device]
            await self._tell()

    def _measured_in(self, message: Message) -> MeasurementReport | None:
        return read_report(message) if self._parameters.measures else None

    async def _take(self, device: int, answer: object, told: MeasurementReport | None) -> None:
        self._answers[device] = answer
        if told is not None:
            self._reported[device] = told
        del self._assigned[device]
        await self._tell()

    def _own(self, caller: Identity) -> int:
        if caller.number not in self._polls:
            raise NotAdmittedError(f"{caller} belongs to another edge server")
        return caller.number

    def _serial(self) -> str:
        self._count += 1
        return f"{self._boot}-{self._count}"

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait_for_change(self, seconds: float) -> None:
        async with self._changed:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                return
