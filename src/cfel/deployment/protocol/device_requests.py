"""Requests of devices to their edge server: the next order, its model, estimates and uploads."""

from typing import Annotated, ClassVar, Literal

import msgspec

from cfel.deployment.protocol.calls import Request
from cfel.deployment.protocol.messages import MOST_WHOLE, Body, Count, Digest, Positive, Version
from cfel.errors import InputError
from cfel.learning.device_messages import Order
from cfel.learning.local.estimates import Estimates, check_estimates

MOST_SECONDS = 1e7
MOST_JOULES = 1e9
MOST_WATTS = 1e6
MOST_SOURCE_CHARACTERS = 40
MOST_WHAT_CHARACTERS = 200

Round = tuple[Count, Count]
"""Global round and edge round, both from 0."""

OrderKind = Literal["estimate", "update"]

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_SOURCE_CHARACTERS)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]
_Joules = Annotated[float, msgspec.Meta(ge=0, le=MOST_JOULES)]
_Watts = Annotated[float, msgspec.Meta(ge=0, le=MOST_WATTS)]


class Confirmation(msgspec.Struct, frozen=True):
    """The request was carried out; there is nothing to report."""


class NoOrder(msgspec.Struct, frozen=True, tag="no order"):
    """Nothing new came up while the request was open: ask again."""


class ExperimentOver(msgspec.Struct, frozen=True, tag="over"):
    """There will be no further orders; names the last model, so that the device can fetch and publish it."""

    rounds: Count = 0  # global rounds of the experiment
    model_sha256: Digest | None = None  # None if the edge server has no model to publish


class ModelStep(msgspec.Struct, frozen=True):
    """A difference from one model to the next that devices train from."""

    known: Digest  # names the one before
    difference: Digest  # names the difference, which can be fetched like a model


class NextModel(msgspec.Struct, frozen=True, tag="model"):
    """Names the model of the order to come, so that the device can fetch it ahead."""

    serial: str  # of this notice
    model_sha256: Digest  # names the model
    steps: tuple[ModelStep, ...] = ()  # that lead to it, where devices fetch differences


class NextOrder(msgspec.Struct, frozen=True, tag="order"):
    """Brings an order, with its model named by its SHA-256."""

    serial: str  # tells a new order from one that the device knows
    kind: OrderKind  # estimates or an update
    order: Order[Digest]  # what is asked
    last_used_round: Round | None  # round of the device's last upload that went into a model, or None
    steps: tuple[ModelStep, ...] = ()  # that lead to its model, where devices fetch differences


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """The device belongs to another edge server, and is to ask that one."""

    edge: Count
    address: str = ""  # "host:port"; empty if it is in the device's own file


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """The device does not belong to the fleet any more."""


NextAnswer = NoOrder | ExperimentOver | NextModel | NextOrder | Moved | Removed


class NextRequest(Request[NextAnswer], frozen=True):
    """Waits for an order that the device does not know yet; stays open up to `POLL_SECONDS`."""

    method: ClassVar[str] = "next"
    callers = ("device",)
    known: str  # serial of the newest order or notice that the device has
    version: Version = ""  # of cfel on the device
    silent: Count | None = None  # the edge server that it belongs to, if that one has long not answered


class ModelAnswer(msgspec.Struct, frozen=True):
    """A part of a model's bytes, parameters first."""

    model: Body


class ModelRequest(Request[ModelAnswer], frozen=True):
    """Fetches a part of the model, or of the difference, that `sha256` names."""

    method: ClassVar[str] = "model"
    callers = ("device",)
    is_transfer = True
    sha256: Digest  # of the whole
    offset: Count = 0  # how many of its bytes the device has
    most_bytes: Positive = MOST_WHOLE  # how many more it wants now


class MeasurementReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device's newest measurements; checked for form and range only, see `measurement`."""

    mu: Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)]  # seconds per local step, > 0
    alpha: _Joules  # joules per local step
    nu: _Seconds  # seconds to upload one full model
    power: _Watts  # watts while sending
    seconds: _Seconds  # its training time in this edge round
    joules: _Joules  # its training energy, including energy measured earlier and not reported yet
    time_source: _Text  # where its seconds come from: "clock", or "model" for those not measured yet
    energy_source: _Text  # where its joules come from: a counter's name, or "model"

    @property
    def sources(self) -> str:
        """Where seconds and joules come from, for the status page."""
        return f"time: {self.time_source}, energy: {self.energy_source}"


class RoundOnly(msgspec.Struct, frozen=True):
    """What remains readable of a request whose other fields are not valid."""

    round: Round


class EstimatesRequest(Request[Confirmation], frozen=True):
    """Reports σ² and G² at the order's model."""

    method: ClassVar[str] = "estimates"
    callers = ("device",)
    round: Round  # of the order
    estimates: Estimates  # what the device found
    measured: MeasurementReport | None = None  # its measurements, where conditions are measured

    def __post_init__(self) -> None:
        check_estimates(self.estimates)
        # It describes an update, and there is none yet; another length than others' would stop the planner.
        if self.estimates.kept_energy:
            raise InputError("estimates.kept_energy: belongs to an upload")


class DivergedRequest(Request[Confirmation], frozen=True):
    """Says that an order has no answer, because training diverged."""

    method: ClassVar[str] = "diverged"
    callers = ("device",)
    kind: OrderKind  # of the order
    round: Round  # of the order
    what: Annotated[str, msgspec.Meta(max_length=MOST_WHAT_CHARACTERS)]  # what is not finite, in words


class UploadPartAnswer(msgspec.Struct, frozen=True):
    """How many bytes of the upload the edge server holds now: the next part begins there."""

    held: Count


class UploadPartRequest(Request[UploadPartAnswer], frozen=True):
    """Brings a part of an upload's content; an empty one asks how much has arrived."""

    method: ClassVar[str] = "upload_part"
    callers = ("device",)
    is_transfer = True
    round: Round  # of the order
    sha256: Digest  # of the whole content
    offset: Count  # where the part begins; ignored unless the edge server holds exactly this much
    content: Body  # the part


MOST_UNUSED = 100


class UploadRequest(Request[Confirmation], frozen=True):
    """Carries the update of an order; `edge.checks` checks it against the order."""

    method: ClassVar[str] = "upload"
    callers = ("device",)
    is_transfer = True
    round: Round  # of the order
    steps: Count  # local iterations taken
    loss: float  # mean training loss over them; NaN if there were none
    samples: Positive  # how many the device holds
    buffers: Count  # how many batch-norm values stand before the update in the body
    content: Body  # those values, then the bytes of `learning.compression.packing`
    estimates: Estimates | None  # the device's newest, or None if there never were any
    measured: MeasurementReport | None = None  # its measurements, where conditions are measured
    content_sha256: Digest | None = None  # of the content, if it was sent in parts; the body is then empty
    # Rounds that it trained for and whose updates were not used, since the last one that was.
    unused: Annotated[tuple[Round, ...], msgspec.Meta(max_length=MOST_UNUSED)] = ()

    def __post_init__(self) -> None:
        if self.estimates is not None:
            check_estimates(self.estimates)
