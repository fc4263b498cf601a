"""Partitions are partitions, keyed, quick, and skewed as asked; no device trains on what is held out."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cfel.errors import InputError
from cfel.learning.data import DataSet, synthetic
from cfel.learning.data.partition import PartitionParameters, hold_out, partition, partition_dirichlet

DATA = synthetic(2400, (2,), classes=6)
RULES = ("iid", "dirichlet", "shards")


def _written(writers: list[int], test_writers: list[int]) -> DataSet:
    inputs, targets = torch.zeros(len(writers), 2), torch.zeros(len(writers), dtype=torch.int64)
    return DataSet(
        "letters",
        inputs,
        targets,
        inputs[: len(test_writers)],
        targets[: len(test_writers)],
        1,
        None,
        np.asarray(writers),
        np.asarray(test_writers),
    )


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=15, deadline=None)
@given(devices=st.integers(1, 300), beta=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_every_sample_goes_to_exactly_one_device(rule: str, devices: int, beta: float, seed: int) -> None:
    parameters = PartitionParameters(rule, beta=beta)  # type: ignore[arg-type]
    data, parts = partition(DATA, devices, parameters, seed)
    assert data is DATA
    assert len(parts) == devices
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(2000))
    assert min(len(part) for part in parts) >= 2
    assert all(np.array_equal(part, np.sort(part)) for part in parts)


@pytest.mark.parametrize("rule", RULES)
def test_the_seed_decides(rule: str) -> None:
    parameters = PartitionParameters(rule)  # type: ignore[arg-type]
    one, two, other = (np.concatenate(partition(DATA, 9, parameters, seed)[1]).tolist() for seed in (0, 0, 1))
    assert one == two
    assert one != other


def _skew(beta: float) -> float:
    """The mean over devices of the largest class's share."""
    labels = DATA.train_targets.numpy()
    _, parts = partition(DATA, 20, PartitionParameters("dirichlet", beta=beta), 0)
    return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))


def test_a_small_beta_means_one_sided_devices() -> None:
    assert _skew(0.05) > 0.75
    assert _skew(1000.0) < 0.3


def test_devices_are_topped_up_to_the_least() -> None:
    labels = np.repeat(np.arange(3), 100)
    parts = partition_dirichlet(labels, 30, 0.001, 10, np.random.default_rng(0))
    assert [len(part) for part in parts] == [10] * 30


def test_shards_hold_few_labels() -> None:
    labels = DATA.train_targets.numpy()
    _, parts = partition(DATA, 50, PartitionParameters("shards", shards=2), 0)
    assert max(len(np.unique(labels[part])) for part in parts) <= 4
    assert {len(part) for part in parts} == {40}


def test_by_writer_each_device_is_one_writer_and_tests_on_their_samples() -> None:
    data = _written([3, 1, 1, 2, 3, 9, 3], [1, 2, 3, 3])
    restricted, parts = partition(data, 2, PartitionParameters("writer"), 0)
    assert restricted.train_writers is not None
    assert restricted.test_writers is not None
    owners = [np.unique(restricted.train_writers[part]).tolist() for part in parts]
    assert all(len(owner) == 1 for owner in owners)
    assert set(restricted.test_writers) == {owner[0] for owner in owners}
    assert sum(map(len, parts)) == len(restricted.train_targets)


def test_writers_differ_with_the_seed() -> None:
    data = _written(list(range(50)), list(range(50)))
    first, second = (
        partition(data, 5, PartitionParameters("writer"), seed)[0].train_writers for seed in (0, 1)
    )
    assert first is not None
    assert second is not None
    assert not np.array_equal(first, second)


def test_ten_thousand_devices_take_no_time() -> None:
    data = synthetic(72_000, (1,))
    for rule in RULES:
        began = time.process_time()
        _, parts = partition(data, 10_000, PartitionParameters(rule, beta=0.3), 0)  # type: ignore[arg-type]
        assert time.process_time() - began < 2
        assert len(parts) == 10_000


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(InputError, match=r"2000 .*'synthetic' .*2001 devices"):
        partition(DATA, 2001, PartitionParameters("iid"), 0)
    with pytest.raises(InputError, match="names no writers"):
        partition(DATA, 2, PartitionParameters("writer"), 0)
    with pytest.raises(InputError, match="has 2 writers for 3 devices"):
        partition(_written([1, 2, 4], [1, 2]), 3, PartitionParameters("writer"), 0)
    with pytest.raises(InputError, match="too few for 1500 × 2 shards"):
        partition(DATA, 1500, PartitionParameters("shards"), 0)
    with pytest.raises(InputError, match="did you mean 'dirichlet'"):
        PartitionParameters("dirichelt")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="beta"):
        PartitionParameters("dirichlet", beta=0)
    with pytest.raises(InputError, match="least"):
        PartitionParameters("dirichlet", least=0)
    floats = DataSet("line", torch.zeros(9, 1), torch.zeros(9), torch.zeros(1, 1), torch.zeros(1), 1)
    with pytest.raises(InputError, match="needs class labels"):
        partition(floats, 3, PartitionParameters("dirichlet"), 0)


def _numbered(labels: list[int]) -> DataSet:
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
    data = _numbered([0] * 20 + [1] * 30)
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


def test_the_seed_decides_what_is_held_out() -> None:
    data, shares = _numbered([0, 1] * 25), [np.arange(50)]
    first, again, other = (hold_out(data, shares, 0.2, seed)[0].test_inputs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_no_device_gives_its_last_sample() -> None:
    data, shares = _numbered([0] * 6), [np.arange(1), np.arange(1, 6)]
    _, kept = hold_out(data, shares, 0.9, seed=0)
    assert [len(own) for own in kept] == [1, 1]


def test_targets_need_not_be_classes() -> None:
    data = _numbered([0] * 10)
    measured = DataSet("m", data.train_inputs, torch.linspace(0, 1, 10), data.test_inputs, torch.zeros(3), 1)
    tested, kept = hold_out(measured, [np.arange(10)], 0.3, seed=0)
    assert (len(tested.test_targets), len(kept[0])) == (3, 7)


def test_too_few_to_hold_out() -> None:
    with pytest.raises(InputError, match=r"held_out = 0\.1: no device"):
        hold_out(_numbered([0] * 4), [np.arange(4)], 0.1, seed=0)
