"""Partitions are partitions, keyed, quick, and skewed as asked; no device trains on what is held out."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cfel.arrays import IntArray
from cfel.errors import InputError
from cfel.learning.data import DataSet, synthetic
from cfel.learning.data.partition import DataParameters, hold_out
from cfel.learning.data.partition import partition as partition_clusters
from cfel.plugins import BUILT_IN_ONLY

DATA = synthetic(2400, (2,), classes=6)
RULES = ("iid", "dirichlet", "shards", "classes", "sizes")


def partition(
    data: DataSet, devices: int, parameters: DataParameters, seed: int
) -> tuple[DataSet, list[IntArray]]:
    """All devices in one cluster."""
    return partition_clusters(data, np.zeros(devices, dtype=np.int64), parameters, seed)


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
    parameters = DataParameters(partition=rule, beta=beta, classes_per_device=6)
    data, parts = partition(DATA, devices, parameters, seed)
    assert data is DATA
    assert len(parts) == devices
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(2000))
    assert min(len(part) for part in parts) >= 2
    assert all(np.array_equal(part, np.sort(part)) for part in parts)


@pytest.mark.parametrize("rule", RULES)
def test_the_seed_decides(rule: str) -> None:
    parameters = DataParameters(partition=rule)
    one, two, other = (np.concatenate(partition(DATA, 9, parameters, seed)[1]).tolist() for seed in (0, 0, 1))
    assert one == two
    assert one != other


def _skew(beta: float) -> float:
    """The mean over devices of the largest class's share."""
    labels = DATA.train_targets.numpy()
    _, parts = partition(DATA, 20, DataParameters(partition="dirichlet", beta=beta), 0)
    return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))


def test_a_small_beta_means_one_sided_devices() -> None:
    assert _skew(0.05) > 0.75
    assert _skew(1000.0) < 0.3


def test_devices_are_topped_up_to_the_least() -> None:
    _, parts = partition(
        _labelled([100] * 3), 30, DataParameters(partition="dirichlet", beta=0.001, least=10), 0
    )
    assert [len(part) for part in parts] == [10] * 30


def test_shards_hold_few_labels() -> None:
    labels = DATA.train_targets.numpy()
    _, parts = partition(DATA, 50, DataParameters(partition="shards", shards=2), 0)
    assert max(len(np.unique(labels[part])) for part in parts) <= 4
    assert {len(part) for part in parts} == {40}


def test_by_writer_each_device_is_one_writer_and_tests_on_their_samples() -> None:
    data = _written([3, 1, 1, 2, 3, 9, 3], [1, 2, 3, 3])
    restricted, parts = partition(data, 2, DataParameters(partition="writer"), 0)
    assert restricted.train_writers is not None
    assert restricted.test_writers is not None
    owners = [np.unique(restricted.train_writers[part]).tolist() for part in parts]
    assert all(len(owner) == 1 for owner in owners)
    assert set(restricted.test_writers) == {owner[0] for owner in owners}
    assert sum(map(len, parts)) == len(restricted.train_targets)


def test_writers_differ_with_the_seed() -> None:
    data = _written(list(range(50)), list(range(50)))
    first, second = (
        partition(data, 5, DataParameters(partition="writer"), seed)[0].train_writers for seed in (0, 1)
    )
    assert first is not None
    assert second is not None
    assert not np.array_equal(first, second)


def test_ten_thousand_devices_take_no_time() -> None:
    data = synthetic(72_000, (1,))
    for rule in RULES:
        began = time.process_time()
        _, parts = partition(data, 10_000, DataParameters(partition=rule, beta=0.3), 0)
        assert time.process_time() - began < 2
        assert len(parts) == 10_000


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(InputError, match=r"2000 .*'synthetic' .*2001 devices"):
        partition(DATA, 2001, DataParameters(partition="iid"), 0)
    with pytest.raises(InputError, match="names no writers"):
        partition(DATA, 2, DataParameters(partition="writer"), 0)
    with pytest.raises(InputError, match="has 2 writers, 3 are needed"):
        partition(_written([1, 2, 4], [1, 2]), 3, DataParameters(partition="writer"), 0)
    with pytest.raises(InputError, match="too few for 1500 × 2 shards"):
        partition(DATA, 1500, DataParameters(partition="shards"), 0)
    with pytest.raises(InputError, match="partition: unknown 'dirichelt'; did you mean 'dirichlet'"):
        partition(DATA, 2, DataParameters(partition="dirichelt"), 0)
    with pytest.raises(InputError, match="beta"):
        DataParameters(partition="dirichlet", beta=0)
    with pytest.raises(InputError, match="least"):
        DataParameters(partition="dirichlet", least=0)
    floats = DataSet("line", torch.zeros(9, 1), torch.zeros(9), torch.zeros(1, 1), torch.zeros(1), 1)
    with pytest.raises(InputError, match="needs class labels"):
        partition(floats, 3, DataParameters(partition="dirichlet"), 0)


def _labelled(counts: list[int]) -> DataSet:
    """So many training samples of each class, in the order of the classes."""
    labels = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
    inputs = torch.zeros(len(labels), 1)
    return DataSet("labelled", inputs, labels, inputs[:1], labels[:1], len(counts))


def _counts(data: DataSet, parts: list[IntArray]) -> list[list[int]]:
    """Samples of each class on each device."""
    labels = data.train_targets.numpy()
    return [np.bincount(labels[part], minlength=data.classes).tolist() for part in parts]


def test_every_device_holds_as_many_classes_as_asked_and_every_class_has_as_many_devices() -> None:
    """8 devices × 3 classes over 6 classes of 40: each class is on 4 devices, with 10 samples each."""
    data = _labelled([40] * 6)
    counts = np.array(
        _counts(data, partition(data, 8, DataParameters(partition="classes", classes_per_device=3), 0)[1])
    )
    assert ((counts == 10) | (counts == 0)).all()
    assert (counts > 0).sum(1).tolist() == [3] * 8
    assert (counts > 0).sum(0).tolist() == [4] * 6


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ("equal", [25, 25, 25, 25]),
        ("linear", [11, 21, 29, 39]),
        ("square", [5, 14, 30, 51]),
        ("exponential", [5, 10, 24, 61]),
        ((7, 1, 30, 2), [7, 1, 30, 2]),
    ],
)
def test_sizes_are_as_asked(sizes: str | tuple[int, ...], wanted: list[int]) -> None:
    """Of 100 samples each of 4 devices gets 2; the other 92 are cut at 1:2:3:4, 1:4:9:16 or e⁰:e¹:e²:e³."""
    _, parts = partition(_labelled([50, 50]), 4, DataParameters(partition="sizes", sizes=sizes), 0)
    assert [len(part) for part in parts] == wanted
    assert len(np.unique(np.concatenate(parts))) == sum(wanted)


def test_mixtures_are_as_asked_until_a_class_is_used_up() -> None:
    """The devices ask for 0.9 + 0.5 of class 0, which has 28: so each gets 20 samples in all."""
    data = _labelled([28, 100])
    _, parts = partition(data, 2, DataParameters(partition="distribution", distribution=((9, 1), (1, 1))), 0)
    assert _counts(data, parts) == [[18, 2], [10, 10]]


def test_mixtures_may_be_those_of_clusters() -> None:
    data = _labelled([60, 60])
    rows = DataParameters(partition="distribution", distribution=((1, 0), (0.25, 0.75)))
    _, parts = partition_clusters(data, np.array([0, 0, 1, 1]), rows, 0)
    assert _counts(data, parts) == [[24, 0], [24, 0], [6, 18], [6, 18]]


def test_several_writers_on_each_device() -> None:
    data = _written(list(range(9)) * 2, list(range(9)))
    restricted, parts = partition(data, 3, DataParameters(partition="writer", writers_per_device=2), 0)
    assert restricted.train_writers is not None
    owners = [np.unique(restricted.train_writers[part]).tolist() for part in parts]
    assert [len(owner) for owner in owners] == [2, 2, 2]
    assert len({writer for owner in owners for writer in owner}) == 6


def test_a_test_set_by_other_writers_is_kept_whole() -> None:
    restricted, parts = partition(_written([1, 1, 2, 3], [7, 8]), 2, DataParameters(partition="writer"), 0)
    assert len(restricted.test_targets) == 2
    assert sorted(map(len, parts)) in ([1, 1], [1, 2])


def _distances(cluster_beta: float, beta: float) -> tuple[float, float]:
    """How far apart class shares are: clusters from all devices, and devices from their cluster."""
    data, cluster = synthetic(24_000, (1,), classes=5), np.repeat(np.arange(4), 5)
    parameters = DataParameters(partition="dirichlet", beta=beta, cluster_beta=cluster_beta, least=20)
    _, parts = partition_clusters(data, cluster, parameters, 0)
    counts = np.array(_counts(data, parts), dtype=float)
    shares = counts / counts.sum(1, keepdims=True)
    by_cluster = np.stack([counts[cluster == i].sum(0) for i in range(4)])
    by_cluster /= by_cluster.sum(1, keepdims=True)
    everywhere = counts.sum(0) / counts.sum()
    return float(np.abs(by_cluster - everywhere).sum(1).mean()), float(
        np.abs(shares - by_cluster[cluster]).sum(1).mean()
    )


def test_skew_between_clusters_and_within_clusters_is_set_separately() -> None:
    """Each knob moves its own distance, from near 0 to near the largest, which is 2."""
    between, within = _distances(cluster_beta=0.05, beta=1000)
    assert between > 0.9
    assert within < 0.1
    between, within = _distances(cluster_beta=1000, beta=0.05)
    assert between < 0.1
    assert within > 0.9


def test_clusters_get_samples_in_proportion_to_their_devices() -> None:
    """Six devices and two: three quarters of the samples, on average over many classes."""
    data = synthetic(24_000, (1,), classes=400)
    cluster = np.array([0] * 6 + [1] * 2)
    _, parts = partition_clusters(
        data, cluster, DataParameters(partition="dirichlet", beta=5.0, cluster_beta=2.0), 0
    )
    assert sum(map(len, parts[:6])) / 20_000 == pytest.approx(0.75, abs=0.02)


def _reversed(data: DataSet, cluster: IntArray, _: DataParameters, __: np.random.Generator) -> list[IntArray]:
    return np.array_split(np.arange(len(data.train_targets))[::-1], cluster.size)


def test_a_rule_of_ones_own() -> None:
    own = BUILT_IN_ONLY.add_objects({"<data.partition reversed>": _reversed})
    parameters = DataParameters(partition="<data.partition reversed>")
    _, parts = partition_clusters(_labelled([6]), np.zeros(2, dtype=np.int64), parameters, 0, own)
    assert [part.tolist() for part in parts] == [[3, 4, 5], [0, 1, 2]]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0], [1], [2]], "returned 3 arrays for 2 devices"),
        ([[0, 1], []], "device 1 must get indices of samples, gets no sample"),
        ([[0], [1.5]], "device 1 must get indices of samples, gets float64"),
        ([[0], [6]], "device 1 gets sample 6, 'labelled' has 6"),
        ([[-1], [1]], "device 0 gets sample -1"),
        ([[0, 3], [3]], "sample 3 is given more than once"),
    ],
)
def test_wrong_rules_of_ones_own(parts: list[list[float]], message: str) -> None:
    own = BUILT_IN_ONLY.add_objects({"<r>": lambda *_: parts})
    with pytest.raises(InputError, match=f"partition '<r>': {message}"):
        partition_clusters(
            _labelled([6]), np.zeros(2, dtype=np.int64), DataParameters(partition="<r>"), 0, own
        )


def test_foreign_code_is_not_run() -> None:
    with pytest.raises(InputError, match="partition: 'os:getcwd' is not built in"):
        partition(DATA, 2, DataParameters(partition="os:getcwd"), 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "classes", "classes_per_device": 9}, r"classes_per_device = 9: .* from 2.* to 6"),
        (
            {"partition": "classes", "classes_per_device": 1},
            r"classes_per_device = 1: with 4 devices and 6 classes",
        ),
        ({"sizes": "cubic"}, "data.sizes: unknown 'cubic'"),
        ({"sizes": (3, 0)}, r"data.sizes\[1\] = 0"),
        (
            {"partition": "sizes", "sizes": (3, 4)},
            "2 numbers with the sum 7; must be one for each of 4 devices",
        ),
        ({"partition": "sizes", "sizes": (999, 999, 1, 2)}, "with a sum of at most 2000"),
        (
            {"partition": "distribution"},
            "has 0 rows; must have one for each of 4 devices, or for each of 1 clusters",
        ),
        ({"partition": "distribution", "distribution": ((1, 2),)}, r"distribution\[0\] = .*must be 6 shares"),
        ({"distribution": ((1, -2),)}, r"data.distribution\[0\]\[1\] = -2"),
        ({"distribution": (1, 2)}, r"data.distribution\[0\] = 1: must be a list"),
        ({"cluster_beta": 0}, "data.cluster_beta = 0"),
        ({"writers_per_device": 0}, "data.writers_per_device = 0"),
    ],
)
def test_wrong_values_of_the_rules_keys(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        partition(DATA, 4, DataParameters(**changes), 0)


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
