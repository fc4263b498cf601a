"""Whole runs or devices."""

import pytest

from cfel.api.runs import whole_runs_are_better


@pytest.mark.parametrize(
    ("runs", "workers", "devices", "small", "whole"),
    [
        (4, 2, 64, False, True),  # 2 against 4 / 1.8
        (5, 2, 64, False, False),  # 3 against 5 / 1.8
        (5, 2, 64, True, True),  # 3 against 5 / 0.6
        (1, 8, 64, False, False),  # 1 against 1 / 7.2
        (1, 8, 64, True, False),  # 1 against 1 / 2.4
        (3, 8, 64, True, True),  # 1 against 3 / 2.4
        (1, 8, 1, False, True),  # one device keeps one worker busy, whichever way
        (100, 32, 64, False, False),  # 4 against 100 / 28.8
        (120, 32, 64, False, True),  # 4 against 120 / 28.8
    ],
)
def test_the_shorter_way(runs: int, workers: int, devices: int, small: bool, whole: bool) -> None:
    assert whole_runs_are_better(runs, workers, devices, small) is whole
