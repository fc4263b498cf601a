"""Requests between edge servers: the coordinator's commands, and what edge servers ask each other.

`METHODS` has all remote methods; docs/protocol.md has a table of them, which a test compares.
"""

from typing import ClassVar, Generic

import msgspec

from cfel.deployment.coordinator.state import CoordinatorState, Position
from cfel.deployment.election.rules import ElectionMessage
from cfel.deployment.protocol.calls import Answer, AnyRequest, Request
from cfel.deployment.protocol.device_requests import (
    Confirmation,
    DivergedRequest,
    EstimatesRequest,
    MeasurementReport,
    ModelRequest,
    NextRequest,
    UploadPartRequest,
    UploadRequest,
)
from cfel.deployment.protocol.messages import (
    MOST_WHOLE,
    Amount,
    Body,
    Count,
    Digest,
    Instance,
    Positive,
    Share,
    Version,
)
from cfel.errors import InputError
from cfel.learning.local.estimates import Estimates
from cfel.runlog import PlanTable, RoundRecord
from cfel.status import DEVICE_STATES, Status

MixingRows = tuple[tuple[Share, ...], ...]
"""The mixing matrix of a gossip step, row by row."""


LOGGED = MOST_WHOLE
"""In place of a term: the record is in a log, so a majority has agreed on it."""


class ProposedRecord(msgspec.Struct, frozen=True):
    """The record of a global round that a coordinator proposed.

    Attributes:
        term: of the coordinator; `LOGGED` for one that is in the log.
        record: the line for the log.
    """

    term: Count
    record: RoundRecord


class NewestAnswer(msgspec.Struct, frozen=True):
    """Where an edge server is.

    Attributes:
        position: what comes next.
        state: the newest of a coordinator that it has seen, or None before the first plan.
        connected: its devices that are there.
        is_lost: whether it has lost its state or its proposal, so that more has happened than it knows.
        proposal: the newest record that was proposed to it, or that it has logged.
    """

    position: Position
    state: CoordinatorState | None
    connected: tuple[Count, ...]
    is_lost: bool = False
    proposal: ProposedRecord | None = None


class NewestRequest(Request[NewestAnswer], frozen=True):
    """Asks where an edge server is, and for the newest state of a coordinator it knows.

    Attributes:
        term: of the coordinator that asks. Once answered, commands of earlier terms are rejected.
    """

    method: ClassVar[str] = "newest"
    callers = ("edge",)
    term: Count


class Command(Request[Answer], Generic[Answer], frozen=True):
    """What the coordinator of a term has an edge server do at a position of the run."""

    callers = ("edge",)
    term: Count
    position: Position


class DeviceEstimates(msgspec.Struct, frozen=True):
    """One device's σ² and G², and its measurements.

    Attributes:
        device: its number.
        estimates: what it found.
        measured: its measurements, where conditions are measured.
        seconds: from the order to the answer, by the edge server's clock; 0 if unknown.
    """

    device: Count
    estimates: Estimates
    measured: MeasurementReport | None = None
    seconds: Amount = 0.0


class EstimateAnswer(msgspec.Struct, frozen=True):
    """The estimates that arrived in time.

    Attributes:
        devices: by device.
        diverged: devices whose training diverged instead.
    """

    devices: tuple[DeviceEstimates, ...]
    diverged: tuple[Count, ...] = ()


class EstimateCommand(Command[EstimateAnswer], frozen=True):
    """Has devices estimate σ² and G².

    Attributes:
        available: per device of the fleet, whether it takes part.
    """

    method: ClassVar[str] = "estimate"
    available: tuple[bool, ...]


class DeviceResult(msgspec.Struct, frozen=True):
    """What one device did in an edge round.

    Attributes:
        device: its number.
        rho, theta, speed: of the order it carried out; a coordinator that took over may have planned others.
            The speed is 1 where the plan has none.
        steps: local iterations taken.
        wire_bits: size of its update.
        loss: mean training loss; NaN without steps.
        estimates: its newest, or None.
        measured: its measurements, where conditions are measured.
        seconds: from the order to the upload, by the edge server's clock; 0 if unknown.
    """

    device: Count
    rho: Share
    theta: Share
    speed: Share
    steps: Count
    wire_bits: Count
    loss: float
    estimates: Estimates | None
    measured: MeasurementReport | None = None
    seconds: Amount = 0.0


class PlanAnswer(msgspec.Struct, frozen=True):
    """What came of an edge round.

    Attributes:
        devices: those whose uploads went into the model.
        connected: devices that are there, and that the next round may be planned with.
        seconds: how long the edge server waited for its devices, by its own clock.
        diverged: devices whose training diverged instead.
    """

    devices: tuple[DeviceResult, ...]
    connected: tuple[Count, ...]
    seconds: Amount
    diverged: tuple[Count, ...] = ()


class PlanCommand(Command[PlanAnswer], frozen=True):
    """Has an edge server carry out an edge round.

    Attributes:
        state: the coordinator's, with the plan.
    """

    method: ClassVar[str] = "plan"
    state: CoordinatorState


class FetchAnswer(msgspec.Struct, frozen=True):
    """Whose models an edge server has for a gossip step.

    Attributes:
        position: where it is.
        received_from: numbers of the edge servers.
        rows: the matrix it has already mixed with, or None.
    """

    position: Position
    received_from: tuple[Count, ...]
    rows: MixingRows | None


class FetchCommand(Command[FetchAnswer], frozen=True):
    """Has an edge server fetch its neighbours' models for a gossip step.

    Attributes:
        present: edge servers that are not missing.
    """

    method: ClassVar[str] = "fetch"
    present: tuple[Count, ...]


class MixAnswer(msgspec.Struct, frozen=True):
    """What came of a gossip step.

    Attributes:
        position: before the step.
        rows: the matrix it mixed with.
        digest: SHA-256 of the new model.
        metric: of the new model on the test set, or None if it was not evaluated.
        metrics: the task's further metrics by name; empty if not measured.
        device_metrics: the metric of each of its devices, in their order, on test samples like its own; NaN
            where there are none. Empty if not measured.
    """

    position: Position
    rows: MixingRows
    digest: Digest
    metric: float | None
    metrics: dict[str, float] = {}
    device_metrics: tuple[float, ...] = ()


class MixCommand(Command[MixAnswer], frozen=True):
    """Has an edge server average its model with its neighbours'.

    Attributes:
        rows: the mixing matrix.
        evaluate: whether to evaluate the new model.
        state: the coordinator's, for a successor.
    """

    method: ClassVar[str] = "mix"
    rows: MixingRows
    evaluate: bool
    state: CoordinatorState


class ProposeCommand(Command[Confirmation], frozen=True):
    """Has an edge server keep the record of a global round, which is logged once a majority has it.

    Attributes:
        record: the line for the log.
    """

    method: ClassVar[str] = "propose"
    record: RoundRecord


class CloseCommand(Command[Confirmation], frozen=True):
    """Has an edge server write a finished global round to its log.

    Attributes:
        record: the log's line.
        plans: the table of plans.
        last: whether the experiment ends with this round.
    """

    method: ClassVar[str] = "close"
    record: RoundRecord
    plans: PlanTable
    last: bool


class StopCommand(Command[Confirmation], frozen=True):
    """Has an edge server end with an error: the training of all devices diverged."""

    method: ClassVar[str] = "stop"


class ModelScores(msgspec.Struct, frozen=True):
    """What a model scores on the test set; the fields are those of `MixAnswer`, over all devices."""

    metric: float
    metrics: dict[str, float] = {}
    device_metrics: tuple[float, ...] = ()


class MeanMetricRequest(Request[ModelScores], frozen=True):
    """Has an edge server evaluate the mean of all edge models that it can fetch."""

    method: ClassVar[str] = "mean_metric"
    callers = ("edge",)


class ReleaseRequest(Request[Confirmation], frozen=True):
    """Lets an edge server stop: all know that the experiment is over, except the missing ones."""

    method: ClassVar[str] = "release"
    callers = ("edge",)
    missing: tuple[Count, ...]


class PeerModelAnswer(msgspec.Struct, frozen=True):
    """A part of an edge server's model.

    Attributes:
        position: where the edge server is.
        sha256: of the whole model.
        model: the part.
    """

    position: Position
    sha256: Digest
    model: Body


class PeerModelRequest(Request[PeerModelAnswer], frozen=True):
    """Fetches a part of the model before a gossip step; of the present model without `position`.

    Attributes:
        sha256: of the model, once it is known from the first part.
        offset: how many of its bytes the caller has.
        most_bytes: how many more it wants now.
    """

    method: ClassVar[str] = "peer_model"
    callers = ("edge",)
    is_transfer = True
    position: Position | None = None
    sha256: Digest | None = None
    offset: Count = 0
    most_bytes: Positive = MOST_WHOLE


class RecordsAnswer(msgspec.Struct, frozen=True):
    """Lines of the log."""

    records: tuple[RoundRecord, ...]


class RecordsRequest(Request[RecordsAnswer], frozen=True):
    """Asks for the records of all rounds after one."""

    method: ClassVar[str] = "records"
    callers = ("edge",)
    after: Count


class HelloAnswer(msgspec.Struct, frozen=True):
    """A sign of life.

    Attributes:
        over: whether it knows that the experiment is over.
        devices: what its devices are doing, in the words of `cfel.status`.
        version: of cfel on it.
        instance: drawn when its process started.
        term: the newest that it knows.
    """

    over: bool
    devices: dict[Count, str]
    version: Version = ""
    instance: Instance = ""
    term: Count = 0

    def __post_init__(self) -> None:
        for device, state in self.devices.items():
            if state not in DEVICE_STATES:
                raise InputError(f"devices[{device}] = {state!r}: must be one of {', '.join(DEVICE_STATES)}")


class HelloRequest(Request[HelloAnswer], frozen=True):
    """Asks for a sign of life.

    Attributes:
        over: whether the caller knows that the experiment is over.
        instance: drawn when the caller's process started.
    """

    method: ClassVar[str] = "hello"
    callers = ("edge",)
    over: bool
    instance: Instance = ""


class ElectionRequest(Request[Confirmation], frozen=True):
    """Brings a message of the election."""

    method: ClassVar[str] = "election"
    callers = ("edge",)
    message: ElectionMessage


class StatusAnswer(msgspec.Struct, frozen=True):
    """An edge server's snapshot, position and role.

    Attributes:
        status: its snapshot.
        position: where it is.
        role: its role in the election.
    """

    status: Status
    position: Position
    role: str


class StatusRequest(Request[StatusAnswer], frozen=True):
    """Asks for a snapshot."""

    method: ClassVar[str] = "status"
    callers = ("edge", "operator")


METHODS: tuple[type[AnyRequest], ...] = (
    NextRequest,
    ModelRequest,
    EstimatesRequest,
    UploadPartRequest,
    UploadRequest,
    DivergedRequest,
    NewestRequest,
    EstimateCommand,
    PlanCommand,
    FetchCommand,
    MixCommand,
    ProposeCommand,
    CloseCommand,
    StopCommand,
    PeerModelRequest,
    RecordsRequest,
    MeanMetricRequest,
    ReleaseRequest,
    HelloRequest,
    ElectionRequest,
    StatusRequest,
)
"""Every remote method, in the order of docs/protocol.md."""

TRANSFER_METHODS = frozenset(each.method for each in METHODS if each.is_transfer)
"""Methods with large bodies."""
