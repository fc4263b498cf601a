"""Requests of the coordinator to edge servers: where they are, and its commands."""

from typing import ClassVar, Generic

import msgspec

from cfel.deployment.coordinator.control_state import CoordinatorState
from cfel.deployment.positions import Position
from cfel.deployment.protocol.calls import Answer, Request
from cfel.deployment.protocol.codec import Amount, Count, Digest, Share
from cfel.deployment.protocol.device_requests import Confirmation, MeasurementReport
from cfel.learning.local.estimates import Estimates, check_estimates
from cfel.runlog import PlanTable, RoundRecord

MixingRows = tuple[tuple[Share, ...], ...]
"""The mixing matrix of a gossip step, row by row."""


class ProposedRecord(msgspec.Struct, frozen=True):
    """The record of a global round that a coordinator proposed.

    Attributes:
        term: of the coordinator.
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
    """What the coordinator of a term has an edge server do at a position."""

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

    def __post_init__(self) -> None:
        check_estimates(self.estimates)


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

    def __post_init__(self) -> None:
        if self.estimates is not None:
            check_estimates(self.estimates)


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
