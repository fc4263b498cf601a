"""Gossip weights when edge servers or links are missing in a gossip step."""

from collections.abc import Collection, Mapping

import numpy as np

from cfel.deployment.protocol.coordinator_requests import MixingRows
from cfel.system import Backhaul
from cfel.system.mixing import live_metropolis_weights


def mixing_rows(
    backhaul: Backhaul, got: Mapping[int, Collection[int]], *, at_once: bool = False
) -> MixingRows:
    """The mixing matrix, row by row.

    With nothing missing it is the experiment's, to the last bit. A link counts only if both ends have the
    other's model; an edge server that is missing keeps its own.

    Args:
        backhaul: graph and weights of the experiment.
        got: whose models each edge server has; without those that are missing.
        at_once: all average over all, whatever the links.
    """
    if at_once:
        return _rows_at_once(backhaul, got)
    graph = backhaul.graph.copy()
    for a, b in list(graph.edges):
        if a not in got or b not in got or b not in got[a] or a not in got[b]:
            graph.remove_edge(a, b)
    if len(got) == backhaul.clusters and graph.number_of_edges() == backhaul.graph.number_of_edges():
        return tuple(tuple(row.tolist()) for row in backhaul.weights)
    live = np.array([i in got for i in range(backhaul.clusters)])
    return tuple(tuple(row.tolist()) for row in live_metropolis_weights(graph, backhaul.target, live))


def _rows_at_once(backhaul: Backhaul, got: Mapping[int, Collection[int]]) -> MixingRows:
    """Those that have all models share the mean; the others keep their own."""
    live = [i for i in got if all(j in got[i] for j in got if j != i)]
    if len(live) == backhaul.clusters:
        return tuple(tuple(row.tolist()) for row in backhaul.weights)
    rows = np.eye(backhaul.clusters)
    for i in live:
        rows[i] = 0.0
        rows[i, live] = backhaul.target[live] / backhaul.target[live].sum()
    return tuple(tuple(row.tolist()) for row in rows)
