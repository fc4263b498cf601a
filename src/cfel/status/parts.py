"""What a snapshot consists of: devices, clusters, links, finished rounds, events of the election.

Each part refuses, by field and value, what cannot be. Names are text, whatever they hold.
"""

import math
from dataclasses import dataclass

from cfel.errors import InputError, unknown_name

DEVICE_STATES = ("idle", "training", "uploading", "done", "late", "away", "lost", "quarantined")
EDGE_STATES = ("alive", "suspect", "lost")
ELECTION_KINDS = ("campaign", "elected", "follows", "stepped-down", "no-majority")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One device.

    Attributes:
        device: its number in the fleet.
        name: what it is called; text from the network.
        state: one of `DEVICE_STATES`.
        rho: ρ, share of local iterations it was asked for; None when it was not asked.
        theta: θ, share of entries it was asked to upload.
        mu: μ, seconds per local step.
        nu: ν, seconds per full upload.
        seconds: time its last edge round took.
        joules: energy its last edge round took.
        source: where its seconds and joules come from, in words; text from the network.
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

    def __post_init__(self) -> None:
        """Refuses what no device can be in."""
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
        node: id of the edge server; text from the network.
        state: one of `EDGE_STATES`, as this node sees it.
        size: devices in the cluster.
        devices: those the snapshot speaks of, at most `size`.
        rho_mean: mean of ρ over all devices of the cluster that take part; None when unknown.
        theta_mean: mean of θ likewise.
    """

    cluster: int
    node: str = ""
    state: str = "alive"
    size: int = 0
    devices: tuple[DeviceStatus, ...] = ()
    rho_mean: float | None = None
    theta_mean: float | None = None

    def __post_init__(self) -> None:
        """Refuses more devices than there are."""
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
        up: whether the last gossip went over it.
    """

    a: int
    b: int
    weight: float | None = None
    up: bool = True

    def __post_init__(self) -> None:
        """Refuses ends that are no cluster numbers."""
        check_count("a", self.a)
        check_count("b", self.b)
        check_number("weight", self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPoint:
    """One finished global round; a metric that is no finite number (a loss that diverged) becomes None.

    Attributes:
        round: its number.
        seconds: time spent when it ended.
        joules: energy spent when it ended.
        accuracy: larger is better; None when it was not evaluated.
        loss: mean training loss.
        straggler: device that all others waited for.
    """

    round: int
    seconds: float
    joules: float
    accuracy: float | None = None
    loss: float | None = None
    straggler: int | None = None

    def __post_init__(self) -> None:
        """Refuses costs that cannot be."""
        check_count("round", self.round)
        for name in ("seconds", "joules"):
            check_number(name, getattr(self, name), optional=False)
        for name in ("accuracy", "loss"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                object.__setattr__(self, name, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Another run to compare with.

    Attributes:
        name: what it is called.
        history: its rounds.
    """

    name: str
    history: tuple[RoundPoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionEvent:
    """Something that happened to the coordinator's role.

    Attributes:
        unix_seconds: when, by this node's clock.
        term: the term it belongs to.
        kind: one of `ELECTION_KINDS`.
        node: whom it is about; text from the network.
    """

    unix_seconds: float
    term: int
    kind: str
    node: str = ""

    def __post_init__(self) -> None:
        """Refuses what no election has."""
        check_number("unix_seconds", self.unix_seconds, optional=False)
        check_count("term", self.term)
        check_name("kind", self.kind, ELECTION_KINDS)


def check_name(field: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses a word that is not one of `allowed`."""
    if value not in allowed:
        raise InputError(unknown_name(field, value, allowed))


def check_count(field: str, value: object, *, optional: bool = False) -> None:
    """Refuses what is no whole number ≥ 0."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{field}: {value!r} is not a whole number >= 0")


def check_number(field: str, value: object, *, most: float = math.inf, optional: bool = True) -> None:
    """Refuses what is no finite number from 0 to `most`."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"{field}: {value!r} is not a finite number >= 0")
    if value > most:
        raise InputError(f"{field}: {value!r} is more than {most:g}")
