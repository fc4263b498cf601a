"""The parts of a snapshot: devices, clusters, links, finished rounds, events of the election.

Each part checks its values; an error names the field and the value. Texts may come from the network, so
control characters in them are spelled out: wherever a snapshot is shown, its texts are safe to print.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from cfel.errors import InputError, unknown_name
from cfel.wording import escape_control

DEVICE_STATES = ("idle", "training", "uploading", "done", "late", "absent", "lost", "quarantined")
EDGE_STATES = ("alive", "suspect", "lost")
ELECTION_KINDS = ("campaign", "elected", "follows", "stepped-down", "no-majority")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One device.

    Attributes:
        device: its number in the fleet.
        name: its name.
        state: one of `DEVICE_STATES`.
        rho: ρ, ordered share of local iterations; None without an order.
        theta: θ, ordered share of entries to upload.
        mu: μ, seconds per local step.
        nu: ν, seconds per full upload.
        seconds: time of its last edge round.
        joules: energy of its last edge round.
        source: where its seconds and joules come from.
        version: of cfel on the device; empty when it is not known.
        doubled: whether two processes seem to use its certificate.
    """

    device: int
    name: str = ""
    state: str = "idle"
    rho: float | None = None
    theta: float | None = None
    mu: float | None = None
    nu: float | None = None
    seconds: float | None = None
    joules: float | None = None
    source: str = ""
    version: str = ""
    doubled: bool = False

    def __post_init__(self) -> None:
        """Checks the state and the numbers."""
        escape_texts(self)
        check_count("device", self.device)
        check_name("state", self.state, DEVICE_STATES)
        for name in ("rho", "theta"):
            check_number(name, getattr(self, name), most=1.0)
        for name in ("mu", "nu", "seconds", "joules"):
            check_number(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """One edge server and its devices.

    Attributes:
        cluster: its number.
        node: id of the edge server.
        state: one of `EDGE_STATES`, as this node sees it.
        size: devices in the cluster.
        devices: those listed in the snapshot, at most `size`.
        rho_mean: mean of ρ over all devices of the cluster that take part; None when unknown.
        theta_mean: mean of θ likewise.
        version: of cfel on the edge server; empty when it is not known.
        doubled: whether two processes seem to use its certificate.
    """

    cluster: int
    node: str = ""
    state: str = "alive"
    size: int = 0
    devices: tuple[DeviceStatus, ...] = ()
    rho_mean: float | None = None
    theta_mean: float | None = None
    version: str = ""
    doubled: bool = False

    def __post_init__(self) -> None:
        """Checks the state, the numbers, and that no more devices are listed than exist."""
        escape_texts(self)
        check_count("cluster", self.cluster)
        check_name("state", self.state, EDGE_STATES)
        check_count("size", self.size)
        if len(self.devices) > self.size:
            raise InputError(
                f"size: {self.size}, but cluster {self.cluster} lists {len(self.devices)} devices"
            )
        for name in ("rho_mean", "theta_mean"):
            check_number(name, getattr(self, name), most=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link of the backhaul.

    Attributes:
        a: cluster at one end.
        b: cluster at the other.
        weight: its mixing weight, or None.
        up: whether the last gossip used it.
    """

    a: int
    b: int
    weight: float | None = None
    up: bool = True

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_count("a", self.a)
        check_count("b", self.b)
        check_number("weight", self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPoint:
    """One finished global round; a metric that is not finite (a loss that diverged) becomes None.

    Attributes:
        round: its number.
        seconds: time spent when it ended.
        joules: energy spent when it ended.
        accuracy: larger is better; None when it was not evaluated.
        loss: mean training loss.
        straggler: the slowest device, which all others waited for.
        wall_seconds: real time that this round took, or None.
        wire_bytes: bytes of this round's uploads and gossip, or None.
        device_accuracy_mean: mean over devices, on test samples like their own, or None: of the models that
            they keep to themselves, or else of the edge models.
        device_accuracy_worst: mean over the worst tenth of the devices, likewise.
        device_accuracy_spread: standard deviation over devices, likewise.
    """

    round: int
    seconds: float
    joules: float
    accuracy: float | None = None
    loss: float | None = None
    straggler: int | None = None
    wall_seconds: float | None = None
    wire_bytes: int | None = None
    device_accuracy_mean: float | None = None
    device_accuracy_worst: float | None = None
    device_accuracy_spread: float | None = None

    def __post_init__(self) -> None:
        """Checks the costs; replaces metrics that are not finite by None."""
        check_count("round", self.round)
        for name in ("seconds", "joules"):
            check_number(name, getattr(self, name), optional=False)
        check_number("wall_seconds", self.wall_seconds)
        check_count("wire_bytes", self.wire_bytes, optional=True)
        devices = ("device_accuracy_mean", "device_accuracy_worst", "device_accuracy_spread")
        for name in ("accuracy", "loss", *devices):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                object.__setattr__(self, name, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Another run to compare with.

    Attributes:
        name: its name.
        history: its rounds.
    """

    name: str
    history: tuple[RoundPoint, ...] = ()

    def __post_init__(self) -> None:
        escape_texts(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionEvent:
    """An event of the election.

    Attributes:
        unix_seconds: when, by this node's clock.
        term: the term it belongs to.
        kind: one of `ELECTION_KINDS`.
        node: the node it is about.
    """

    unix_seconds: float
    term: int
    kind: str
    node: str = ""

    def __post_init__(self) -> None:
        """Checks the kind and the numbers."""
        escape_texts(self)
        check_number("unix_seconds", self.unix_seconds, optional=False)
        check_count("term", self.term)
        check_name("kind", self.kind, ELECTION_KINDS)


def escape_texts(part: Any) -> None:  # noqa: ANN401 — any part of a snapshot, frozen
    """Spells out control characters in all texts of a part."""
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, str) and not value.isprintable():
            object.__setattr__(part, field.name, escape_control(value))


def check_name(field: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises an `InputError` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise InputError(unknown_name(field, value, allowed))


def check_count(field: str, value: object, *, optional: bool = False) -> None:
    """Raises an `InputError` unless `value` is a whole number ≥ 0."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{field}: {value!r} is not a whole number >= 0")


def check_number(field: str, value: object, *, most: float = math.inf, optional: bool = True) -> None:
    """Raises an `InputError` unless `value` is a finite number from 0 to `most`."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"{field}: {value!r} is not a finite number >= 0")
    if value > most:
        raise InputError(f"{field}: {value!r} is more than {most:g}")
