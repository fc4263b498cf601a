"""The metric of every device: on test samples like its own, from one evaluation of its edge model.

Where samples have writers (FEMNIST), a device's test samples are those of its writers; otherwise all test
samples count, weighted so that labels have the shares that they have on the device. Both are one rule: groups
of test samples, weighted by their shares of the device's training samples. So nothing is drawn and nothing is
evaluated twice. Without writers and labels (regression), the test set is the same for all devices.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from cfel.arrays import FloatArray, IntArray
from cfel.learning.data.dataset import DataSet
from cfel.learning.task import DeviceData

WORST_SHARE = 0.1


class DeviceAccuracy(NamedTuple):
    """Mean over devices, mean over the worst tenth of them, and standard deviation."""

    mean: float
    worst: float
    spread: float


def measure_devices(
    data: DataSet, devices: Sequence[DeviceData], places: IntArray, metrics: Sequence[FloatArray]
) -> FloatArray:
    """The metric of every device; NaN where no test sample is like its own.

    Args:
        data: the data set.
        devices: what each device holds.
        places: the test samples that were evaluated.
        metrics: of each device's model, one value per evaluated sample; devices may share an array.
    """
    groups = _find_groups(data)
    if groups is None:
        return np.array([float(values.mean()) for values in metrics])
    train, test = groups[0], groups[1][places]
    size = int(max(train.max(), test.max())) + 1
    tested = np.bincount(test, minlength=size)
    found = np.full(len(devices), np.nan)
    for number, (device, values) in enumerate(zip(devices, metrics, strict=True)):
        held = np.bincount(train[device.indices], minlength=size)
        weights = np.where(tested > 0, held / np.maximum(tested, 1), 0.0)[test]
        if weights.any():
            found[number] = float(np.average(values, weights=weights))
    return found


def _find_groups(data: DataSet) -> tuple[IntArray, IntArray] | None:
    """Group of each training and test sample: its writer or its label, numbered from 0; None without."""
    if data.train_writers is not None and data.test_writers is not None:
        both = np.concatenate([data.train_writers, data.test_writers])
    elif data.train_targets.dim() == 1 and data.train_targets.dtype == torch.int64:
        both = torch.cat([data.train_targets, data.test_targets]).numpy()
    else:
        return None
    numbers = np.unique(both, return_inverse=True)[1].astype(np.int64)
    return numbers[: len(data.train_targets)], numbers[len(data.train_targets) :]


def summarise_devices(accuracies: FloatArray) -> DeviceAccuracy | None:
    """Mean, worst tenth (at least one device) and spread of the devices that have a value; None without."""
    values = np.sort(accuracies[np.isfinite(accuracies)])
    if not values.size:
        return None
    worst = values[: max(1, round(WORST_SHARE * values.size))]
    return DeviceAccuracy(float(values.mean()), float(worst.mean()), float(values.std()))
