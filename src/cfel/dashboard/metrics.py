"""The snapshot in the Prometheus text format, version 0.0.4.

Written by hand: a few gauges and counters from one snapshot need no registry. Devices are counted by state
and averaged by cluster, never listed, because a fleet may have a million of them. Every label has few values,
whatever others send: each new one is a series that the monitoring system keeps for weeks.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from cfel.status import DEVICE_STATES, PHASES, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST_CLUSTERS = 100
"""Clusters with series of their own; the devices of all others are counted together."""

_OTHERS = "others"

_KINDS = (
    ("too much at once", ("calls a second", "calls at a time", "bytes in flight")),
    ("implausible report", ("implausible", "implausibly", "not plausible", "more seconds than have passed")),
    ("quarantine", ("in quarantine", "left out after")),
    ("not admitted", ("certificate", "not for a ", "belongs to another", "is not a node")),
    ("wrong round", ("of round", "asked of device", "too late", "not needed any more", "stale term")),
    ("numbers out of bounds", ("finite", "beyond the bound", "variance")),
)
"""Kinds of rejections, by what their reasons contain, which quote what came in and so are without end."""

Sample = tuple[Mapping[str, str], float | None]
Family = tuple[str, str, str, list[Sample]]
Metrics = list[tuple[str, str, float | list[Sample] | None]]


def metrics_text(status: Status) -> str:
    """All metrics that have a value, each with its help and type."""
    return "".join(line for family in list_families(status) for line in _lines(*family))


def list_families(status: Status) -> list[Family]:
    """All metrics as name, type, help and samples, with or without a value."""
    return [
        (
            name,
            # By Prometheus' convention for names.
            "counter" if name.endswith("_total") else "gauge",
            words,
            value if isinstance(value, list) else [({}, value)],
        )
        for name, words, value in (*_list_progress(status), *_list_fleet(status), *_list_node(status))
    ]


def _list_progress(status: Status) -> Metrics:
    last = status.history[-1] if status.history else None
    evaluated = next((point for point in reversed(status.history) if point.accuracy is not None), None)
    labels = {"node": status.node, "experiment": status.name, "scheme": status.scheme}
    labels |= {"source": status.source, "version": status.version}
    return [
        ("cfel_info", "What runs here; always 1.", [(labels, 1)]),
        ("cfel_round", "Global round started last.", status.round),
        ("cfel_rounds", "Global rounds of the experiment.", status.rounds),
        ("cfel_rounds_finished", "Last finished global round.", last.round if last else None),
        ("cfel_edge_round", "Current edge round.", status.edge_round),
        ("cfel_phase", "1 for the current phase.", [({"phase": p}, p == status.phase) for p in PHASES]),
        ("cfel_term", "Term of the election.", status.term),
        (
            "cfel_coordinator",
            "1 if this node coordinates.",
            None if status.term is None else status.coordinator == status.node,
        ),
        ("cfel_spent_seconds_total", "Time spent, as realised.", status.seconds),
        ("cfel_budget_seconds", "Time budget.", status.seconds_budget),
        ("cfel_spent_joules_total", "Energy spent, as realised.", status.joules),
        ("cfel_budget_joules", "Energy budget.", status.joules_budget),
        (
            "cfel_quality",
            "The task's metric, evaluated last; with the unit %, a share.",
            [(_describe_metric(status), evaluated.accuracy if evaluated else None)],
        ),
        (
            "cfel_device_quality",
            "The task's metric over devices, evaluated last, on samples like their own.",
            _list_device_accuracy(status),
        ),
        ("cfel_loss", "Mean training loss of the last round.", last.loss if last else None),
    ]


def _list_fleet(status: Status) -> Metrics:
    in_federation = status.source == "edge"
    devices = [device for cluster in status.clusters for device in cluster.devices]
    return [
        ("cfel_edge_up", "1 if this node sees the edge server alive.", _list_edges(status)),
        ("cfel_devices", "Listed devices, by cluster and state.", _count_devices(status)),
        ("cfel_cluster_rho_mean", "Mean share of local iterations.", _list_means(status, "rho_mean")),
        ("cfel_cluster_theta_mean", "Mean share uploaded.", _list_means(status, "theta_mean")),
        (
            "cfel_edges_doubled",
            "Edge servers that seem to run twice.",
            sum(cluster.doubled for cluster in status.clusters) if in_federation else None,
        ),
        (
            "cfel_devices_doubled",
            "Devices that seem to run twice.",
            sum(device.doubled for device in devices) if in_federation else None,
        ),
    ]


def _list_node(status: Status) -> Metrics:
    last = status.history[-1] if status.history else None
    elections = None if status.term is None else status.leader_changes
    ready = not status.unready if status.source == "edge" else None
    return [
        ("cfel_ready", "1 if this node takes part; see /readyz.", ready),
        ("cfel_problem", "1 if something is wrong; see /status.json.", bool(status.problem)),
        ("cfel_majority", "1 if a majority is in touch.", status.majority),
        ("cfel_elections_total", "Elections since the start.", elections),
        ("cfel_round_duration_seconds", "Real time of the last round.", last.wall_seconds if last else None),
        ("cfel_wire_bytes_total", "Bytes of uploads and gossip.", status.wire_bytes),
        (
            "cfel_certificate_expiry_timestamp_seconds",
            "When this node's certificate expires.",
            status.certificate_expires,
        ),
        (
            "cfel_uploads_rejected_total",
            "Uploads rejected, by kind of reason; the reasons are in /status.json.",
            _count_rejections(status),
        ),
        ("cfel_changed_timestamp_seconds", "When the state last changed.", status.unix_seconds),
    ]


def _describe_metric(status: Status) -> dict[str, str]:
    return {"metric": status.metric.name, "unit": status.metric.unit}


def _list_device_accuracy(status: Status) -> list[Sample]:
    last = next((each for each in reversed(status.history) if each.device_accuracy_mean is not None), None)
    return [
        (
            {**_describe_metric(status), "statistic": name},
            None if last is None else getattr(last, f"device_accuracy_{name}"),
        )
        for name in ("mean", "worst", "spread")
    ]


def _count_rejections(status: Status) -> list[Sample]:
    counts: Counter[str] = Counter()
    for reason, number in status.rejected:
        kinds = (kind for kind, parts in _KINDS if any(part in reason for part in parts))
        counts[next(kinds, "invalid message")] += number
    return [({"reason": kind}, number) for kind, number in sorted(counts.items())]


def _list_edges(status: Status) -> list[Sample]:
    if status.source != "edge":
        return []
    return [
        ({"cluster": str(each.cluster), "node": each.node}, each.state == "alive")
        for each in status.clusters[:MOST_CLUSTERS]
    ]


def _count_devices(status: Status) -> list[Sample]:
    counts: dict[str, Counter[str]] = {}
    for place, cluster in enumerate(status.clusters):
        name = str(cluster.cluster) if place < MOST_CLUSTERS else _OTHERS
        counts.setdefault(name, Counter()).update(device.state for device in cluster.devices)
    return [
        ({"cluster": name, "state": each}, found[each])
        for name, found in counts.items()
        for each in DEVICE_STATES
    ]


def _list_means(status: Status, name: str) -> list[Sample]:
    return [({"cluster": str(each.cluster)}, getattr(each, name)) for each in status.clusters[:MOST_CLUSTERS]]


def _lines(name: str, kind: str, words: str, samples: list[Sample]) -> Iterator[str]:
    known = [(labels, value) for labels, value in samples if value is not None]
    if known:
        yield f"# HELP {name} {words}\n# TYPE {name} {kind}\n"
    for labels, value in known:
        inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        # A truth value is 0 or 1.
        yield f"{name}{f'{{{inside}}}' if inside else ''} {+value!r}\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
