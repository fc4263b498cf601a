"""Edge rounds and global rounds: maxima, sums and who caused them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.cost import NO_DEVICE, EdgeRoundCost, cluster_seconds, edge_round_cost, global_round_cost
from cfel.errors import InputError


def test_cluster_waits_for_its_slowest_device() -> None:
    assert cluster_seconds([3, 9, 4, 5], [0, 0, 2, 2], 3).tolist() == [9, 0, 5]


def test_edge_round_names_the_slowest_device() -> None:
    """Cluster 0: device 1 takes 9 s; 1 is empty; in cluster 2 devices 2 and 3 tie, the first is named."""
    cost = edge_round_cost([3, 9, 5, 5], [1, 2, 3, 4], [0, 0, 2, 2], 3)
    assert cost.seconds.tolist() == [9, 0, 5]
    assert cost.slowest_device.tolist() == [1, NO_DEVICE, 2]
    assert cost.joules == 10


def test_absent_devices_cost_nothing() -> None:
    """Without devices 1, 2 and 3 cluster 0 takes 3 s and 1 J, and cluster 1 nothing."""
    present = np.array([True, False, False, False])
    cost = edge_round_cost([3, 9, 5, 5], [1, 2, 3, 4], [0, 0, 1, 1], 2, present)
    assert cost.seconds.tolist() == [3, 0]
    assert cost.slowest_device.tolist() == [0, NO_DEVICE]
    assert cost.joules == 1


def test_device_that_takes_no_time_still_took_part() -> None:
    assert edge_round_cost([0.0], [0.0], [0], 1).slowest_device.tolist() == [0]


def edge_round(seconds: list[float], slowest: list[int], joules: float) -> EdgeRoundCost:
    return EdgeRoundCost(np.array(seconds), np.array(slowest), joules)


def test_global_round_is_the_slowest_cluster_with_its_backhaul() -> None:
    """Cluster 0: 5 + 6 + 2 = 13; cluster 1: 10 + 2 + 1.5 = 13.5, mostly for device 7."""
    rounds = [edge_round([5, 10], [0, 7], 3), edge_round([6, 2], [1, 8], 4)]
    cost = global_round_cost(rounds, [2, 1.5])
    assert cost.cluster_seconds.tolist() == [13, 13.5]
    assert (cost.seconds, cost.slowest_cluster, cost.straggler, cost.joules) == (13.5, 1, 7, 7)


def test_straggler_is_who_was_waited_for_longest_in_all() -> None:
    """Device 4 holds the cluster up for 5 + 5 s, device 3 for 8 s."""
    rounds = [edge_round([seconds], [device], 0) for seconds, device in ((8, 3), (5, 4), (5, 4))]
    assert global_round_cost(rounds, [0]).straggler == 4


def test_nobody_causes_a_round_without_devices() -> None:
    cost = global_round_cost([edge_round([0, 0], [NO_DEVICE, NO_DEVICE], 0)], [1, 2])
    assert (cost.seconds, cost.slowest_cluster, cost.straggler) == (2, 1, NO_DEVICE)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 4), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
def test_agrees_with_a_plain_loop(devices: list[tuple[float, float, int, bool]]) -> None:
    seconds, joules, cluster, present = (list(column) for column in zip(*devices, strict=True))
    cost = edge_round_cost(seconds, joules, cluster, 5, np.array(present))
    for i in range(5):
        members = [n for n in range(len(devices)) if cluster[n] == i and present[n]]
        slowest = max(members, key=lambda n: (seconds[n], -n), default=NO_DEVICE)
        assert cost.slowest_device[i] == slowest
        assert cost.seconds[i] == (seconds[slowest] if members else 0)
    assert cost.joules == pytest.approx(sum(joules[n] for n in range(len(devices)) if present[n]))


def test_unknown_cluster_is_named() -> None:
    with pytest.raises(InputError, match=r"cluster\[1\] = 2: .*0 to 1"):
        cluster_seconds([1, 1], [0, 2], 2)
    with pytest.raises(InputError, match=r"cluster: .* whole .* float64"):
        cluster_seconds([1, 1], [0.0, 1.0], 2)


def test_gossip_after_every_edge_round_waits_every_time() -> None:
    """Slowest clusters 4 and 5 s, an exchange of 1 s after each: 11 s; none works over 8 s itself."""
    first = EdgeRoundCost(np.array([4.0, 1.0]), np.array([0, 1]), 10.0)
    second = EdgeRoundCost(np.array([2.0, 5.0]), np.array([0, 1]), 10.0)
    total = global_round_cost([first, second], [1.0, 1.0], every_edge_round=True)
    assert total.seconds == 11
    assert total.cluster_seconds.tolist() == [8, 8]
    assert global_round_cost([first, second], [1.0, 1.0]).seconds == 7
