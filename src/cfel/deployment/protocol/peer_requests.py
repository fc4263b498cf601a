"""Requests between edge servers as equals: models, records, signs of life, votes; and `status`."""

from typing import ClassVar

import msgspec

from cfel.deployment.election.state import ElectionMessage
from cfel.deployment.positions import Position
from cfel.deployment.protocol.calls import Request
from cfel.deployment.protocol.codec import MOST_WHOLE, Count, Digest, Instance, Positive, Version
from cfel.deployment.protocol.device_requests import Confirmation
from cfel.deployment.transport.messages import Body
from cfel.errors import InputError
from cfel.runlog import RoundRecord
from cfel.status import DEVICE_STATES, Status


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
        distrusts: edge servers that it does not follow at the moment, whatever the election says.
    """

    over: bool
    devices: dict[Count, str]
    version: Version = ""
    instance: Instance = ""
    term: Count = 0
    distrusts: tuple[Count, ...] = ()

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
