"""Held-out training samples: how many each device gives, and that no device trains on them."""

import numpy as np
import pytest
import torch

from cfel.errors import InputError
from cfel.learning.data import DataSet
from cfel.learning.data.partition import hold_out


def numbered(labels: list[int]) -> DataSet:
    """Training sample i is the number i; test samples are all −1."""
    count = len(labels)
    return DataSet(
        "numbered",
        torch.arange(count, dtype=torch.float32)[:, None],
        torch.tensor(labels),
        torch.full((3, 1), -1.0),
        torch.zeros(3, dtype=torch.int64),
        2,
        train_writers=np.arange(count) // 10,
        test_writers=np.zeros(3, dtype=np.int64),
    )


def test_a_tenth_of_each_device_evenly_over_its_classes() -> None:
    """Device 0 has 20 samples of each class and gives 2 of each; device 1 has 10 of one class and gives 1."""
    data = numbered([0] * 20 + [1] * 30)
    shares = [np.arange(40), np.arange(40, 50)]
    tested, kept = hold_out(data, shares, 0.1, seed=0)
    held = tested.test_inputs[:, 0].numpy().astype(int)
    assert [np.sum(held < 20), np.sum((held >= 20) & (held < 40)), np.sum(held >= 40)] == [2, 2, 1]
    assert [len(own) for own in kept] == [36, 9]
    for own, before in zip(kept, shares, strict=True):
        assert sorted([*own, *np.intersect1d(held, before)]) == before.tolist()
    assert torch.equal(tested.test_targets, data.train_targets[held])
    assert tested.test_writers is not None
    assert tested.test_writers.tolist() == (held // 10).tolist()
    assert tested.train_inputs is data.train_inputs


def test_the_seed_decides() -> None:
    data, shares = numbered([0, 1] * 25), [np.arange(50)]
    first, again, other = (hold_out(data, shares, 0.2, seed)[0].test_inputs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_no_device_gives_its_last_sample() -> None:
    data, shares = numbered([0] * 6), [np.arange(1), np.arange(1, 6)]
    _, kept = hold_out(data, shares, 0.9, seed=0)
    assert [len(own) for own in kept] == [1, 1]


def test_targets_need_not_be_classes() -> None:
    data = numbered([0] * 10)
    measured = DataSet("m", data.train_inputs, torch.linspace(0, 1, 10), data.test_inputs, torch.zeros(3), 1)
    tested, kept = hold_out(measured, [np.arange(10)], 0.3, seed=0)
    assert (len(tested.test_targets), len(kept[0])) == (3, 7)


def test_too_few_to_hold_out() -> None:
    with pytest.raises(InputError, match=r"data\.held_out = 0\.1: no device has enough"):
        hold_out(numbered([0] * 4), [np.arange(4)], 0.1, seed=0)
