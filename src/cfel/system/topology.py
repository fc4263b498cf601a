"""The backhaul: which edge servers are linked. Graphs only; weights are in `mixing`.

Nodes are the clusters 0 … m−1. Every graph that leaves this module is undirected and connected, has all m
nodes and no loop; a single cluster is one node without an edge.

A user-defined topology is a function `(parameters, clusters, seed) -> networkx.Graph`, named as
`module:function` or installed as an entry point of the group `cfel.topology`; it is checked like the others.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import networkx as nx
import numpy as np

from cfel import validation
from cfel.durable import read_bytes
from cfel.errors import FleetFileError, InputError, StorageError, describe_error, unknown_name
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, resolve
from cfel.seeding import make_generator

_MAX_BYTES = 64 * 1024**2

DRAWS = 1000
"""How many random graphs are tried before giving up on a connected one."""

WEIGHTS = ("uniform", "size")
"""What gossip averages towards: the same weight for every cluster, or in proportion to its devices."""


@dataclass(frozen=True, slots=True)
class TopologyParameters:
    """The backhaul graph, as the experiment file's `[topology]` has it.

    Attributes:
        kind: "ring", "line", "star", "grid", "complete", "erdos-renyi", "edges", an entry point's name, or
            "module:function".
        p_edge: probability of each edge, in (0, 1]; "erdos-renyi" only.
        file: edge list, two cluster numbers per line; "edges" only.
        edges: the same as pairs, instead of a file; "edges" only.
        weights: the mean that gossip converges to: "uniform" counts clusters, "size" counts devices.
        joules_per_bit: energy of a bit between edge servers; 0, as in the paper, charges nothing.
    """

    kind: str = "ring"
    p_edge: float = 0.5
    file: str | None = None
    edges: tuple[tuple[int, int], ...] = ()
    weights: str = "uniform"
    joules_per_bit: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str):
            raise InputError(f"topology.kind = {self.kind!r}: must be a name")
        if self.file is not None:
            validation.check_text("topology.file", self.file)
        validation.check_number("topology.p_edge", self.p_edge, above=0, most=1)
        validation.check_number("topology.joules_per_bit", self.joules_per_bit, least=0)
        if self.weights not in WEIGHTS:
            raise InputError(unknown_name("topology.weights", self.weights, WEIGHTS))
        if self.kind == "edges" and (self.file is None) == (not self.edges):
            raise InputError("topology: kind 'edges' needs either `file` or `edges`, one of the two")
        given = enumerate(validation.check_list("topology.edges", self.edges))
        object.__setattr__(self, "edges", tuple(_check_pair(i, edge) for i, edge in given))


Builder = Callable[[TopologyParameters, int, int], "nx.Graph[int]"]


def build_graph(
    parameters: TopologyParameters, clusters: int, seed: int, code: CodePolicy = BUILT_IN_ONLY
) -> "nx.Graph[int]":
    """Builds the backhaul graph over nodes 0 … clusters−1.

    Args:
        parameters: kind and what belongs to it.
        clusters: number of edge servers, at least 1.
        seed: the experiment's seed; only random kinds use it.
        code: whether a kind that is not built in may be loaded.

    Raises:
        InputError: the kind is unknown, or the graph is not connected, or it has an unknown node.
    """
    validation.check_whole("clusters", clusters, least=1)
    takes = ("parameters", "clusters", "seed")
    builder: Builder = resolve("topology", parameters.kind, KINDS, takes, code=code)
    graph = builder(parameters, clusters, seed)
    check_graph(graph, clusters, parameters.kind)
    return graph


def check_graph(graph: "nx.Graph[int]", clusters: int, kind: str) -> None:
    """Raises an `InputError` unless `graph` can be the backhaul of that many clusters."""
    if not isinstance(graph, nx.Graph) or graph.is_directed() or graph.is_multigraph():
        raise InputError(
            f"topology {kind!r}: must give an undirected networkx.Graph, got {type(graph).__name__}"
        )
    strange = [node for node in graph if node not in range(clusters)]
    if strange:
        raise InputError(f"topology {kind!r}: unknown cluster {strange[0]!r} (allowed: 0 to {clusters - 1})")
    absent = [node for node in range(clusters) if node not in graph]
    if absent:
        raise InputError(f"topology {kind!r}: cluster {absent[0]} is missing from the graph")
    loop = next(nx.selfloop_edges(graph), None)
    if loop is not None:
        raise InputError(f"topology {kind!r}: cluster {loop[0]} is linked to itself")
    _check_connected(graph, clusters, kind)


def _check_connected(graph: "nx.Graph[int]", clusters: int, kind: str) -> None:
    reached = nx.node_connected_component(graph, 0)
    if len(reached) < clusters:
        cut_off = next(node for node in range(clusters) if node not in reached)
        raise InputError(
            f"topology {kind!r}: not connected, cluster {cut_off} cannot be reached from cluster 0 "
            f"({nx.number_connected_components(graph)} separate parts)"
        )


def _make_graph(clusters: int, edges: Iterable[tuple[int, int]]) -> "nx.Graph[int]":
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(clusters))
    graph.add_edges_from(edges)
    return graph


def _line(_: TopologyParameters, clusters: int, __: int) -> "nx.Graph[int]":
    return _make_graph(clusters, ((i, i + 1) for i in range(clusters - 1)))


def _ring(parameters: TopologyParameters, clusters: int, seed: int) -> "nx.Graph[int]":
    graph = _line(parameters, clusters, seed)
    if clusters > 2:
        graph.add_edge(clusters - 1, 0)
    return graph


def _star(_: TopologyParameters, clusters: int, __: int) -> "nx.Graph[int]":
    return _make_graph(clusters, ((0, i) for i in range(1, clusters)))


def _grid(_: TopologyParameters, clusters: int, __: int) -> "nx.Graph[int]":
    """As square as can be, filled row by row; the last row may be shorter."""
    columns = math.isqrt(clusters - 1) + 1
    right = [(i, i + 1) for i in range(clusters - 1) if (i + 1) % columns]
    down = [(i, i + columns) for i in range(clusters - columns)]
    return _make_graph(clusters, right + down)


def _complete(_: TopologyParameters, clusters: int, __: int) -> "nx.Graph[int]":
    return _make_graph(clusters, ((i, j) for i in range(clusters) for j in range(i + 1, clusters)))


def _erdos_renyi(parameters: TopologyParameters, clusters: int, seed: int) -> "nx.Graph[int]":
    sources, targets = np.triu_indices(clusters, k=1)
    for draw in range(DRAWS):
        present = make_generator(seed, "topology", draw).random(sources.size) < parameters.p_edge
        graph = _make_graph(clusters, zip(sources[present].tolist(), targets[present].tolist(), strict=True))
        if nx.is_connected(graph):
            return graph
    raise InputError(
        f"topology.p_edge = {parameters.p_edge}: none of {DRAWS} random graphs of {clusters} clusters was "
        "connected; a larger value is needed"
    )


def _edges(parameters: TopologyParameters, clusters: int, _: int) -> "nx.Graph[int]":
    if parameters.file is None:
        return _make_graph(clusters, parameters.edges)
    return _make_graph(clusters, read_edges(parameters.file))


def read_edges(path: str | Path) -> tuple[tuple[int, int], ...]:
    """Reads edges from a text file: two cluster numbers per line, separated by comma or blanks.

    Blank lines and what follows a `#` are skipped; the first line may be a heading.

    Raises:
        FleetFileError: the file cannot be read, or a line is not two whole numbers.
    """
    try:
        # Not just any file: an experiment may be somebody else's, and a pipe would never end.
        content = read_bytes(Path(path), max_bytes=_MAX_BYTES, follow_links=True)
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise FleetFileError(f"{path}: cannot be read: {describe_error(error)}") from error
    except StorageError as error:
        raise FleetFileError(f"topology.file: {error}") from error
    rows = [(place, _split_fields(line)) for place, line in enumerate(lines, start=1) if _split_fields(line)]
    if rows and not any(field.lstrip("-").isdigit() for field in rows[0][1]):
        rows = rows[1:]
    return tuple(_read_edge(path, place, fields) for place, fields in rows)


def _split_fields(line: str) -> list[str]:
    return line.partition("#")[0].replace(",", " ").split()


def _read_edge(path: str | Path, place: int, fields: list[str]) -> tuple[int, int]:
    try:
        source, target = (int(field) for field in fields)
    except ValueError:
        found = " ".join(fields)
        raise FleetFileError(f"{path}, line {place}: {found!r}: must be two cluster numbers") from None
    return source, target


def _check_pair(index: int, edge: object) -> tuple[int, int]:
    if not isinstance(edge, list | tuple) or len(edge) != 2:
        raise InputError(f"topology.edges[{index}] = {edge!r}: must be a pair of cluster numbers")
    source, target = (validation.check_whole(f"topology.edges[{index}]", end, least=0) for end in edge)
    return source, target


KINDS: Mapping[str, Builder] = MappingProxyType(
    {
        "ring": _ring,
        "line": _line,
        "star": _star,
        "grid": _grid,
        "complete": _complete,
        "erdos-renyi": _erdos_renyi,
        "edges": _edges,
    }
)
"""The topologies that come with cfel."""
