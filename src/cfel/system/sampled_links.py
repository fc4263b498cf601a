"""Links of the backhaul that are used only now and then: matchings, their chances, and keyed draws.

A graph is split into matchings, sets of links that share no edge server. At every gossip step each matching
is active with its own chance. The chances are chosen so that the active links connect the graph as well as
possible on average (the largest algebraic connectivity of the expected Laplacian), under a budget: the share
of matchings that are active on average. Weights of a step are those of `mixing` on the active links, so that
every step, and therefore their expectation, averages towards the same target π.
"""

from dataclasses import dataclass, replace

import networkx as nx
import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.seeding import make_generator
from cfel.system.mixing import Backhaul, metropolis_weights

_PASSES = 300
Link = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class SampledLinks:
    """Matchings of a backhaul and how often each is active.

    Attributes:
        matchings: links without a common edge server; together all links.
        chances: of each matching, in [0, 1].
    """

    matchings: tuple[tuple[Link, ...], ...]
    chances: FloatArray

    def draw(self, seed: int, global_round: int, edge_rounds_done: int, step: int) -> tuple[Link, ...]:
        """The active links of one gossip step."""
        index = (global_round, edge_rounds_done, step)
        drawn = make_generator(seed, "links", *index).random(len(self.matchings))
        active = zip(self.matchings, drawn < self.chances, strict=True)
        return tuple(sorted(link for matching, is_active in active if is_active for link in matching))


def sample_links(backhaul: Backhaul, budget: float) -> SampledLinks:
    """Splits a backhaul into matchings and chooses their chances.

    Args:
        backhaul: all links.
        budget: share of matchings that are active on average, in (0, 1].
    """
    validation.check_number("link budget", budget, above=0, most=1)
    matchings = _split_into_matchings(backhaul.edges)
    laplacians = np.array([_laplacian(backhaul.clusters, links) for links in matchings])
    return SampledLinks(matchings, _choose_chances(laplacians, budget))


def use_links(backhaul: Backhaul, links: tuple[Link, ...]) -> Backhaul:
    """The backhaul of a step in which only these links are active; ζ is that of all links."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(backhaul.clusters))
    graph.add_edges_from(links)
    weights = metropolis_weights(graph, backhaul.target)
    return replace(backhaul, graph=graph, weights=validation.make_read_only(weights))


def _split_into_matchings(links: tuple[Link, ...]) -> tuple[tuple[Link, ...], ...]:
    """Colours links one by one with the first colour that is free at both ends."""
    matchings: list[list[Link]] = []
    for link in links:
        free = (each for each in matchings if not any(set(link) & set(other) for other in each))
        found = next(free, None)
        if found is None:
            matchings.append([link])
        else:
            found.append(link)
    return tuple(map(tuple, matchings))


def _laplacian(clusters: int, links: tuple[Link, ...]) -> FloatArray:
    laplacian = np.zeros((clusters, clusters))
    for a, b in links:
        laplacian[[a, b], [a, b]] += 1.0
        laplacian[[a, b], [b, a]] -= 1.0
    return laplacian


def _choose_chances(laplacians: FloatArray, budget: float) -> FloatArray:
    """Maximises λ₂ of the expected Laplacian by projected supergradients; concave, so this converges."""
    if not len(laplacians):
        return np.zeros(0)
    total = budget * len(laplacians)
    chances = best = np.full(len(laplacians), budget)
    largest = -np.inf
    for number in range(1, _PASSES + 1):
        values, vectors = np.linalg.eigh(np.tensordot(chances, laplacians, axes=1))
        if values[1] > largest:
            largest, best = float(values[1]), chances
        slope = np.einsum("i,kij,j->k", vectors[:, 1], laplacians, vectors[:, 1])
        chances = _project(chances + slope / np.sqrt(number), total)
    # Rounded, so that machines whose eigenvectors differ in the last bits draw the same links.
    return np.round(best, 6)


def _project(chances: FloatArray, total: float) -> FloatArray:
    """The nearest point of [0, 1]ⁿ with this sum, by bisection on the shift."""
    low, high = float(chances.min()) - 1.0, float(chances.max())
    for _ in range(60):
        middle = (low + high) / 2
        if np.clip(chances - middle, 0.0, 1.0).sum() > total:
            low = middle
        else:
            high = middle
    return np.clip(chances - high, 0.0, 1.0)
