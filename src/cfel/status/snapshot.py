"""The snapshot itself, and its JSON document."""

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
)

SCHEMA = 1
"""Raised when a field changes its meaning or goes; a new field does not raise it."""

PHASES = ("waiting", "planning", "training", "aggregating", "gossip", "evaluating", "finished", "stopped")

_Part = TypeVar("_Part", DeviceStatus, ClusterStatus, Link, RoundPoint, Curve, ElectionEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The snapshot.

    Attributes:
        node: id of the node that speaks.
        name: what its owner called the experiment.
        scheme: which scheme decides.
        source: "edge" for an edge server, "simulation" for a run directory.
        unix_seconds: when the state last changed, by this node's clock.
        phase: one of `PHASES`.
        round: last global round that was begun; 0 before the first.
        rounds: global rounds of the experiment, or None.
        edge_round: edge round under way, from 1; None where it is not known.
        edge_rounds: edge rounds in a global round, or None.
        term: of the election; None without one.
        coordinator: node that holds the role; None when nobody is known to.
        conditions: "model" or "measured": where μ, ν and energy come from.
        seconds: time spent.
        seconds_budget: time there is, or None for no limit.
        joules: energy spent by all devices.
        joules_budget: energy there is, or None for no limit.
        target: accuracy to reach, or None.
        straggler: device that the last round waited for.
        slowest_cluster: its cluster.
        clusters: edge servers and their devices.
        links: the backhaul.
        history: finished rounds.
        curves: other runs to compare with.
        refused: uploads refused since the start, by reason.
        elections: what happened to the role, oldest first; the latest are enough.
        problem: what is wrong, in words; empty when nothing is.
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
    refused: tuple[tuple[str, int], ...] = ()
    elections: tuple[ElectionEvent, ...] = ()
    problem: str = ""

    def __post_init__(self) -> None:
        """Checks names and numbers; parts have checked themselves."""
        check_name("source", self.source, ("edge", "simulation"))
        check_name("phase", self.phase, PHASES)
        check_name("conditions", self.conditions, ("model", "measured"))
        check_count("round", self.round)
        for name in ("rounds", "edge_round", "edge_rounds", "term", "straggler", "slowest_cluster"):
            check_count(name, getattr(self, name), optional=True)
        for name in ("unix_seconds", "seconds", "joules"):
            check_number(name, getattr(self, name), optional=False)
        for name in ("seconds_budget", "joules_budget", "target"):
            check_number(name, getattr(self, name))
        for reason, number in self.refused:
            check_count(f"refused[{reason!r}]", number)

    def to_json(self) -> bytes:
        """The document, with `schema` in front; strict JSON on one line."""
        document = {"schema": SCHEMA, **_plain(self), "refused": dict(self.refused)}
        return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Status":
        """The snapshot `to_json` wrote; fields of a later version are passed over.

        Raises:
            InputError: the text is no such document.
        """
        try:
            document = json.loads(text)
            if document["schema"] != SCHEMA:
                raise InputError(f"schema: {document['schema']!r}, but this cfel reads {SCHEMA}")
            return cls(**_arguments(cls, document) | _parts(document))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"not a status document: {error}") from error


def thin_history(history: tuple[RoundPoint, ...], most: int) -> tuple[RoundPoint, ...]:
    """At most `most` rounds, evenly chosen, the newest always among them."""
    if len(history) <= most:
        return history
    step = -(-len(history) // most)
    return history[(len(history) - 1) % step :: step]


def _plain(part: Any) -> Any:  # noqa: ANN401 — any part of the snapshot
    if isinstance(part, tuple):
        return [_plain(each) for each in part]
    if hasattr(part, "__dataclass_fields__"):
        return {field.name: _plain(getattr(part, field.name)) for field in fields(part)}
    return part


def _parts(document: Mapping[str, Any]) -> dict[str, Any]:
    clusters = [
        {**each, "devices": _each(DeviceStatus, each.get("devices", ()))} for each in document["clusters"]
    ]
    curves = [{**each, "history": _each(RoundPoint, each.get("history", ()))} for each in document["curves"]]
    return {
        "clusters": _each(ClusterStatus, clusters),
        "links": _each(Link, document["links"]),
        "history": _each(RoundPoint, document["history"]),
        "curves": _each(Curve, curves),
        "elections": _each(ElectionEvent, document["elections"]),
        "refused": tuple((str(reason), number) for reason, number in document["refused"].items()),
    }


def _each(kind: type[_Part], documents: Any) -> tuple[_Part, ...]:  # noqa: ANN401 — parsed JSON
    return tuple(kind(**_arguments(kind, document)) for document in documents)


def _arguments(kind: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: document[field.name] for field in fields(kind) if field.name in document}
