"""Status: what a node knows of its run at one moment, as a frozen snapshot and as a JSON document.

An edge server builds one from its memory, `cfel watch` from a run directory; the dashboard shows it. Numbers
and names only: it knows no clock, socket, file or page. Texts may come from the network; control characters
in them are spelled out when a snapshot is made, so they are safe to print wherever it is shown.
`docs/reference/status.md` describes every field of the document, in the words beside the fields below.
"""

import json
import math
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from cfel.errors import InputError
from cfel.metric import ACCURACY, Metric
from cfel.validation import check_name, check_number, convert_document
from cfel.wording import escape_control, show

SCHEMA = 2
"""Increased when a field changes its meaning or is removed; new fields do not change it."""

DEVICE_STATES = ("idle", "training", "uploading", "done", "late", "diverged", "absent", "lost", "quarantined")
EDGE_STATES = ("alive", "suspect", "lost")
ELECTION_KINDS = ("campaign", "elected", "follows", "stepped-down", "no-majority")
PHASES = ("waiting", "planning", "training", "aggregating", "gossip", "evaluating", "finished", "stopped")
_ALWAYS_WRITTEN = ("clusters", "links", "history", "curves", "rejected", "elections")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One device."""

    device: int  # its number in the fleet
    name: str = ""  # its name
    state: str = "idle"  # one of `DEVICE_STATES`
    rho: float | None = None  # ρ, ordered share of local iterations; None without an order
    theta: float | None = None  # θ, ordered share of entries to upload
    mu: float | None = None  # μ, seconds per local step
    nu: float | None = None  # ν, seconds per full upload
    seconds: float | None = None  # time of its last edge round
    joules: float | None = None  # energy of its last edge round
    source: str = ""  # where its seconds and joules come from
    version: str = ""  # of cfel on the device; empty when it is not known
    doubled: bool = False  # whether two processes seem to use its certificate

    def __post_init__(self) -> None:
        _escape_texts(self)
        check_name("state", self.state, DEVICE_STATES)
        _check_counts(self, "device")
        _check_numbers(self, "rho", "theta", most=1)
        _check_numbers(self, "mu", "nu", "seconds", "joules")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """One edge server and its devices."""

    cluster: int  # its number
    node: str = ""  # id of the edge server
    state: str = "alive"  # one of `EDGE_STATES`, as this node sees it
    size: int = 0  # devices in the cluster
    devices: tuple[DeviceStatus, ...] = ()  # those listed in the snapshot, at most `size`
    # Mean of ρ over all devices of the cluster that take part; None when unknown.
    rho_mean: float | None = None
    theta_mean: float | None = None  # mean of θ likewise
    version: str = ""  # of cfel on the edge server; empty when it is not known
    doubled: bool = False  # whether two processes seem to use its certificate

    def __post_init__(self) -> None:
        _escape_texts(self)
        check_name("state", self.state, EDGE_STATES)
        _check_counts(self, "cluster", "size")
        _check_numbers(self, "rho_mean", "theta_mean", most=1)
        if len(self.devices) > self.size:
            raise InputError(f"size = {self.size}: cluster {self.cluster} lists {len(self.devices)} devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
    """One link of the backhaul."""

    a: int  # the cluster at one end
    b: int  # the cluster at the other end
    weight: float | None = None  # its mixing weight, or None
    up: bool = True  # whether the last gossip used it

    def __post_init__(self) -> None:
        _check_counts(self, "a", "b")
        _check_numbers(self, "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPoint:
    """One finished global round; a metric that is not finite (a loss that diverged) becomes None."""

    round: int  # its number
    seconds: float  # time spent when it ended, as realised
    joules: float  # energy spent when it ended, as realised
    accuracy: float | None = None  # the task's metric; None when it was not evaluated
    loss: float | None = None  # mean training loss
    straggler: int | None = None  # the slowest device, which all others waited for
    wall_seconds: float | None = None  # real time that this round took, or None
    wire_bytes: int | None = None  # bytes of this round's uploads and gossip, or None
    # Mean over devices, on test samples like their own, or None: of the models that they keep to themselves,
    # or else of the edge models.
    device_accuracy_mean: float | None = None
    device_accuracy_worst: float | None = None  # mean over the worst tenth of the devices, likewise
    device_accuracy_spread: float | None = None  # standard deviation over devices, likewise

    def __post_init__(self) -> None:
        _check_counts(self, "round", "wire_bytes")
        _check_numbers(self, "seconds", "joules", "wall_seconds")
        devices = ("device_accuracy_mean", "device_accuracy_worst", "device_accuracy_spread")
        for name in ("accuracy", "loss", *devices):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                object.__setattr__(self, name, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Another run to compare with."""

    name: str
    history: tuple[RoundPoint, ...] = ()

    def __post_init__(self) -> None:
        _escape_texts(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionEvent:
    """An event of the election."""

    unix_seconds: float  # when, by this node's clock
    term: int  # the term it belongs to
    kind: str  # one of `ELECTION_KINDS`
    node: str = ""  # the node it is about

    def __post_init__(self) -> None:
        _escape_texts(self)
        check_name("kind", self.kind, ELECTION_KINDS)
        _check_counts(self, "term")
        _check_numbers(self, "unix_seconds")


def _escape_texts(part: Any) -> None:  # noqa: ANN401 — any part of a snapshot, frozen
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, str) and not value.isprintable():
            object.__setattr__(part, field.name, escape_control(value))


def _check_counts(part: object, *names: str) -> None:
    for name in names:
        if (value := getattr(part, name)) is not None:
            _check_count(name, value)


def _check_count(field: str, value: object) -> None:
    # Of any size, unlike `check_whole`: a log may hold any number of bytes.
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{field} = {show(value)}: must be a whole number ≥ 0")


def _check_numbers(part: object, *names: str, most: float | None = None) -> None:
    for name in names:
        if (value := getattr(part, name)) is not None:
            check_number(name, value, least=0, most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a node knows of its run at one moment."""

    node: str  # id of the node that reports
    name: str = ""  # of the experiment
    scheme: str = ""  # of the experiment
    source: str = "edge"  # "edge" for an edge server, "simulation" for a run directory
    unix_seconds: float = 0.0  # when the state last changed, by this node's clock
    phase: str = "waiting"  # one of `PHASES`
    round: int = 0  # global round started last; 0 before the first
    rounds: int | None = None  # global rounds of the experiment, or None
    edge_round: int | None = None  # current edge round, from 1; None when it is not known
    edge_rounds: int | None = None  # edge rounds in a global round, or None
    term: int | None = None  # of the election; None without one
    coordinator: str | None = None  # the node with this role; None when it is not known
    conditions: str = "model"  # "model" or "measured": where μ, ν and energy come from
    seconds: float = 0.0  # time spent, as realised
    seconds_budget: float | None = None  # time budget, or None for no limit
    joules: float = 0.0  # energy spent by all devices, as realised
    joules_budget: float | None = None  # energy budget, or None for no limit
    # Name, unit and direction of what history calls accuracy; with the unit %, numbers are shares.
    metric: Metric = ACCURACY
    target: float | None = None  # value of the metric to reach, or None
    straggler: int | None = None  # device that the last round waited for
    slowest_cluster: int | None = None  # its cluster
    clusters: tuple[ClusterStatus, ...] = ()  # edge servers and their devices
    links: tuple[LinkStatus, ...] = ()  # the backhaul
    history: tuple[RoundPoint, ...] = ()  # finished rounds
    curves: tuple[Curve, ...] = ()  # other runs to compare with
    rejected: tuple[tuple[str, int], ...] = ()  # number of uploads rejected since the start, by reason
    elections: tuple[ElectionEvent, ...] = ()  # the latest events of the election, oldest first
    problem: str = ""  # what is wrong; empty when nothing is
    version: str = ""  # of cfel on this node
    # Whether a majority of edge servers is in touch; None where there is no election.
    majority: bool | None = None
    leader_changes: int = 0  # elections that this node has seen a winner of, since it started
    wire_bytes: int = 0  # bytes of all uploads and gossip so far
    certificate_expires: float | None = None  # when this node's certificate expires, in Unix seconds, or None
    halted: str = ""  # why this node carries out no commands, as with a full disk; empty if it does
    applicants: tuple[int, ...] = ()  # devices that ask this node for orders and are no members of the fleet

    def __post_init__(self) -> None:
        _escape_texts(self)
        object.__setattr__(self, "rejected", _sum_reasons(self.rejected))
        check_name("source", self.source, ("edge", "simulation"))
        check_name("phase", self.phase, PHASES)
        check_name("conditions", self.conditions, ("model", "measured"))
        _check_counts(self, "round", "rounds", "edge_round", "edge_rounds", "term", "straggler")
        _check_counts(self, "slowest_cluster", "leader_changes", "wire_bytes")
        _check_numbers(self, "unix_seconds", "seconds", "joules", "seconds_budget", "joules_budget")
        _check_numbers(self, "certificate_expires")
        if self.target is not None:
            # A metric may be negative.
            check_number("target", self.target)
        for reason, number in self.rejected:
            _check_count(f"rejected[{reason!r}]", number)
        for number in self.applicants:
            _check_count("applicants", number)

    @property
    def unready(self) -> str:
        """Why the node takes no part in a federation that can make progress; empty if it does."""
        if self.source != "edge" or self.phase == "finished":
            return ""
        if self.halted:
            return self.halted
        if self.majority is False:
            return "no majority of edge servers is in touch"
        return "" if self.coordinator is not None else "no coordinator is elected"

    def to_json(self) -> bytes:
        """The document, which starts with `schema`; strict JSON on one line."""
        # The hook converts NumPy's floats.
        plain = msgspec.to_builtins(self, enc_hook=float)
        described = {name: getattr(self.metric, name) for name in ("name", "unit", "better")}
        document = {"schema": SCHEMA, **plain, "metric": described, "rejected": dict(self.rejected)}
        return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Status":
        """Reads what `to_json` wrote; ignores fields of a later version.

        Raises:
            InputError: the text is not such a document.
        """
        try:
            document = json.loads(text)
            # Checked first, so that the message is about the version and not about the first field that
            # differs.
            if document["schema"] != SCHEMA:
                raise InputError(f"schema = {show(document['schema'])}: this cfel reads {SCHEMA}")
            parts = {name: document[name] for name in _ALWAYS_WRITTEN}
            # JSON has an object here, for readers; a frozen snapshot needs pairs.
            parts["rejected"] = tuple(parts["rejected"].items())
            return convert_document(document | parts, cls)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"not a status document: {error}") from error


def thin_history(history: tuple[RoundPoint, ...], most: int) -> tuple[RoundPoint, ...]:
    """Returns at most `most` rounds, evenly spaced; always includes the newest."""
    if len(history) <= most:
        return history
    # Counts from the end, so that the newest round is always included.
    step = -(-len(history) // most)
    return history[(len(history) - 1) % step :: step]


def _sum_reasons(rejected: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The counts, with control characters in the reasons spelled out; equal reasons are added."""
    # The usual case: nothing to spell out, and no two reasons that become equal.
    if all(reason.isprintable() for reason, _ in rejected):
        return rejected
    counts: dict[str, int] = {}
    for reason, number in rejected:
        name = escape_control(reason)
        _check_count(f"rejected[{name!r}]", number)
        counts[name] = counts.get(name, 0) + number
    return tuple(counts.items())
