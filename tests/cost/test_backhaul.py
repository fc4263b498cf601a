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
    graph = nx.path_graph(2)
    graph.add_node(2)
    assert backhaul_seconds(graph, 100, 50).tolist() == [2, 2, 0]


def test_slowest_link_counts() -> None:
    """100 bits: link 0-1 at 50 takes 2 s, link 1-2 at 20 takes 5 s."""
    assert backhaul_seconds(nx.path_graph(3), 100, {(1, 0): 50, (1, 2): 20}).tolist() == [2, 5, 5]


def test_bad_rates_are_named() -> None:
    with pytest.raises(InputError, match=r"no rate for .* 1 and 2"):
        backhaul_seconds(nx.path_graph(3), 100, {(0, 1): 50})
    with pytest.raises(InputError, match=r"bits_per_second\[0, 1\] = 0: "):
        backhaul_seconds(nx.path_graph(2), 100, {(0, 1): 0})
    with pytest.raises(InputError, match="bits_per_second = -1"):
        backhaul_seconds(nx.path_graph(2), 100, -1)
    with pytest.raises(InputError, match="model_bits = -1"):
        backhaul_seconds(nx.path_graph(2), -1)
