"""The backhaul: which edge servers are linked, with what weights they gossip, and which links they use when.

Nodes are the clusters 0 … m−1. Every graph that leaves this module is undirected and connected, has all m
nodes and no loop; a single cluster is one node without an edge.

Edge server i replaces its model y_i by Σ_j W_ij y_j, so rows of W sum to 1; the paper's H is Wᵀ. π is the
stationary distribution, πW = π: repeated gossip brings every edge server to Σ_j π_j y_j. ζ says how fast.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, get_args

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray
from cfel.durable import read_bytes
from cfel.errors import FleetFileError, InputError, StorageError, describe_error, unknown_name
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, resolve
from cfel.seeding import make_generator
from cfel.system.value_bits import FLOAT_BITS, check_bits
from cfel.validation import Range, check_fields

_MAX_BYTES = 64 * 1024**2

DRAWS = 1000
"""How many random graphs are tried before giving up on a connected one."""

Weights = Literal["uniform", "size"]
"""What gossip averages towards: the same weight for every cluster, or in proportion to its devices."""


JOULES_PER_BIT: Mapping[str, float] = MappingProxyType({"wired": 1.35e-8, "radio": 6.3e-8})
"""Averages of the networks of the EU in 2020: 0.03 kWh/GB over fixed lines, 0.14 kWh/GB over mobile radio.

From the European Commission's ICT impact study of 2020, as quoted at methodology.scope3.com/data_transfer;
1 kWh/GB is 4.5e-7 J/bit. docs/guides/backhauls.md compares other figures.
"""


@dataclass(frozen=True, slots=True)
class TopologyParameters:
    """The backhaul graph, as the experiment file's `[topology]` has it."""

    # "ring", "line", "star", "grid", "complete", "erdos-renyi", "edges", an entry point's name, or
    # "module:function".
    kind: str = "ring"
    # Probability of each edge, in (0, 1]; "erdos-renyi" only.
    p_edge: Annotated[float, Range(above=0, most=1)] = 0.5
    file: str | None = None  # edge list, two cluster numbers per line; "edges" only
    edges: tuple[tuple[int, int], ...] = ()  # the same as pairs, instead of a file; "edges" only
    # The mean that gossip converges to: "uniform" counts clusters, "size" counts devices.
    weights: Weights = "uniform"
    # Energy of a bit over a link between edge servers: a number, or "wired" (1.35e-8) or "radio" (6.3e-8) for
    # published averages; 0, as in the paper, charges nothing.
    joules_per_bit: float | str = 0.0
    # Share of a model's entries that edge servers send in a gossip step, as differences from what their
    # neighbours know, in (0, 1]; 1 with 32 bits for whole models.
    theta: Annotated[float, Range(above=0, most=1)] = 1.0
    bits: int = FLOAT_BITS  # per value of a difference: 4, 8, 16 or 32
    # How far a model moves in a gossip step of differences, in [0, 1]; 0 chooses 2θ, or θ with 4 bits.
    step_size: Annotated[float, Range(least=0, most=1)] = 0.0

    def __post_init__(self) -> None:
        check_bits("topology.bits", self.bits)
        check_fields("topology", self)
        if not isinstance(self.joules_per_bit, str):
            validation.check_number("topology.joules_per_bit", self.joules_per_bit, least=0)
        elif self.joules_per_bit not in JOULES_PER_BIT:
            known = (*JOULES_PER_BIT, "a number")
            raise InputError(unknown_name("topology.joules_per_bit", self.joules_per_bit, known))
        if self.step_size and not self.sends_differences:
            raise InputError(
                f"topology.step_size = {self.step_size}: whole models are averaged by the weights; it is for "
                "differences, with topology.theta below 1 or topology.bits below 32"
            )
        if self.kind == "edges" and (self.file is None) == (not self.edges):
            raise InputError("topology: kind 'edges' needs either `file` or `edges`, one of the two")
        given = enumerate(validation.check_list("topology.edges", self.edges))
        object.__setattr__(self, "edges", tuple(_check_pair(i, edge) for i, edge in given))

    @property
    def sends_differences(self) -> bool:
        """Whether edge servers send compressed differences instead of whole models."""
        return self.theta < 1 or self.bits < FLOAT_BITS

    @property
    def price_of_bit(self) -> float:
        """Joules of a bit, where a name stands for a published average."""
        price = self.joules_per_bit
        return JOULES_PER_BIT[price] if isinstance(price, str) else price


Builder = Callable[[TopologyParameters, int, int], "nx.Graph[int]"]
"""A topology: from parameters, clusters and seed to a graph.

Built in, an entry point of the group `cfel.topology`, or named as `module:function`; all are checked alike.
"""


def build_graph(
    parameters: TopologyParameters, clusters: int, seed: int, code: CodePolicy = BUILT_IN_ONLY
) -> "nx.Graph[int]":
    """Builds the backhaul graph over nodes 0 … clusters−1; only random kinds use the seed."""
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


def _ring(_: TopologyParameters, clusters: int, __: int) -> "nx.Graph[int]":
    return _make_graph(clusters, (nx.cycle_graph if clusters > 2 else nx.path_graph)(clusters).edges)


def _grid(_: TopologyParameters, clusters: int, __: int) -> "nx.Graph[int]":
    """As square as can be, filled row by row; the last row may be shorter."""
    columns = math.isqrt(clusters - 1) + 1
    right = [(i, i + 1) for i in range(clusters - 1) if (i + 1) % columns]
    down = [(i, i + columns) for i in range(clusters - columns)]
    return _make_graph(clusters, right + down)


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
    """
    try:
        # Not just any file: an experiment may be somebody else's, and a pipe would never end.
        content = read_bytes(Path(path), max_bytes=_MAX_BYTES, follow_links=True)
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise FleetFileError(f"{path}: cannot be read: {describe_error(error)}") from error
    except StorageError as error:
        raise FleetFileError(f"topology.file: {error}") from error
    split = ((place, line.partition("#")[0].replace(",", " ").split()) for place, line in enumerate(lines, 1))
    rows = [(place, fields) for place, fields in split if fields]
    if rows and not any(field.lstrip("-").isdigit() for field in rows[0][1]):
        rows = rows[1:]
    return tuple(_read_edge(path, place, fields) for place, fields in rows)


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
        "line": lambda _, clusters, __: nx.path_graph(clusters),
        "star": lambda _, clusters, __: nx.star_graph(clusters - 1),
        "grid": _grid,
        "complete": lambda _, clusters, __: nx.complete_graph(clusters),
        "erdos-renyi": _erdos_renyi,
        "edges": _edges,
    }
)
"""The topologies that come with cfel."""


TOLERANCE = 1e-9
"""How far sums of rows and πW − π may be from exact."""


@dataclass(frozen=True, slots=True, eq=False)
class Backhaul:
    """The network between edge servers, ready for gossip."""

    graph: "nx.Graph[int]"  # which edge servers are linked, nodes 0 … m−1
    weights: FloatArray  # W, one row per edge server
    target: FloatArray  # π, what repeated gossip averages towards
    zeta: float  # ζ, the share of disagreement that survives one gossip step, in [0, 1)

    @property
    def clusters(self) -> int:
        """Number of edge servers, those that have left included."""
        return self.target.size

    @property
    def members(self) -> list[int]:
        """The edge servers that belong to the fleet; the others are linked to nobody, and weigh nothing."""
        found: list[int] = np.flatnonzero(self.target).tolist()
        return found

    def place(self, numbers: Sequence[int], clusters: int) -> "Backhaul":
        """The same between the edge servers of these numbers, of so many; the others keep their model."""
        if clusters == len(numbers):
            return self
        graph = _make_graph(clusters, ((numbers[a], numbers[b]) for a, b in self.graph.edges))
        weights, target = np.eye(clusters), np.zeros(clusters)
        weights[np.ix_(numbers, numbers)], target[list(numbers)] = self.weights, self.target
        return Backhaul(
            graph, validation.make_read_only(weights), validation.make_read_only(target), self.zeta
        )

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Links as (smaller, larger) pairs, in order."""
        return tuple(sorted((min(edge), max(edge)) for edge in self.graph.edges))


def build_backhaul(
    parameters: TopologyParameters,
    sizes: ArrayLike,
    seed: int,
    code: CodePolicy = BUILT_IN_ONLY,
    numbers: Sequence[int] | None = None,
) -> Backhaul:
    """Builds graph, weights, target and ζ of one experiment, given the devices per cluster.

    Where only some edge servers belong to the fleet, `numbers` are theirs, in the order of `sizes`. Links
    that are listed one by one stay those between them; every other kind of graph is built for so many.
    """
    if numbers is not None:
        parameters = _keep_links(parameters, numbers)
        # One that has just joined has no devices yet, but must hear of the others' models.
        sizes = np.maximum(sizes, 1)
    target = target_weights(parameters.weights, sizes)
    graph = build_graph(parameters, target.size, seed, code)
    weights = metropolis_weights(graph, target)
    check_mixing(weights, target, graph)
    return Backhaul(graph, validation.make_read_only(weights), target, zeta(weights, target))


def _keep_links(parameters: TopologyParameters, numbers: Sequence[int]) -> TopologyParameters:
    """The topology with the listed links between these edge servers, which are then counted from 0."""
    if parameters.kind != "edges":
        return parameters
    if len(numbers) == 1:
        return replace(parameters, kind="line", file=None, edges=())
    links = parameters.edges if parameters.file is None else read_edges(parameters.file)
    place = {number: i for i, number in enumerate(numbers)}
    kept = tuple((place[a], place[b]) for a, b in links if a in place and b in place)
    if not kept:
        raise InputError(f"topology.edges: no link between the edge servers {list(numbers)}")
    return replace(parameters, file=None, edges=kept)


def retarget_backhaul(backhaul: Backhaul, target: ArrayLike, *, at_once: bool = False) -> Backhaul:
    """The same links with weights that average towards another target π.

    With `at_once`, every edge server gets the π-weighted mean of all in one step, as from a cloud server,
    whichever links there are.
    """
    pi = validation.make_read_only(_check_distribution(target, backhaul.clusters))
    weights = np.tile(pi, (pi.size, 1)) if at_once else metropolis_weights(backhaul.graph, pi)
    return Backhaul(backhaul.graph, validation.make_read_only(weights), pi, zeta(weights, pi))


def target_weights(weights: str, sizes: ArrayLike) -> FloatArray:
    """π, given the devices per cluster: 1/m for "uniform" (the paper), N_i/N for "size"."""
    counts = validation.check_floats("cluster sizes", sizes, least=1)
    if counts.size == 0:
        raise InputError("cluster sizes: must have at least 1 entry, got 0")
    if weights == "uniform":
        return validation.make_read_only(np.full(counts.size, 1 / counts.size))
    if weights == "size":
        return validation.make_read_only(counts / counts.sum())
    raise InputError(unknown_name("topology.weights", weights, get_args(Weights)))


def describe_bias(weights: str, sizes: ArrayLike) -> str | None:
    """Returns a warning if uniform gossip is used with clusters of unequal size, else None."""
    counts = validation.check_floats("cluster sizes", sizes, least=1)
    if weights != "uniform" or counts.size == 0 or counts.min() == counts.max():
        return None
    return (
        f"topology.weights = 'uniform' with clusters of {counts.min():g} to {counts.max():g} devices: those "
        "in small clusters weigh more in the result; use weights = 'size' to give all devices the same weight"
    )


def metropolis_weights(graph: "nx.Graph[int]", pi: ArrayLike) -> FloatArray:
    """Computes Metropolis–Hastings weights W towards π.

    W_ij = min(1/(d_i+1), π_j/(π_i(d_j+1))) for neighbours i, j with degrees d, and the rest on the diagonal.
    """
    target = _check_distribution(pi, graph.number_of_nodes(), above=None)
    adjacency = _adjacency(graph)
    # Counting the edge server itself keeps the diagonal positive, so that gossip cannot oscillate.
    places = adjacency.sum(axis=1) + 1
    pull = target / places
    # An edge server that has left weighs nothing and has no neighbour.
    own = np.where(target > 0, target, 1.0)
    weights = np.where(adjacency, np.minimum(1 / places[:, None], pull[None, :] / own[:, None]), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return weights


def live_metropolis_weights(graph: "nx.Graph[int]", pi: ArrayLike, live: ArrayLike) -> FloatArray:
    """Computes weights for a step in which only the `live` edge servers gossip; the others keep their model.

    The live ones use `metropolis_weights` on the sub-graph between them. Rows still sum to 1 and πW = π
    still holds. The sub-graph may fall apart; each part then averages on its own for this step.
    """
    target = _check_distribution(pi, graph.number_of_nodes(), above=None)
    present = validation.check_booleans("live", live, length=target.size)
    nodes = np.flatnonzero(present)
    # The identity leaves the missing edge servers' models as they are.
    weights = np.eye(target.size)
    if nodes.size:
        within: nx.Graph[int] = nx.relabel_nodes(
            graph.subgraph(nodes.tolist()), {int(node): place for place, node in enumerate(nodes)}
        )
        weights[np.ix_(nodes, nodes)] = metropolis_weights(within, target[nodes] / target[nodes].sum())
    return weights


def zeta(weights: ArrayLike, pi: ArrayLike) -> float:
    """Computes ζ, the second largest absolute eigenvalue of D^½ W D^−½ with D = diag(π).

    The largest one, 1, has the eigenvector √π on both sides; subtracting √π√πᵀ leaves the second largest. An
    eigenvalue 1 that occurs twice (a disconnected graph) therefore gives ζ = 1.
    """
    matrix = np.asarray(weights, dtype=np.float64)
    root = np.sqrt(_check_distribution(pi, matrix.shape[0]))
    # This has W's eigenvalues, and is symmetric where W is reversible, as Metropolis–Hastings weights are.
    rest = root[:, None] * matrix / root[None, :] - np.outer(root, root)
    # The symmetric solver is faster and its eigenvalues are real, but not all weights are reversible.
    symmetric = np.allclose(rest, rest.T, rtol=0, atol=TOLERANCE)
    values = np.linalg.eigvalsh((rest + rest.T) / 2) if symmetric else np.linalg.eigvals(rest)
    return float(np.abs(values).max())


def check_mixing(weights: ArrayLike, pi: ArrayLike, graph: "nx.Graph[int] | None" = None) -> None:
    """Raises an `InputError` unless repeated gossip with W leads all edge servers to the π-weighted mean."""
    check_gossip_step(weights, pi, graph)
    survives = zeta(weights, pi)
    if survives > 1 - 1e-12:
        raise InputError(f"mixing matrix: ζ = {survives:.6f}, must be < 1: some edge servers never agree")


def check_gossip_step(weights: ArrayLike, pi: ArrayLike, graph: "nx.Graph[int] | None" = None) -> None:
    """Raises an `InputError` unless one step with W is an average that keeps the π-weighted mean.

    Unlike `check_mixing` it allows steps that some edge servers miss. With a graph, W must be zero between
    edge servers that it does not link.
    """
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"mixing matrix: must be square, got shape {matrix.shape}")
    target = _check_distribution(pi, matrix.shape[0])
    _reject_entries(matrix, ~np.isfinite(matrix) | (matrix < 0), "must be a finite number ≥ 0")
    if graph is not None:
        apart = ~_adjacency(graph) & ~np.eye(len(matrix), dtype=bool)
        _reject_entries(matrix, apart & (matrix != 0), "must be 0, the backhaul has no such link")
    _reject_sums("row {} sums to {}, must be 1", matrix.sum(axis=1), np.ones(len(matrix)))
    _reject_sums("(πW)[{}] = {}, must be π there", target @ matrix, target)


def _reject_entries(matrix: FloatArray, bad: BoolArray, allowed: str) -> None:
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InputError(f"mixing matrix[{row}, {column}] = {matrix[row, column]!s}: {allowed}")


def _reject_sums(sentence: str, found: FloatArray, wanted: FloatArray) -> None:
    off = np.abs(found - wanted) > TOLERANCE
    if off.any():
        first = int(np.argmax(off))
        raise InputError(f"mixing matrix: {sentence.format(first, found[first])} ({wanted[first]:g})")


def _check_distribution(pi: ArrayLike, clusters: int, above: float | None = 0) -> FloatArray:
    target = validation.check_floats("pi", pi, length=clusters, least=0, above=above)
    if abs(target.sum() - 1) > TOLERANCE:
        raise InputError(f"pi: sums to {target.sum()!s}, must be 1")
    return target


def _adjacency(graph: "nx.Graph[int]") -> BoolArray:
    joined = np.zeros((graph.number_of_nodes(),) * 2, dtype=bool)
    ends = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    joined[ends[:, 0], ends[:, 1]] = True
    return joined | joined.T


_PASSES = 300
Link = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class SampledLinks:
    """Matchings of a backhaul (links that share no edge server; together all links) and the chance of each.

    At every gossip step each matching is active with its own chance. The chances are chosen so that the
    active links connect the graph as well as possible on average (the largest algebraic connectivity of the
    expected Laplacian), under a budget: the share of matchings that are active on average. Weights of a
    step are those of the active links, so that every step, and therefore their expectation, averages
    towards the same π.
    """

    matchings: tuple[tuple[Link, ...], ...]
    chances: FloatArray

    def place(self, numbers: Sequence[int]) -> "SampledLinks":
        """The same between the edge servers of these numbers."""
        matchings = (tuple((numbers[a], numbers[b]) for a, b in links) for links in self.matchings)
        return SampledLinks(tuple(matchings), self.chances)

    def draw(self, seed: int, global_round: int, edge_rounds_done: int, step: int) -> tuple[Link, ...]:
        """The active links of one gossip step."""
        index = (global_round, edge_rounds_done, step)
        drawn = make_generator(seed, "links", *index).random(len(self.matchings))
        active = zip(self.matchings, drawn < self.chances, strict=True)
        return tuple(sorted(link for matching, is_active in active if is_active for link in matching))


def sample_links(backhaul: Backhaul, budget: float) -> SampledLinks:
    """Splits a backhaul into matchings and chooses their chances within the budget, in (0, 1]."""
    validation.check_number("link budget", budget, above=0, most=1)
    matchings = _split_into_matchings(backhaul.edges)
    laplacians = np.array([_laplacian(backhaul.clusters, links) for links in matchings])
    return SampledLinks(matchings, _choose_chances(laplacians, budget))


def use_links(backhaul: Backhaul, links: tuple[Link, ...]) -> Backhaul:
    """The backhaul of a step in which only these links are active; ζ is that of all links."""
    graph = _make_graph(backhaul.clusters, links)
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
