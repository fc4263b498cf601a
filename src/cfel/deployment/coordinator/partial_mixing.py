"""Gossip weights for one step, from which edge servers have whose models; some may be missing.

The formulas are in `system.mixing`. Models are fetched and averaged in `edge.gossip`.
"""

from collections.abc import Collection, Mapping

import numpy as np

from cfel.deployment.protocol.coordinator_requests import MixingRows
from cfel.system import Backhaul
from cfel.system.backhaul import live_metropolis_weights


def mixing_rows(
    backhaul: Backhaul, received: Mapping[int, Collection[int]], *, at_once: bool = False
) -> MixingRows:
    """The mixing matrix, row by row.

    With nothing missing it is the experiment's, to the last bit. A link counts only if both ends have the
    other's model; an edge server that is missing keeps its own.

    Args:
        backhaul: graph and weights of the experiment.
        received: whose models each edge server has; without those that are missing.
        at_once: all average over all, whatever the links.
    """
    if at_once:
        return _rows_at_once(backhaul, received)
    graph = backhaul.graph.copy()
    for a, b in list(graph.edges):
        # One way is not enough: the weights are symmetric in what they assume about both ends.
        if a not in received or b not in received or b not in received[a] or a not in received[b]:
            graph.remove_edge(a, b)
    # The stored matrix, not a computed one, so that a complete step equals the simulator's bit for bit.
    if len(received) == backhaul.clusters and graph.number_of_edges() == backhaul.graph.number_of_edges():
        return tuple(tuple(row.tolist()) for row in backhaul.weights)
    live = np.array([i in received for i in range(backhaul.clusters)])
    return tuple(tuple(row.tolist()) for row in live_metropolis_weights(graph, backhaul.target, live))


def _rows_at_once(backhaul: Backhaul, received: Mapping[int, Collection[int]]) -> MixingRows:
    """A group whose members have each other's models shares their mean; the others keep their own."""
    live = _find_group(received)
    if len(live) == backhaul.clusters:
        return tuple(tuple(row.tolist()) for row in backhaul.weights)
    rows = np.eye(backhaul.clusters)
    for i in live:
        rows[i] = 0.0
        rows[i, live] = backhaul.target[live] / backhaul.target[live].sum()
    return tuple(tuple(row.tolist()) for row in rows)


def _find_group(received: Mapping[int, Collection[int]]) -> list[int]:
    """Leaves out, one by one, the edge server with the most links where a model is missing.

    So one whose model nobody accepts is left out, and not those that reject it. Of two that lack only each
    other's models the one that lacks more goes.
    """
    group = list(received)

    def lacks(i: int, j: int) -> bool:
        return i != j and j not in received[i]

    def count_missing(i: int) -> tuple[int, int, int]:
        either = sum(lacks(i, j) or lacks(j, i) for j in group)
        return either, sum(lacks(i, j) for j in group), i

    while group and count_missing(worst := max(group, key=count_missing))[0]:
        group.remove(worst)
    return sorted(group)
