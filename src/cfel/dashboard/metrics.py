"""The snapshot in the Prometheus text format, version 0.0.4.

Written by hand: a few gauges and counters from one snapshot need no registry. Devices are counted by state
and averaged by cluster, never listed, because a fleet may have a million of them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from cfel.status import DEVICE_STATES, PHASES, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, str], float | None]
Family = tuple[str, str, str, list[Sample]]


def metrics_text(status: Status) -> str:
    """All metrics that have a value, each with its help and type."""
    return "".join(line for family in list_families(status) for line in _lines(*family))


def list_families(status: Status) -> list[Family]:
    """All metrics as name, type, help and samples, with or without a value."""
    last = next((point for point in reversed(status.history) if point.accuracy is not None), None)
    loss = status.history[-1].loss if status.history else None
    return [
        ("cfel_info", "gauge", "What runs here; always 1.", [(_identity(status), 1)]),
        ("cfel_round", "gauge", "Global round started last.", [({}, status.round)]),
        ("cfel_rounds", "gauge", "Global rounds of the experiment.", [({}, status.rounds)]),
        ("cfel_rounds_finished", "gauge", "Last finished global round.", [({}, _last_finished(status))]),
        ("cfel_edge_round", "gauge", "Current edge round.", [({}, status.edge_round)]),
        ("cfel_phase", "gauge", "1 for the current phase.", _one_hot("phase", PHASES, status.phase)),
        ("cfel_term", "gauge", "Term of the election.", [({}, status.term)]),
        ("cfel_coordinator", "gauge", "1 if this node coordinates.", [({}, _is_coordinator(status))]),
        ("cfel_spent_seconds_total", "counter", "Time spent.", [({}, status.seconds)]),
        ("cfel_budget_seconds", "gauge", "Time budget.", [({}, status.seconds_budget)]),
        ("cfel_spent_joules_total", "counter", "Energy spent.", [({}, status.joules)]),
        ("cfel_budget_joules", "gauge", "Energy budget.", [({}, status.joules_budget)]),
        ("cfel_accuracy_ratio", "gauge", "Accuracy evaluated last.", [({}, last.accuracy if last else None)]),
        (
            "cfel_device_accuracy_ratio",
            "gauge",
            "Accuracy over devices evaluated last, on samples like their own.",
            _device_accuracy(status),
        ),
        ("cfel_loss", "gauge", "Mean training loss of the last round.", [({}, loss)]),
        ("cfel_edge_up", "gauge", "1 if this node sees the edge server alive.", _edges(status)),
        ("cfel_devices", "gauge", "Listed devices, by cluster and state.", _devices(status)),
        ("cfel_cluster_rho_mean", "gauge", "Mean share of local iterations.", _means(status, "rho_mean")),
        ("cfel_cluster_theta_mean", "gauge", "Mean share uploaded.", _means(status, "theta_mean")),
        (
            "cfel_edges_doubled",
            "gauge",
            "Edge servers that seem to run twice.",
            [({}, _edges_doubled(status))],
        ),
        ("cfel_devices_doubled", "gauge", "Devices that seem to run twice.", [({}, _list_doubled(status))]),
        ("cfel_ready", "gauge", "1 if this node takes part; see /readyz.", [({}, _is_ready(status))]),
        (
            "cfel_problem",
            "gauge",
            "1 if something is wrong; see /status.json.",
            [({}, int(bool(status.problem)))],
        ),
        ("cfel_majority", "gauge", "1 if a majority is in touch.", [({}, _as_number(status.majority))]),
        ("cfel_elections_total", "counter", "Elections since the start.", [({}, _elections(status))]),
        ("cfel_round_duration_seconds", "gauge", "Real time of the last round.", [({}, _duration(status))]),
        ("cfel_wire_bytes_total", "counter", "Bytes of uploads and gossip.", [({}, status.wire_bytes)]),
        (
            "cfel_certificate_expiry_timestamp_seconds",
            "gauge",
            "When this node's certificate expires.",
            [({}, status.certificate_expires)],
        ),
        ("cfel_uploads_rejected_total", "counter", "Uploads rejected, by reason.", _rejections(status)),
        (
            "cfel_changed_timestamp_seconds",
            "gauge",
            "When the state last changed.",
            [({}, status.unix_seconds)],
        ),
    ]


def _identity(status: Status) -> dict[str, str]:
    known = {"node": status.node, "experiment": status.name, "scheme": status.scheme, "source": status.source}
    return known | {"version": status.version}


def _edges_doubled(status: Status) -> int | None:
    return None if status.source != "edge" else sum(cluster.doubled for cluster in status.clusters)


def _list_doubled(status: Status) -> int | None:
    if status.source != "edge":
        return None
    return sum(device.doubled for cluster in status.clusters for device in cluster.devices)


def _is_ready(status: Status) -> int | None:
    return None if status.source != "edge" else int(not status.unready)


def _as_number(known: bool | None) -> int | None:
    return None if known is None else int(known)


def _elections(status: Status) -> int | None:
    return None if status.term is None else status.leader_changes


def _duration(status: Status) -> float | None:
    return status.history[-1].wall_seconds if status.history else None


def _last_finished(status: Status) -> int | None:
    return status.history[-1].round if status.history else None


def _is_coordinator(status: Status) -> int | None:
    return None if status.term is None else int(status.coordinator == status.node)


def _one_hot(label: str, names: tuple[str, ...], name: str) -> list[Sample]:
    return [({label: each}, int(each == name)) for each in names]


def _edges(status: Status) -> list[Sample]:
    if status.source != "edge":
        return []
    return [
        ({"cluster": str(each.cluster), "node": each.node}, int(each.state == "alive"))
        for each in status.clusters
    ]


def _devices(status: Status) -> list[Sample]:
    samples: list[Sample] = []
    for cluster in status.clusters:
        found = Counter(device.state for device in cluster.devices)
        samples += [({"cluster": str(cluster.cluster), "state": each}, found[each]) for each in DEVICE_STATES]
    return samples


def _means(status: Status, name: str) -> list[Sample]:
    return [({"cluster": str(each.cluster)}, getattr(each, name)) for each in status.clusters]


def _rejections(status: Status) -> list[Sample]:
    return [({"reason": reason}, number) for reason, number in status.rejected]


def _device_accuracy(status: Status) -> list[Sample]:
    last = next((each for each in reversed(status.history) if each.device_accuracy_mean is not None), None)
    return [
        ({"statistic": name}, None if last is None else getattr(last, f"device_accuracy_{name}"))
        for name in ("mean", "worst", "spread")
    ]


def _lines(name: str, kind: str, words: str, samples: list[Sample]) -> Iterator[str]:
    known = [(labels, value) for labels, value in samples if value is not None]
    if known:
        yield f"# HELP {name} {words}\n# TYPE {name} {kind}\n"
    for labels, value in known:
        inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        yield f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
