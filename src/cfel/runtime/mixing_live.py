"""Gossip weights for the edge servers and links that are there in one gossip step."""

from collections.abc import Collection, Mapping

import numpy as np

from cfel.system import Backhaul
from cfel.system.mixing import metropolis_live


def rows_for(backhaul: Backhaul, got: Mapping[int, Collection[int]]) -> list[list[float]]:
    """The mixing matrix, row by row.

    With everybody there it is the experiment's own, to the last bit. A link counts only if both ends have the
    other's model; whoever is not there keeps its own.

    Args:
        backhaul: graph and weights of the experiment.
        got: whose models each edge server that is there has.
    """
    graph = backhaul.graph.copy()
    for a, b in list(graph.edges):
        if a not in got or b not in got or b not in got[a] or a not in got[b]:
            graph.remove_edge(a, b)
    if len(got) == backhaul.clusters and graph.number_of_edges() == backhaul.graph.number_of_edges():
        return [row.tolist() for row in backhaul.weights]
    live = np.array([i in got for i in range(backhaul.clusters)])
    return [row.tolist() for row in metropolis_live(graph, backhaul.target, live)]
