"""Requests between edge servers: the coordinator's commands, and what edge servers ask each other.

`METHODS` has all remote methods; docs/protocol.md has a table of them, which a test compares.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Generic

import msgspec

from cfel.control.clusters import (
    CountAnswer,
    CountQuestion,
    DivideAnswer,
    DivideQuestion,
    FleetQuestion,
    LeastAnswer,
    LeastQuestion,
    MeetAnswer,
    MeetQuestion,
    RankAnswer,
    RankQuestion,
    SettleAnswer,
    SettleQuestion,
)
from cfel.control.exchange import CurveAnswer
from cfel.deployment.coordinator.state import CoordinatorState, Position
from cfel.deployment.election.rules import ElectionMessage
from cfel.deployment.measurement.measured_rounds import JouleAccount
from cfel.deployment.protocol.calls import Answer, AnyRequest, Request
from cfel.deployment.protocol.device_requests import (
    Confirmation,
    DivergedRequest,
    EstimatesRequest,
    MeasurementReport,
    ModelRequest,
    NextRequest,
    Round,
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
from cfel.membership import FleetChange
from cfel.rounds.records import ClusterTotals
from cfel.runlog import PlanTable, RoundRecord
from cfel.status import DEVICE_STATES, Status

MixingRows = tuple[tuple[Share, ...], ...]
"""The mixing matrix of a gossip step, row by row."""


LOGGED = MOST_WHOLE
"""In place of a term: the record is in a log, so a majority has agreed on it."""


class ProposedRecord(msgspec.Struct, frozen=True):
    """The record of a global round that a coordinator proposed."""

    term: Count  # of the coordinator; `LOGGED` for one that is in the log
    record: RoundRecord  # the line for the log


class NewestAnswer(msgspec.Struct, frozen=True):
    """Where an edge server is."""

    position: Position  # what comes next
    # The newest of a coordinator that it has seen, or None before the first plan.
    state: CoordinatorState | None
    connected: tuple[Count, ...]  # its devices that are there
    # Whether it has lost its state or its proposal, so that more has happened than it knows.
    is_lost: bool = False
    proposal: ProposedRecord | None = None  # the newest record that was proposed to it, or that it has logged
    joined: Count = 0  # how many of its devices are there, where a fleet is planned by clusters


class NewestRequest(Request[NewestAnswer], frozen=True):
    """Asks where an edge server is, and for the newest state of a coordinator it knows."""

    method: ClassVar[str] = "newest"
    callers = ("edge",)
    term: Count  # of the coordinator that asks. Once answered, commands of earlier terms are rejected.


class Command(Request[Answer], Generic[Answer], frozen=True):
    """What the coordinator of a term has an edge server do at a position of the run."""

    callers = ("edge",)
    term: Count
    position: Position


class JoinCommand(Command[Confirmation], frozen=True):
    """Has an edge server that joins fetch the model it begins with, and its log."""

    method: ClassVar[str] = "join"
    model_of: Count  # the edge server whose model it takes


@dataclass(frozen=True, slots=True, eq=False)
class DeviceEntry:
    """What is known of one device.

    Attributes:
        at: the edge round after which it was written; later entries are larger.
        estimates: its newest σ² and G².
        spent_joules: in the account that the budget counts.
        loss: its newest training loss; NaN before the first.
        habit: running mean of its influence (`rounds.estimates`).
        is_absent: it missed its last order and was not connected any more.
        report: its newest measurements, where conditions are measured.
        account: its joules, as it reported them.
        last_used_round: of its last upload that went into a model of another edge server.
        missed: how many differences it lacks to the next model, as in `rounds.kernel.ControlState`.
    """

    at: Round = (0, 0)
    estimates: Estimates | None = None
    spent_joules: float = 0.0
    loss: float = float("nan")
    habit: float = 0.0
    is_absent: bool = False
    report: MeasurementReport | None = None
    account: JouleAccount = field(default_factory=JouleAccount)
    last_used_round: Round | None = None
    missed: float = math.inf


class EntriesAnswer(msgspec.Struct, frozen=True):
    """What an edge server knows of devices that were its own, or whose uploads are in its model."""

    entries: dict[Count, DeviceEntry]  # by device


class EntriesRequest(Request[EntriesAnswer], frozen=True):
    """Asks what an edge server knows of devices that have come to the caller."""

    method: ClassVar[str] = "entries"
    callers = ("edge",)
    devices: tuple[Count, ...]


class ClusterQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question about an edge server's own devices: one of the fields (`control.clusters`)."""

    meet: MeetQuestion | None = None
    rank: RankQuestion | None = None
    least: LeastQuestion | None = None
    fleet: FleetQuestion | None = None
    settle: SettleQuestion | None = None
    divide: DivideQuestion | None = None
    count: CountQuestion | None = None


class ClusterAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Its answer: one of the fields, with one column."""

    meet: MeetAnswer | None = None
    rank: RankAnswer | None = None
    least: LeastAnswer | None = None
    fleet: CurveAnswer | None = None
    settle: SettleAnswer | None = None
    divide: DivideAnswer | None = None
    count: CountAnswer | None = None


class AskAnswer(msgspec.Struct, frozen=True):
    """What an edge server answers for its own devices."""

    answers: tuple[ClusterAnswer, ...]  # in the order of the questions
    is_estimated: bool  # whether one of its devices has estimates of σ² and G²
    kept_energy: tuple[float, ...] = ()  # sums of what its devices' largest entries keep, at each θ
    kept_devices: Count = 0  # how many devices say so


class AskCommand(Command[AskAnswer], frozen=True):
    """Asks an edge server about its own devices, to plan an edge round of a large fleet."""

    method: ClassVar[str] = "ask"
    questions: tuple[ClusterQuestion, ...]  # about devices that may take part in the edge round
    changes: tuple[FleetChange, ...] = ()  # of the fleet, as in the coordinator's state
    # Whether the edge round is not next, but is looked ahead to.
    is_ahead: bool = False


class DeviceEstimates(msgspec.Struct, frozen=True):
    """One device's σ² and G², and its measurements."""

    device: Count  # its number
    estimates: Estimates  # what it found
    measured: MeasurementReport | None = None  # its measurements, where conditions are measured
    seconds: Amount = 0.0  # from the order to the answer, by the edge server's clock; 0 if unknown


class OrderCounts(msgspec.Struct, frozen=True):
    """What became of an edge server's orders, in numbers of devices."""

    asked: Count
    answered: Count
    diverged: Count  # those of earlier rounds included, since one of its devices last answered


class EdgeRoundSums(msgspec.Struct, frozen=True):
    """What an edge round came to, in sums over an edge server's devices."""

    totals: ClusterTotals  # with one column
    device_seconds: Amount  # of its slowest device
    counts: OrderCounts


class EstimateAnswer(msgspec.Struct, frozen=True):
    """The estimates that arrived in time."""

    devices: tuple[DeviceEstimates, ...]  # by device
    diverged: tuple[Count, ...] = ()  # devices whose training diverged instead
    counts: OrderCounts | None = None  # in place of both, where a fleet is planned by clusters


class EstimateCommand(Command[EstimateAnswer], frozen=True):
    """Has devices estimate σ² and G²."""

    method: ClassVar[str] = "estimate"
    available: tuple[bool, ...]  # per device of the fleet, whether it takes part
    changes: tuple[FleetChange, ...] = ()  # of the fleet, as in the coordinator's state


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
        unused: rounds that it trained for in vain, since its last update that was used.
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
    unused: tuple[Round, ...] = ()


class PlanAnswer(msgspec.Struct, frozen=True):
    """What came of an edge round."""

    devices: tuple[DeviceResult, ...]  # those whose uploads went into the model
    connected: tuple[Count, ...]  # devices that are there, and that the next round may be planned with
    seconds: Amount  # how long the edge server waited for its devices, by its own clock
    diverged: tuple[Count, ...] = ()  # devices whose training diverged instead
    # In place of all these but the seconds, where a fleet is planned by clusters.
    sums: EdgeRoundSums | None = None


class PlanCommand(Command[PlanAnswer], frozen=True):
    """Has an edge server carry out an edge round."""

    method: ClassVar[str] = "plan"
    state: CoordinatorState  # the coordinator's, with the plan


class FetchAnswer(msgspec.Struct, frozen=True):
    """Whose models an edge server has for a gossip step."""

    position: Position  # where it is
    received_from: tuple[Count, ...]  # numbers of the edge servers
    rows: MixingRows | None  # the matrix it has already mixed with, or None
    # Per device, the round of its last upload that went into this model. The coordinator may not have heard.
    last_used_rounds: dict[Count, Round] = {}


class FetchCommand(Command[FetchAnswer], frozen=True):
    """Has an edge server fetch its neighbours' models for a gossip step."""

    method: ClassVar[str] = "fetch"
    present: tuple[Count, ...]  # edge servers that are not missing


class MixAnswer(msgspec.Struct, frozen=True):
    """What came of a gossip step."""

    position: Position  # before the step
    rows: MixingRows  # the matrix it mixed with
    digest: Digest  # SHA-256 of the new model
    metric: float | None  # of the new model on the test set, or None if it was not evaluated
    metrics: dict[str, float] = {}  # the task's further metrics by name; empty if not measured
    # The metric of each of its devices, in their order, on test samples like its own; NaN where there are
    # none. Empty if not measured.
    device_metrics: tuple[float, ...] = ()


class MixCommand(Command[MixAnswer], frozen=True):
    """Has an edge server average its model with its neighbours'."""

    method: ClassVar[str] = "mix"
    rows: MixingRows  # the mixing matrix
    evaluate: bool  # whether to evaluate the new model
    state: CoordinatorState  # the coordinator's, for a successor


class ProposeCommand(Command[Confirmation], frozen=True):
    """Has an edge server keep the record of a global round, which is logged once a majority has it."""

    method: ClassVar[str] = "propose"
    record: RoundRecord  # the line for the log


class CloseCommand(Command[Confirmation], frozen=True):
    """Has an edge server write a finished global round to its log."""

    method: ClassVar[str] = "close"
    record: RoundRecord  # the log's line
    plans: PlanTable | None  # the table of plans; None where every edge server has that of its own devices
    last: bool  # whether the experiment ends with this round
    # Where every edge server has its own table: per edge round, the edge servers whose devices were counted.
    counted: tuple[tuple[Count, ...], ...] = ()


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
    """A part of an edge server's model."""

    position: Position  # where the edge server is
    sha256: Digest  # of the whole model
    model: Body  # the part
    # With the first part: per device, the round of its last upload that went into this model.
    last_used_rounds: dict[Count, Round] = {}


class PeerModelRequest(Request[PeerModelAnswer], frozen=True):
    """Fetches a part of the model before a gossip step; of the present model without `position`."""

    method: ClassVar[str] = "peer_model"
    callers = ("edge",)
    is_transfer = True
    position: Position | None = None
    sha256: Digest | None = None  # of the model, once it is known from the first part
    offset: Count = 0  # how many of its bytes the caller has
    most_bytes: Positive = MOST_WHOLE  # how many more it wants now
    public: bool = False  # whether its public model is wanted, where edge servers send differences
    known: Digest | None = None  # the public model that the caller has: the difference from it is wanted


class RecordsAnswer(msgspec.Struct, frozen=True):
    """Lines of the log."""

    records: tuple[RoundRecord, ...]


class RecordsRequest(Request[RecordsAnswer], frozen=True):
    """Asks for the records of all rounds after one."""

    method: ClassVar[str] = "records"
    callers = ("edge",)
    after: Count


class HelloAnswer(msgspec.Struct, frozen=True):
    """A sign of life."""

    over: bool  # whether it knows that the experiment is over
    devices: dict[Count, str]  # what its devices are doing, in the words of `cfel.status`
    version: Version = ""  # of cfel on it
    instance: Instance = ""  # drawn when its process started
    term: Count = 0  # the newest that it knows
    protocol: Count = 6  # newest version of the protocol that it speaks; nodes of version 6 do not say
    voter_changes: Count = 0  # how often edge servers have joined or left, as far as it knows

    def __post_init__(self) -> None:
        for device, state in self.devices.items():
            if state not in DEVICE_STATES:
                raise InputError(f"devices[{device}] = {state!r}: must be one of {', '.join(DEVICE_STATES)}")


class HelloRequest(Request[HelloAnswer], frozen=True):
    """Asks for a sign of life."""

    method: ClassVar[str] = "hello"
    callers = ("edge",)
    over: bool  # whether the caller knows that the experiment is over
    instance: Instance = ""  # drawn when the caller's process started


class ElectionAnswer(msgspec.Struct, frozen=True):
    """The receiver's own message, if the caller takes it here."""

    reply: ElectionMessage | None = None


class ElectionRequest(Request[ElectionAnswer], frozen=True):
    """Brings a message of the election."""

    method: ClassVar[str] = "election"
    callers = ("edge",)
    message: ElectionMessage
    takes_reply: bool = False  # in the answer; else it comes in a call of its own


class ChangeAnswer(msgspec.Struct, frozen=True):
    """What has become of a change that was asked for."""

    round: Count  # the first global round that it holds for; 0 while it waits for the end of a round
    refused: str = ""  # why it is not possible; empty if it is


class ChangeRequest(Request[ChangeAnswer], frozen=True):
    """Asks for a change of the fleet, or of the length of the run; asked again until it holds."""

    method: ClassVar[str] = "change"
    callers = ("edge", "operator")
    change: FleetChange  # its round is chosen by the coordinator


class StatusAnswer(msgspec.Struct, frozen=True):
    """An edge server's snapshot, position and role."""

    status: Status  # its snapshot
    position: Position  # where it is
    role: str  # its role in the election


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
    JoinCommand,
    EntriesRequest,
    AskCommand,
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
    ChangeRequest,
    StatusRequest,
)
"""Every remote method, in the order of docs/protocol.md."""

TRANSFER_METHODS = frozenset(each.method for each in METHODS if each.is_transfer)
"""Methods with large bodies."""
