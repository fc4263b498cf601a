"""A user-defined backhaul: a wheel, that is, a ring of edge servers that are all connected to a hub.

    cfel run examples/tiny.toml --set topology.kind=custom_topology:wheel --set fleet.clusters=6

A topology is a function of the experiment's `[topology]` section, the number of clusters and the seed. It
returns a connected, undirected networkx graph over the nodes 0 … clusters − 1. cfel computes the mixing
weights from it; `cfel theory` with the same options prints ζ, which says how fast gossip converges.
"""

import networkx as nx

from cfel.system.backhaul import TopologyParameters


def wheel(_: TopologyParameters, clusters: int, __: int) -> "nx.Graph[int]":
    """Connects the clusters: 0 is the hub, the others form a ring around it."""
    graph: nx.Graph[int] = nx.star_graph(clusters - 1)
    rim = range(1, clusters)
    if len(rim) > 2:
        graph.add_edges_from((i, i + 1) for i in rim[:-1])
        graph.add_edge(rim[-1], rim[0])
    return graph
