"""Seconds of one gossip step: every edge server sends its full model to all its neighbours at once.

This is max over i′ ∈ N_i of T_{i,i′} in the paper's equation (time). Devices are not involved.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.errors import InputError

if TYPE_CHECKING:
    import networkx as nx

PAPER_BITS_PER_SECOND = 50e6
"""Rate of every backhaul link in the paper's evaluation."""


def backhaul_seconds(
    graph: "nx.Graph[int]",
    model_bits: float,
    bits_per_second: float | Mapping[tuple[int, int], float] = PAPER_BITS_PER_SECOND,
) -> FloatArray:
    """Seconds per cluster: the full model over its slowest link; 0 for a cluster without a neighbour.

    Args:
        graph: the backhaul, nodes 0 … m−1.
        model_bits: size of one full model, ≥ 0.
        bits_per_second: one rate for all links, > 0, or one per link, keyed by its two ends in any order.

    Raises:
        InputError: a rate is not positive, or a link has none.
    """
    bits = validation.check_number("model_bits", model_bits, least=0)
    if not isinstance(bits_per_second, Mapping):
        rate = validation.check_number("bits_per_second", bits_per_second, above=0)
        return np.array([bits / rate if graph.degree(node) else 0.0 for node in range(len(graph))])
    seconds = np.zeros(len(graph))
    for ends in graph.edges:
        for node in ends:
            # An edge server sends to all neighbours at the same time, so its slowest link counts.
            seconds[node] = max(seconds[node], bits / _find_rate(bits_per_second, ends))
    return seconds


def _find_rate(rates: Mapping[tuple[int, int], float], ends: tuple[int, int]) -> float:
    # Links have no direction, but a rate may be keyed either way round.
    there, back = ends, (ends[1], ends[0])
    if there not in rates and back not in rates:
        raise InputError(f"bits_per_second: no rate for the link between clusters {ends[0]} and {ends[1]}")
    rate = rates[there] if there in rates else rates[back]
    return validation.check_number(f"bits_per_second[{ends[0]}, {ends[1]}]", rate, above=0)
