"""The metric of every device, on numbers small enough to weigh by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cfel.learning.data.dataset import DataSet
from cfel.learning.evaluate import measure_devices, summarise_devices
from cfel.learning.task import DeviceData

LABELS = torch.tensor([0, 0, 0, 1])
TEST_LABELS = torch.tensor([0, 0, 1])
DATA = DataSet("tiny", torch.zeros(4, 1), LABELS, torch.zeros(3, 1), TEST_LABELS, 2)
PLACES = np.arange(3)
RIGHT = np.array([1.0, 0.0, 1.0])
"""One of two samples of label 0 and the one of label 1."""


def devices(data: DataSet, *indices: list[int]) -> list[DeviceData]:
    return [DeviceData(data, np.array(each)) for each in indices]


def test_by_the_labels_of_the_device() -> None:
    """Only 0: half of it is right. Only 1: all. Two of 0 and one of 1: 2/3 · 0.5 + 1/3 · 1."""
    held = devices(DATA, [0, 1], [3], [0, 1, 3])
    assert measure_devices(DATA, held, PLACES, [RIGHT] * 3) == pytest.approx([0.5, 1.0, 2 / 3])


def test_each_device_by_its_own_model() -> None:
    held = devices(DATA, [0], [0])
    assert measure_devices(DATA, held, PLACES, [RIGHT, 1 - RIGHT]).tolist() == [0.5, 0.5]
    assert measure_devices(DATA, held, np.array([0]), [RIGHT[:1], 1 - RIGHT[:1]]).tolist() == [1, 0]


def test_by_the_writers_of_the_device() -> None:
    """Writer 7 wrote the first two test samples, writer 9 none: nothing is known about that device."""
    data = replace(DATA, train_writers=np.array([7, 7, 9, 5]), test_writers=np.array([7, 7, 5]))
    found = measure_devices(data, devices(data, [0, 1], [2], [3]), PLACES, [RIGHT] * 3)
    assert found[[0, 2]].tolist() == [0.5, 1.0]
    assert np.isnan(found[1])


def test_without_labels_all_devices_are_alike() -> None:
    data = DataSet("line", torch.zeros(4, 1), torch.zeros(4), torch.zeros(3, 1), torch.zeros(3), 1)
    assert measure_devices(data, devices(data, [0], [1]), PLACES, [RIGHT] * 2) == pytest.approx([2 / 3] * 2)


def test_mean_worst_tenth_and_spread() -> None:
    """Of 20 devices the worst two; one device is the worst of itself; NaN is left out."""
    found = summarise_devices(np.array([*np.linspace(0.05, 1, 20), np.nan]))
    assert found is not None
    assert found == pytest.approx((0.525, 0.075, np.linspace(0.05, 1, 20).std()))
    assert summarise_devices(np.array([0.3])) == pytest.approx((0.3, 0.3, 0.0))
    assert summarise_devices(np.array([np.nan])) is None
