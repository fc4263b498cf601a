"""A backhaul of one's own: a wheel, that is a ring of edge servers all joined to one in the middle.

    cfel run examples/tiny.toml --set topology.kind=own_topology:wheel --set fleet.clusters=6

A topology is a function of the experiment's `[topology]`, the number of clusters and the seed that returns an
undirected networkx graph over the nodes 0 … clusters − 1, in one piece. Mixing weights, and how fast gossip
brings the models together on it, follow by themselves: `cfel theory` with the same options prints ζ.
"""

import networkx as nx

from cfel.system import TopologyParameters


def wheel(_: TopologyParameters, clusters: int, __: int) -> "nx.Graph[int]":
    """Cluster 0 is the hub; the others form a ring around it."""
    graph: nx.Graph[int] = nx.star_graph(clusters - 1)
    rim = range(1, clusters)
    if len(rim) > 2:
        graph.add_edges_from((i, i + 1) for i in rim[:-1])
        graph.add_edge(rim[-1], rim[0])
    return graph
