"""One round of orders: what each device is asked, and what has arrived; values only, nothing waits here."""

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from cfel.deployment.protocol.device_requests import IssuedOrder, MeasurementReport, Round
from cfel.errors import RejectedError
from cfel.learning.device_messages import DeviceOrder

Kind = Literal["estimate", "update"]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """What a device is asked.

    Attributes:
        serial: tells a new order from one that the device knows.
        order: what is asked.
        last_used_round: round of the device's last upload that went into a model, or None.
        speed: share of its full clock that it is planned to run at.
    """

    serial: str
    order: DeviceOrder
    last_used_round: Round | None
    speed: float

    @property
    def round(self) -> Round:
        """What the order belongs to."""
        return self.order.global_round, self.order.edge_round

    def issue(self, kind: Kind, model_sha256: str) -> IssuedOrder:
        """The order as it is sent to the device."""
        rho, theta, rate = self.order.rho, self.order.theta, self.order.rate
        used = self.last_used_round
        return IssuedOrder(kind, self.serial, self.round, rho, theta, model_sha256, used, rate, self.speed)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAnswers(Generic[Value]):
    """What devices answered in time.

    Attributes:
        values: by device, in increasing order.
        measured: their measurements, where conditions are measured.
        answer_seconds: seconds from the orders to each answer.
        seconds: how long the edge server waited for all of them.
        diverged: devices whose training diverged instead.
    """

    values: dict[int, Value]
    measured: dict[int, MeasurementReport]
    answer_seconds: dict[int, float]
    seconds: float
    diverged: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class OpenRound:
    """A round of orders of one kind.

    Attributes:
        kind: estimates or updates.
        size: how many devices were asked.
        started_at: when, in seconds of a monotonic clock.
        waiting: orders without an answer.
        answered: orders that were answered.
        values: the answers.
        measured: the measurements that came with them.
        answer_seconds: seconds from the orders to each answer.
        diverged: devices whose training diverged instead.
    """

    kind: Kind = "estimate"
    size: int = 0
    started_at: float = 0.0
    waiting: dict[int, Assignment] = field(default_factory=dict)
    answered: dict[int, Assignment] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    measured: dict[int, MeasurementReport] = field(default_factory=dict)
    answer_seconds: dict[int, float] = field(default_factory=dict)
    diverged: set[int] = field(default_factory=set)

    def find(self, device: int, kind: Kind, sent: Round) -> Assignment:
        """The order that an answer belongs to.

        Raises:
            RejectedError: no such answer is asked of the device now.
        """
        assignment = self.waiting.get(device)
        if assignment is None or self.kind != kind:
            raise RejectedError(f"no {kind} is asked of device {device} now")
        # An answer to an earlier order that was on its way when the round closed.
        if sent != assignment.round:
            raise RejectedError(f"{kind} of round {sent}, asked was {assignment.round}")
        return assignment

    def holds(self, device: int, kind: Kind, sent: Round) -> bool:
        """Whether the device's answer of this kind and round has been accepted already."""
        assignment = self.answered.get(device)
        return assignment is not None and self.kind == kind and assignment.round == sent

    def accept(self, device: int, value: object, measured: MeasurementReport | None, now: float) -> None:
        """Keeps an answer that has just arrived."""
        self.answered[device], self.values[device] = self.waiting.pop(device), value
        self.answer_seconds[device] = now - self.started_at
        if measured is not None:
            self.measured[device] = measured

    def drop(self, device: int, assignment: Assignment) -> bool:
        """Stops waiting for an answer; whether it was still waited for."""
        if self.waiting.get(device) is not assignment:
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
        )
