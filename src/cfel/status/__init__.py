"""Status: what a node knows of its run at one moment, as a frozen snapshot and as a JSON document.

An edge server builds one from its memory, `cfel watch` from a run directory; the dashboard shows it. Numbers
and names only: it knows no clock, socket, file or page. Texts may come from the network; control characters
in them are spelled out when a snapshot is made.
`docs/guides/dashboard.md` describes every field of the document.
"""

from cfel.status.parts import (
    DEVICE_STATES,
    EDGE_STATES,
    ELECTION_KINDS,
    ClusterStatus,
    Curve,
    DeviceStatus,
    ElectionEvent,
    Link,
    RoundPoint,
)
from cfel.status.snapshot import PHASES, SCHEMA, Status, thin_history

__all__ = [
    "DEVICE_STATES",
    "EDGE_STATES",
    "ELECTION_KINDS",
    "PHASES",
    "SCHEMA",
    "ClusterStatus",
    "Curve",
    "DeviceStatus",
    "ElectionEvent",
    "Link",
    "RoundPoint",
    "Status",
    "thin_history",
]
