"""The snapshot and its JSON document; its parts are in `parts`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from cfel.errors import InputError
from cfel.status.parts import (
    ClusterStatus,
    Curve,
    DeviceStatus,
    ElectionEvent,
    Link,
    RoundPoint,
    check_count,
    check_name,
    check_number,
    escape_texts,
)
from cfel.wording import escape_control

SCHEMA = 2
"""Increased when a field changes its meaning or is removed; new fields do not change it."""

PHASES = ("waiting", "planning", "training", "aggregating", "gossip", "evaluating", "finished", "stopped")

_Part = TypeVar("_Part", DeviceStatus, ClusterStatus, Link, RoundPoint, Curve, ElectionEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a node knows of its run at one moment.

    Attributes:
        node: id of the node that reports.
        name: of the experiment.
        scheme: of the experiment.
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
        seconds: time spent.
        seconds_budget: time budget, or None for no limit.
        joules: energy spent by all devices.
        joules_budget: energy budget, or None for no limit.
        target: accuracy to reach, or None.
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
    target: float | None = None
    straggler: int | None = None
    slowest_cluster: int | None = None
    clusters: tuple[ClusterStatus, ...] = ()
    links: tuple[Link, ...] = ()
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
        """Checks names and numbers; the parts check themselves."""
        escape_texts(self)
        object.__setattr__(self, "rejected", _sum_reasons(self.rejected))
        check_name("source", self.source, ("edge", "simulation"))
        check_name("phase", self.phase, PHASES)
        check_name("conditions", self.conditions, ("model", "measured"))
        check_count("round", self.round)
        for name in ("rounds", "edge_round", "edge_rounds", "term", "straggler", "slowest_cluster"):
            check_count(name, getattr(self, name), optional=True)
        for name in ("unix_seconds", "seconds", "joules"):
            check_number(name, getattr(self, name), optional=False)
        for name in ("leader_changes", "wire_bytes"):
            check_count(name, getattr(self, name))
        for name in ("seconds_budget", "joules_budget", "target", "certificate_expires"):
            check_number(name, getattr(self, name))
        for reason, number in self.rejected:
            check_count(f"rejected[{reason!r}]", number)

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
        document = {"schema": SCHEMA, **_to_plain(self), "rejected": dict(self.rejected)}
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
                raise InputError(f"schema: {document['schema']!r}, but this cfel reads {SCHEMA}")
            return cls(**_arguments(cls, document) | _read_parts(document))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
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
        check_count(f"rejected[{name!r}]", number)
        counts[name] = counts.get(name, 0) + number
    return tuple(counts.items())


def _to_plain(part: Any) -> Any:  # noqa: ANN401 — any part of the snapshot
    if isinstance(part, tuple):
        return [_to_plain(each) for each in part]
    if hasattr(part, "__dataclass_fields__"):
        return {field.name: _to_plain(getattr(part, field.name)) for field in fields(part)}
    return part


def _read_parts(document: Mapping[str, Any]) -> dict[str, Any]:
    clusters = [
        {**each, "devices": _read_each(DeviceStatus, each.get("devices", ()))}
        for each in document["clusters"]
    ]
    curves = [
        {**each, "history": _read_each(RoundPoint, each.get("history", ()))} for each in document["curves"]
    ]
    return {
        "clusters": _read_each(ClusterStatus, clusters),
        "links": _read_each(Link, document["links"]),
        "history": _read_each(RoundPoint, document["history"]),
        "curves": _read_each(Curve, curves),
        "elections": _read_each(ElectionEvent, document["elections"]),
        # JSON has an object here, for readers; a frozen snapshot needs pairs.
        "rejected": tuple((str(reason), number) for reason, number in document["rejected"].items()),
    }


def _read_each(kind: type[_Part], documents: Any) -> tuple[_Part, ...]:  # noqa: ANN401 — parsed JSON
    return tuple(kind(**_arguments(kind, document)) for document in documents)


def _arguments(kind: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: document[field.name] for field in fields(kind) if field.name in document}
