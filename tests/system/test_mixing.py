"""Gossip weights: hand-sized matrices, the paper's ring, and what every matrix must fulfil."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.arrays import FloatArray
from cfel.errors import InputError
from cfel.system.backhaul import (
    TopologyParameters,
    build_backhaul,
    check_mixing,
    describe_bias,
    live_metropolis_weights,
    metropolis_weights,
    target_weights,
    zeta,
)


def test_path_of_three_towards_uniform() -> None:
    """Degrees 1, 2, 1: W_01 = min(1/2, 1/3) = 1/3 = W_10 = W_12 = W_21, diagonal 2/3, 1/3, 2/3.

    The eigenvalues of W are 1, 2/3 and 0, so ζ = 2/3.
    """
    weights = metropolis_weights(nx.path_graph(3), [1 / 3] * 3)
    assert np.allclose(weights, np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3, rtol=0, atol=1e-15)
    assert zeta(weights, [1 / 3] * 3) == pytest.approx(2 / 3, abs=1e-12)


def test_pair_towards_sizes() -> None:
    """π = (3/4, 1/4), degrees 1: W_01 = min(1/2, (1/4)/(3/4·2)) = 1/6, W_10 = min(1/2, 3/2) = 1/2.

    The trace is 5/6 + 1/2 = 4/3, so the second eigenvalue and ζ are 1/3.
    """
    pi = target_weights("size", [3, 1])
    weights = metropolis_weights(nx.path_graph(2), pi)
    assert np.allclose(weights, [[5 / 6, 1 / 6], [1 / 2, 1 / 2]], rtol=0, atol=1e-15)
    assert zeta(weights, pi) == pytest.approx(1 / 3, abs=1e-12)


def test_ring_of_eight() -> None:
    """Weights 1/3; eigenvalues (1 + 2 cos(2πk/8))/3, the second is (1 + √2)/3 = 0.805."""
    backhaul = build_backhaul(TopologyParameters(), [8] * 8, seed=0)
    assert np.count_nonzero(np.isclose(backhaul.weights, 1 / 3)) == 24
    assert backhaul.zeta == pytest.approx((1 + np.sqrt(2)) / 3, abs=1e-12)
    assert round(backhaul.zeta, 3) == 0.805
    assert backhaul.clusters == 8
    assert backhaul.edges[:2] == ((0, 1), (0, 7))


def test_one_cluster_agrees_with_itself() -> None:
    backhaul = build_backhaul(TopologyParameters(), [5], seed=0)
    assert backhaul.weights.tolist() == [[1.0]]
    assert backhaul.zeta == 0.0


@st.composite
def networks(draw: st.DrawFn) -> tuple["nx.Graph[int]", FloatArray]:
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=9))
    parameters = TopologyParameters(kind="erdos-renyi", p_edge=0.6, weights="size")
    backhaul = build_backhaul(parameters, sizes, seed=draw(st.integers(0, 99)))
    return backhaul.graph, backhaul.target


@given(networks())
def test_any_connected_graph_mixes(network: tuple["nx.Graph[int]", FloatArray]) -> None:
    graph, pi = network
    check_mixing(metropolis_weights(graph, pi), pi, graph)


@given(networks())
def test_gossip_repeated_reaches_the_weighted_mean(network: tuple["nx.Graph[int]", FloatArray]) -> None:
    """Disagreement in the norm weighted by π shrinks at least by ζ per step."""
    graph, pi = network
    weights = metropolis_weights(graph, pi)
    models = np.arange(pi.size) ** 2.0
    mean = pi @ models
    before, after = (np.sqrt(pi @ (values - mean) ** 2) for values in (models, weights @ models))
    assert pi @ (weights @ models) == pytest.approx(mean)
    assert after <= zeta(weights, pi) * before + 1e-9


@given(networks(), st.integers(0, 2**9 - 1))
def test_absent_servers_keep_their_model(network: tuple["nx.Graph[int]", FloatArray], bits: int) -> None:
    graph, pi = network
    live = np.array([bool(bits >> i & 1) for i in range(pi.size)])
    weights = live_metropolis_weights(graph, pi, live)
    assert np.array_equal(weights[~live], np.eye(pi.size)[~live])
    assert np.allclose(weights.sum(axis=1), 1)
    assert np.allclose(pi @ weights, pi)
    assert (weights >= 0).all()


def test_everybody_live_is_plain_metropolis() -> None:
    backhaul = build_backhaul(TopologyParameters(kind="star", weights="size"), [1, 2, 3, 4], seed=0)
    weights = live_metropolis_weights(backhaul.graph, backhaul.target, np.ones(4, dtype=bool))
    assert np.allclose(weights, backhaul.weights, rtol=0, atol=1e-15)


def test_ring_with_one_server_away_is_a_line() -> None:
    """Ring 0-1-2-3 without 3: the path 0-1-2 of `test_path_of_three_towards_uniform`."""
    weights = live_metropolis_weights(nx.cycle_graph(4), [1 / 4] * 4, [True, True, True, False])
    expected = np.array([[2, 1, 0, 0], [1, 1, 1, 0], [0, 1, 2, 0], [0, 0, 0, 3]]) / 3
    assert np.allclose(weights, expected, rtol=0, atol=1e-15)


def test_target_weights() -> None:
    assert target_weights("uniform", [3, 1]).tolist() == [0.5, 0.5]
    assert target_weights("size", [3, 1]).tolist() == [0.75, 0.25]
    with pytest.raises(InputError, match=r"cluster sizes\[1\] = 0\.0"):
        target_weights("size", [3, 0])
    with pytest.raises(InputError, match="unknown 'even'"):
        target_weights("even", [3, 1])
    with pytest.raises(InputError, match="at least 1 entry"):
        target_weights("size", [])


def test_bias_is_worth_a_warning_only_when_there_is_one() -> None:
    assert describe_bias("uniform", [4, 4]) is None
    assert describe_bias("size", [4, 9]) is None
    message = describe_bias("uniform", [4, 9])
    assert message is not None
    assert "4 to 9 devices" in message


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([[1.0, 0.0]], r"must be square, got shape \(1, 2\)"),
        ([[0.5, 0.4], [0.5, 0.5]], r"row 0 sums to 0\.9, must be 1"),
        ([[1.5, -0.5], [0.5, 0.5]], r"mixing matrix\[0, 1\] = -0\.5:"),
        ([[0.5, np.nan], [0.5, 0.5]], r"mixing matrix\[0, 1\] = nan"),
        ([[0.5, 0.5], [0.1, 0.9]], r"\(πW\)\[0\] = 0\.3, must be π there \(0\.5\)"),
        ([[1.0, 0.0], [0.0, 1.0]], r"ζ = 1\.000000, must be < 1"),
        ([[0.0, 1.0], [1.0, 0.0]], r"ζ = 1\.000000, must be < 1"),
    ],
)
def test_bad_matrix_is_rejected(weights: list[list[float]], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check_mixing(weights, [0.5, 0.5])


def test_weight_without_a_link_is_rejected() -> None:
    with pytest.raises(InputError, match=r"mixing matrix\[0, 2\] = .*no such link"):
        check_mixing(np.full((3, 3), 1 / 3), [1 / 3] * 3, nx.path_graph(3))


def test_asymmetric_matrix_is_accepted() -> None:
    """A lazy one-way ring of 3: eigenvalues (1 + e^{2πik/3})/2, absolute value 1/2."""
    weights = (np.eye(3) + np.roll(np.eye(3), 1, axis=1)) / 2
    check_mixing(weights, [1 / 3] * 3)
    assert zeta(weights, [1 / 3] * 3) == pytest.approx(0.5, abs=1e-9)


def test_target_must_be_a_distribution() -> None:
    with pytest.raises(InputError, match=r"pi: sums to 1\.5, must be 1"):
        metropolis_weights(nx.path_graph(2), [0.75, 0.75])
    with pytest.raises(InputError, match=r"pi\[0\] = -1\.0"):
        metropolis_weights(nx.path_graph(2), [-1, 2])
