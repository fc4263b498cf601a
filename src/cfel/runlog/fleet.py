"""FleetDescription: what a report needs to know about the fleet, as `fleet.json`.

A description for readers, not the fleet itself: conditions, classes and traces stay in `system`.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from cfel.errors import InputError
from cfel.runlog.json_text import parse_json

_TOLERANCE = 1e-6
"""How far rounding may take a mixing weight out of [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDescription:
    """Clusters, backhaul and budgets of one run.

    Attributes:
        cluster: cluster of each device, by device number.
        edges: links of the backhaul between edge servers, each once, as pairs of cluster numbers.
        mixing: the mixing matrix W, one row per cluster; rows sum to 1.
        seconds_budget: time budget, or None for no limit.
        joules_budget: energy budget of all devices together, or None for no limit.
    """

    cluster: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    mixing: tuple[tuple[float, ...], ...]
    seconds_budget: float | None = None
    joules_budget: float | None = None

    def __post_init__(self) -> None:
        """Converts arrays and lists to tuples of plain numbers and checks that they are consistent."""
        object.__setattr__(self, "cluster", tuple(int(number) for number in self.cluster))
        object.__setattr__(self, "edges", tuple((int(a), int(b)) for a, b in self.edges))
        object.__setattr__(self, "mixing", tuple(tuple(float(w) for w in row) for row in self.mixing))
        _check_clusters(self.cluster, self.edges, self.mixing)
        for name in ("seconds_budget", "joules_budget"):
            object.__setattr__(self, name, _check_budget(name, getattr(self, name)))

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return len(self.mixing)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.cluster)

    def to_json(self) -> str:
        """The document of `fleet.json`."""
        document = {
            "clusters": self.clusters,
            "devices": self.devices,
            "cluster": self.cluster,
            "edges": self.edges,
            "mixing": self.mixing,
            "seconds_budget": self.seconds_budget,
            "joules_budget": self.joules_budget,
        }
        return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "FleetDescription":
        """Reads what `to_json` wrote.

        Raises:
            Exception: of many kinds, if the text is no such document; see `translate_parse_errors`.
        """
        document: dict[str, Any] = parse_json(text)
        names = ("cluster", "edges", "mixing", "seconds_budget", "joules_budget")
        return cls(**{name: document[name] for name in names})


def _check_clusters(
    cluster: tuple[int, ...], edges: tuple[tuple[int, int], ...], mixing: tuple[tuple[float, ...], ...]
) -> None:
    count = len(mixing)
    for index, row in enumerate(mixing):
        if len(row) != count:
            raise InputError(f"mixing[{index}]: {len(row)} weights, but there are {count} clusters")
        if not all(-_TOLERANCE <= weight <= 1 + _TOLERANCE for weight in row):
            raise InputError(f"mixing[{index}]: has a weight outside of 0 to 1")
    for index, number in enumerate(cluster):
        if not 0 <= number < count:
            raise InputError(f"cluster[{index}]: {number} is not one of the {count} clusters")
    for index, edge in enumerate(edges):
        if not all(0 <= end < count for end in edge):
            raise InputError(f"edges[{index}]: {edge} does not join two of the {count} clusters")


def _check_budget(name: str, value: float | None) -> float | None:
    if value is None or value == math.inf:
        return None
    if isinstance(value, bool) or not value > 0:
        raise InputError(f"{name}: {value!r} is not a number > 0 (None is no limit)")
    return float(value)
