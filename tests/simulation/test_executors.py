"""Devices into tasks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cfel.simulation.executors import MOST_IN_A_GROUP, group_jobs, largest_group


def test_groups_grow_smaller() -> None:
    """A third of each worker's part at a time: 64 devices on 2 workers."""
    sizes = [len(group) for group in group_jobs(range(64), 2, 64)]
    assert sizes == [10, 9, 7, 6, 5, 4, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]


@given(st.integers(0, 5000), st.integers(1, 100), st.integers(1, 64))
def test_everybody_once_and_in_order(count: int, workers: int, most: int) -> None:
    groups = list(group_jobs(range(count), workers, most))
    assert [each for group in groups for each in group] == list(range(count))
    sizes = [len(group) for group in groups]
    assert all(1 <= size <= most for size in sizes)
    assert all(one >= two for one, two in pairwise(sizes))


def test_few_messages_for_many_devices() -> None:
    assert len(list(group_jobs(range(10_000), 2, MOST_IN_A_GROUP))) < 200


def test_large_models_share_no_task() -> None:
    """64 MiB a message: 20 devices of ResNet-20 with momentum and residual, one with LEAF's CNN."""
    assert largest_group(5000, 1) == MOST_IN_A_GROUP
    assert largest_group(269_722, 3) == 20
    assert largest_group(6_603_710, 3) == 1
    assert largest_group(10**9, 1) == 1
