"""Backhaul graphs, edge by edge where they are small."""

import os
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.errors import FleetFileError, InputError
from cfel.plugins import ANY_CODE
from cfel.system.backhaul import KINDS, TopologyParameters, build_graph, check_graph, read_edges


def edges_of(graph: "nx.Graph[int]") -> set[tuple[int, int]]:
    return {(min(edge), max(edge)) for edge in graph.edges}


def backwards_ring(parameters: TopologyParameters, clusters: int, seed: int) -> "nx.Graph[int]":
    """A topology from outside the package: a ring, walked backwards."""
    del parameters, seed
    graph: nx.Graph[int] = nx.cycle_graph(range(clusters - 1, -1, -1))
    return graph


def directed(parameters: TopologyParameters, clusters: int, seed: int) -> "nx.DiGraph[int]":
    """A topology from outside the package that is not allowed."""
    del parameters, seed
    graph: nx.DiGraph[int] = nx.path_graph(clusters, create_using=nx.DiGraph)
    return graph


@pytest.mark.parametrize(
    ("kind", "edges"),
    [
        ("line", {(0, 1), (1, 2), (2, 3), (3, 4)}),
        ("ring", {(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)}),
        ("star", {(0, 1), (0, 2), (0, 3), (0, 4)}),
        ("grid", {(0, 1), (1, 2), (3, 4), (0, 3), (1, 4)}),
    ],
)
def test_five_clusters(kind: str, edges: set[tuple[int, int]]) -> None:
    """The grid of 5 has rows 0 1 2 and 3 4."""
    assert edges_of(build_graph(TopologyParameters(kind=kind), 5, seed=0)) == edges


def test_complete_graph_has_every_pair() -> None:
    """8·7/2 = 28 edges."""
    assert build_graph(TopologyParameters(kind="complete"), 8, seed=0).number_of_edges() == 28


@given(
    kind=st.sampled_from([kind for kind in KINDS if kind != "edges"]),
    clusters=st.integers(1, 30),
    seed=st.integers(0, 5),
)
def test_every_graph_is_whole(kind: str, clusters: int, seed: int) -> None:
    graph = build_graph(TopologyParameters(kind=kind, p_edge=0.6), clusters, seed)
    assert set(graph) == set(range(clusters))
    assert nx.is_connected(graph)
    assert clusters > 1 or graph.number_of_edges() == 0


def test_random_graph_depends_on_the_seed_alone() -> None:
    parameters = TopologyParameters(kind="erdos-renyi", p_edge=0.4)
    first, again, other = (build_graph(parameters, 12, seed) for seed in (1, 1, 2))
    assert edges_of(first) == edges_of(again) != edges_of(other)


def test_certain_edges_give_the_complete_graph() -> None:
    assert build_graph(TopologyParameters(kind="erdos-renyi", p_edge=1.0), 6, seed=3).number_of_edges() == 15


def test_random_graph_that_never_connects_is_given_up() -> None:
    with pytest.raises(InputError, match=r"p_edge = 1e-09: none of 1000"):
        build_graph(TopologyParameters(kind="erdos-renyi", p_edge=1e-9), 9, seed=0)


def test_edges_as_pairs() -> None:
    graph = build_graph(TopologyParameters(kind="edges", edges=((2, 0), (0, 1), (1, 0))), 3, seed=0)
    assert edges_of(graph) == {(0, 2), (0, 1)}


@pytest.mark.parametrize("text", ["0,1\n1,2\n", "from,to\n0, 1\n\n1, 2\n", "# a line\n0 1 # first\n1\t2\n"])
def test_edges_from_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "edges.csv"
    file.write_text(text)
    assert read_edges(file) == ((0, 1), (1, 2))
    assert build_graph(TopologyParameters(kind="edges", file=str(file)), 3, seed=0).number_of_edges() == 2


@pytest.mark.parametrize("bad", ["1 x", "1 2 3", "1", "1 2.5"])
def test_bad_line_is_named(tmp_path: Path, bad: str) -> None:
    file = tmp_path / "edges.txt"
    file.write_text(f"0 1\n\n{bad}\n")
    with pytest.raises(FleetFileError, match=rf"edges\.txt, line 3: '{bad}': "):
        read_edges(file)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match=r"none\.txt: it does not exist"):
        read_edges(tmp_path / "none.txt")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FleetFileError, match=r"pipe: it is not a regular file"):
        read_edges(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("edges", "reason"),
    [
        (((0, 1), (2, 3)), "not connected, cluster 2 "),
        (((0, 1), (1, 2), (2, 3), (3, 4)), "unknown cluster 4"),
        (((0, 1), (1, 2), (2, 3), (3, 3)), "cluster 3 is linked to itself"),
    ],
)
def test_bad_graph_is_rejected(edges: tuple[tuple[int, int], ...], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        build_graph(TopologyParameters(kind="edges", edges=edges), 4, seed=0)


def test_user_defined_graph() -> None:
    graph = build_graph(TopologyParameters(kind=f"{__name__}:backwards_ring"), 5, seed=0, code=ANY_CODE)
    assert edges_of(graph) == {(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)}


def test_user_defined_graph_is_checked() -> None:
    with pytest.raises(InputError, match=r"undirected .*DiGraph"):
        build_graph(TopologyParameters(kind=f"{__name__}:directed"), 5, seed=0, code=ANY_CODE)


def test_user_defined_graph_must_have_every_cluster() -> None:
    with pytest.raises(InputError, match="cluster 3 is missing from the graph"):
        check_graph(nx.path_graph(3), 4, "mine")


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown 'rung'; did you mean 'ring'"):
        build_graph(TopologyParameters(kind="rung"), 5, seed=0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"p_edge": 0.0}, r"topology\.p_edge = 0\.0:"),
        ({"joules_per_bit": "wireless"}, r"topology\.joules_per_bit: unknown 'wireless'.*wired"),
        ({"joules_per_bit": -1}, r"topology\.joules_per_bit = -1: must be"),
        ({"weights": "sizes"}, r"topology\.weights: unknown 'sizes'"),
        ({"kind": "edges"}, "needs either `file` or `edges`"),
        ({"kind": "edges", "edges": ((0, 1, 2),)}, r"topology\.edges\[0\] = \(0, 1, 2\): must be a pair"),
        ({"kind": "edges", "edges": ((0, -1),)}, r"topology\.edges\[0\] = -1"),
        ({"kind": 3}, r"topology\.kind = 3: must be text"),
    ],
)
def test_bad_parameters_are_rejected(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        TopologyParameters(**fields)  # type: ignore[arg-type]


def test_no_clusters_is_rejected() -> None:
    with pytest.raises(InputError, match="clusters = 0"):
        build_graph(TopologyParameters(), 0, seed=0)
