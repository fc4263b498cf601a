"""Gossip weights on a backhaul graph: the matrix W, what it averages towards (π), and how fast (ζ).

Edge server i replaces its model y_i by Σ_j W_ij y_j, so rows of W sum to 1; the paper's H is Wᵀ. π is the
stationary distribution, πW = π: repeated gossip brings every edge server to Σ_j π_j y_j.
"""

from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray
from cfel.errors import InputError, unknown_name
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.system.topology import WEIGHTS, TopologyParameters, build_graph

TOLERANCE = 1e-9
"""How far sums of rows and πW − π may be from exact."""


@dataclass(frozen=True, slots=True, eq=False)
class Backhaul:
    """The network between edge servers, ready for gossip.

    Attributes:
        graph: which edge servers are linked, nodes 0 … m−1.
        weights: W, one row per edge server.
        target: π, what repeated gossip averages towards.
        zeta: ζ, the share of disagreement that survives one gossip step, in [0, 1).
    """

    graph: "nx.Graph[int]"
    weights: FloatArray
    target: FloatArray
    zeta: float

    @property
    def clusters(self) -> int:
        """Number of edge servers."""
        return self.target.size

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Links as (smaller, larger) pairs, in order."""
        return tuple(sorted((min(edge), max(edge)) for edge in self.graph.edges))

    def live(self, live: ArrayLike) -> FloatArray:
        """W for a gossip step that some edge servers miss (see `live_metropolis_weights`)."""
        return live_metropolis_weights(self.graph, self.target, live)


def build_backhaul(
    parameters: TopologyParameters, sizes: ArrayLike, seed: int, code: CodePolicy = BUILT_IN_ONLY
) -> Backhaul:
    """Builds graph, weights, target and ζ of one experiment.

    Args:
        parameters: the `[topology]` section.
        sizes: devices per cluster.
        seed: the experiment's seed.
        code: whether a kind that is not built in may be loaded.
    """
    target = target_weights(parameters.weights, sizes)
    graph = build_graph(parameters, target.size, seed, code)
    weights = metropolis_weights(graph, target)
    check_mixing(weights, target, graph)
    return Backhaul(graph, validation.make_read_only(weights), target, zeta(weights, target))


def retarget_backhaul(backhaul: Backhaul, target: ArrayLike, *, at_once: bool = False) -> Backhaul:
    """Returns the same links with weights that average towards another target.

    Args:
        backhaul: links and present weights.
        target: π, positive, sums to 1.
        at_once: every edge server gets the π-weighted mean of all in one step, as from a cloud server,
            whichever links there are.
    """
    pi = validation.make_read_only(_check_distribution(target, backhaul.clusters))
    weights = np.tile(pi, (pi.size, 1)) if at_once else metropolis_weights(backhaul.graph, pi)
    return Backhaul(backhaul.graph, validation.make_read_only(weights), pi, zeta(weights, pi))


def target_weights(weights: str, sizes: ArrayLike) -> FloatArray:
    """π: 1/m for "uniform" (the paper), N_i/N for "size".

    Args:
        weights: "uniform" or "size".
        sizes: devices per cluster, each at least 1.
    """
    counts = validation.check_floats("cluster sizes", sizes, least=1)
    if counts.size == 0:
        raise InputError("cluster sizes: must have at least 1 entry, got 0")
    if weights == "uniform":
        return validation.make_read_only(np.full(counts.size, 1 / counts.size))
    if weights == "size":
        return validation.make_read_only(counts / counts.sum())
    raise InputError(unknown_name("topology.weights", weights, WEIGHTS))


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

    Args:
        graph: nodes 0 … m−1.
        pi: π, positive, sums to 1.
    """
    target = _check_distribution(pi, graph.number_of_nodes())
    adjacency = _adjacency(graph)
    # Counting the edge server itself keeps the diagonal positive, so that gossip cannot oscillate.
    places = adjacency.sum(axis=1) + 1
    pull = target / places
    weights = np.where(adjacency, np.minimum(1 / places[:, None], pull[None, :] / target[:, None]), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return weights


def live_metropolis_weights(graph: "nx.Graph[int]", pi: ArrayLike, live: ArrayLike) -> FloatArray:
    """Computes weights for a step in which only the `live` edge servers gossip; the others keep their model.

    The live ones use `metropolis_weights` on the sub-graph between them. Rows still sum to 1 and πW = π
    still holds. The sub-graph may fall apart; each part then averages on its own for this step.

    Args:
        graph: the whole backhaul.
        pi: π of the whole backhaul.
        live: one truth value per edge server.
    """
    target = _check_distribution(pi, graph.number_of_nodes())
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

    Args:
        weights: W with rows that sum to 1 and πW = π.
        pi: π.
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
    """Raises an `InputError` unless repeated gossip with W leads all edge servers to the π-weighted mean.

    Args:
        weights: W; row i is how edge server i weighs the models it sees.
        pi: π.
        graph: if given, W must be zero between edge servers that it does not link.
    """
    check_gossip_step(weights, pi, graph)
    survives = zeta(weights, pi)
    if survives > 1 - 1e-12:
        raise InputError(f"mixing matrix: ζ = {survives:.6f}, must be < 1: some edge servers never agree")


def check_gossip_step(weights: ArrayLike, pi: ArrayLike, graph: "nx.Graph[int] | None" = None) -> None:
    """Raises an `InputError` unless one step with W is an average that keeps the π-weighted mean.

    Unlike `check_mixing` it allows steps that some edge servers miss.

    Args:
        weights: W; row i is how edge server i weighs the models it sees.
        pi: π.
        graph: if given, W must be zero between edge servers that it does not link.
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


def _check_distribution(pi: ArrayLike, clusters: int) -> FloatArray:
    target = validation.check_floats("pi", pi, length=clusters, above=0)
    if abs(target.sum() - 1) > TOLERANCE:
        raise InputError(f"pi: sums to {target.sum()!s}, must be 1")
    return target


def _adjacency(graph: "nx.Graph[int]") -> BoolArray:
    joined = np.zeros((graph.number_of_nodes(),) * 2, dtype=bool)
    ends = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    joined[ends[:, 0], ends[:, 1]] = True
    return joined | joined.T
