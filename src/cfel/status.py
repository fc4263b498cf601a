"""Status: what a node knows of its run at one moment, as a frozen snapshot and as a JSON document.

An edge server builds one from its memory, `cfel watch` from a run directory; the dashboard shows it. Numbers
and names only: it knows no clock, socket, file or page. Texts may come from the network; control characters
in them are spelled out when a snapshot is made, so they are safe to print wherever it is shown.
`docs/reference/status.md` describes every field of the document, in the words of `Attributes` below.
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
        _escape_texts(self)
        check_name("state", self.state, DEVICE_STATES)
        _check_counts(self, "device")
        _check_numbers(self, "rho", "theta", most=1)
        _check_numbers(self, "mu", "nu", "seconds", "joules")


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
        _escape_texts(self)
        check_name("state", self.state, EDGE_STATES)
        _check_counts(self, "cluster", "size")
        _check_numbers(self, "rho_mean", "theta_mean", most=1)
        if len(self.devices) > self.size:
            raise InputError(f"size = {self.size}: cluster {self.cluster} lists {len(self.devices)} devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
    """One link of the backhaul.

    Attributes:
        a, b: the clusters at its ends.
        weight: its mixing weight, or None.
        up: whether the last gossip used it.
    """

    a: int
    b: int
    weight: float | None = None
    up: bool = True

    def __post_init__(self) -> None:
        _check_counts(self, "a", "b")
        _check_numbers(self, "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPoint:
    """One finished global round; a metric that is not finite (a loss that diverged) becomes None.

    Attributes:
        round: its number.
        seconds: time spent when it ended, as realised.
        joules: energy spent when it ended, as realised.
        accuracy: the task's metric; None when it was not evaluated.
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
    """What a node knows of its run at one moment.

    Attributes:
        node: id of the node that reports.
        name, scheme: of the experiment.
        source: "edge" for an edge server, "simulation" for a run directory.
        unix_seconds: when the state last changed, by this node's clock.
        phase: one of `PHASES`.
        round: global round started last; 0 before the first.
        rounds: global rounds of the experiment, or None.
        edge_round: current edge round, from 1; None when it is not known.
        edge_rounds: edge rounds in a global round, or None.
        term: of the election; None without one.
        coordinator: the node with this role; None when it is not known.
        conditions: "model" or "measured": where μ, ν and energy come from.
        seconds: time spent, as realised.
        seconds_budget: time budget, or None for no limit.
        joules: energy spent by all devices, as realised.
        joules_budget: energy budget, or None for no limit.
        metric: name, unit and direction of what history calls accuracy; with the unit %, numbers are shares.
        target: value of the metric to reach, or None.
        straggler: device that the last round waited for.
        slowest_cluster: its cluster.
        clusters: edge servers and their devices.
        links: the backhaul.
        history: finished rounds.
        curves: other runs to compare with.
        rejected: number of uploads rejected since the start, by reason.
        elections: the latest events of the election, oldest first.
        problem: what is wrong; empty when nothing is.
        version: of cfel on this node.
        majority: whether a majority of edge servers is in touch; None where there is no election.
        leader_changes: elections that this node has seen a winner of, since it started.
        wire_bytes: bytes of all uploads and gossip so far.
        certificate_expires: when this node's certificate expires, in Unix seconds, or None.
    """

    node: str
    name: str = ""
    scheme: str = ""
    source: str = "edge"
    unix_seconds: float = 0.0
    phase: str = "waiting"
    round: int = 0
    rounds: int | None = None
    edge_round: int | None = None
    edge_rounds: int | None = None
    term: int | None = None
    coordinator: str | None = None
    conditions: str = "model"
    seconds: float = 0.0
    seconds_budget: float | None = None
    joules: float = 0.0
    joules_budget: float | None = None
    metric: Metric = ACCURACY
    target: float | None = None
    straggler: int | None = None
    slowest_cluster: int | None = None
    clusters: tuple[ClusterStatus, ...] = ()
    links: tuple[LinkStatus, ...] = ()
    history: tuple[RoundPoint, ...] = ()
    curves: tuple[Curve, ...] = ()
    rejected: tuple[tuple[str, int], ...] = ()
    elections: tuple[ElectionEvent, ...] = ()
    problem: str = ""
    version: str = ""
    majority: bool | None = None
    leader_changes: int = 0
    wire_bytes: int = 0
    certificate_expires: float | None = None

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

    @property
    def unready(self) -> str:
        """Why the node takes no part in a federation that can make progress; empty if it does."""
        if self.source != "edge" or self.phase == "finished":
            return ""
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
