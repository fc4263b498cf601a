"""Seconds of a gossip step."""

import networkx as nx
import pytest

from cfel.cost import backhaul_seconds
from cfel.errors import InputError


def test_full_model_on_all_links_at_once() -> None:
    """ResNet-20: 32·269,722 bits at 50 Mb/s = 0.17262208 s, whatever the number of neighbours."""
    seconds = backhaul_seconds(nx.star_graph(3), 32 * 269_722)
    assert seconds == pytest.approx([0.17262208] * 4)


def test_cluster_without_a_neighbour_does_not_wait() -> None:
    """100 million bits at 50 Mb/s."""
    graph = nx.path_graph(2)
    graph.add_node(2)
    assert backhaul_seconds(graph, 1e8).tolist() == [2, 2, 0]


def test_a_bad_size_is_named() -> None:
    with pytest.raises(InputError, match="model_bits = -1"):
        backhaul_seconds(nx.path_graph(2), -1)
