"""Evaluates a model on the test set: the task's metric and loss, over all samples or a random subset.

Nothing is trained here. Batch-norm layers use their running statistics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cfel.arrays import FloatArray, IntArray
from cfel.errors import InputError
from cfel.learning.data.dataset import DataSet
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import DeviceData
from cfel.metric import ACCURACY, Metric
from cfel.seeding import make_generator, make_key

# Samples at once. Another number may change the last bits of a loss.
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over the evaluated samples."""

    metric: float  # the task's metric (accuracy: in [0, 1])
    loss: float  # the task's loss
    samples: int  # how many were evaluated
    # The metric of each of them, in the order of `choose_test_samples`.
    per_sample: FloatArray = field(compare=False, repr=False)
    losses: FloatArray = field(compare=False, repr=False)  # the loss of each of them
    # The task's further metrics of each of them, by name.
    metrics: Mapping[str, FloatArray] = field(default_factory=dict, compare=False, repr=False)


def choose_test_samples(count: int, samples: int | None, seed: int) -> Tensor:
    """The places of the test samples to evaluate, ascending."""
    if samples is None or samples >= count:
        return torch.arange(count)
    drawn = make_generator(seed, "test sample").choice(count, samples, replace=False)
    # In the order of the data set: reading scattered samples is slower.
    return torch.from_numpy(drawn).sort().values


def evaluate(model: FlatModel, workspace: Workspace, samples: int | None = None, seed: int = 0) -> Evaluation:
    if samples is not None and samples < 1:
        raise InputError(f"evaluate_samples: must be at least 1, got {samples}")
    data, flat = workspace.task.data, workspace.flat
    places = choose_test_samples(len(data.test_targets), samples, seed)
    flat.load(model)
    flat.module.eval()
    metric = loss = 0.0
    per_sample: list[FloatArray] = []
    losses: list[FloatArray] = []
    further: dict[str, list[FloatArray]] = {name: [] for name in workspace.task.metrics}
    with torch.no_grad(), workspace.seed_model(lambda: make_key(seed, "model in evaluation")):
        for part in torch.split(places, _BATCH):
            inputs = data.scale(data.test_inputs.index_select(0, part).to(workspace.device))
            targets = data.test_targets.index_select(0, part).to(workspace.device)
            outputs = workspace.run_model(inputs)
            # Sums in float64: over 10,000 samples, float32 would lose digits that the log shows.
            values = workspace.task.metric(outputs, targets).double()
            per_sample.append(values.cpu().numpy())
            metric += float(values.sum())
            values = workspace.task.loss(outputs, targets).double()
            losses.append(values.cpu().numpy())
            loss += float(values.sum())
            for name, function in workspace.task.metrics.items():
                further[name].append(function(outputs, targets).double().cpu().numpy())
    return Evaluation(
        metric / len(places),
        loss / len(places),
        len(places),
        np.concatenate(per_sample),
        np.concatenate(losses),
        {name: np.concatenate(parts) for name, parts in further.items()},
    )


class DeviceAccuracy(NamedTuple):
    """Mean over devices, mean over the worst tenth of them, and standard deviation."""

    mean: float
    worst: float
    spread: float


def measure_devices(
    data: DataSet, devices: Sequence[DeviceData], places: IntArray, metrics: Sequence[FloatArray]
) -> FloatArray:
    """The metric of every device on test samples like its own; NaN where there are none.

    Where samples have writers (FEMNIST), a device's test samples are those of its writers; otherwise all test
    samples count, weighted so that labels have the shares that they have on the device. Both are one rule:
    groups of test samples, weighted by their shares of the device's training samples. So nothing is drawn and
    nothing is evaluated twice. Without writers and labels (regression), all devices have the same test set.

    `places` are the test samples that were evaluated, `metrics` the values of each device's model for these;
    devices may share an array.
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


def summarise_devices(measured: FloatArray, metric: Metric = ACCURACY) -> DeviceAccuracy | None:
    """Mean, worst tenth (at least one device) and spread of the devices that have a value; None without."""
    values = np.sort(measured[np.isfinite(measured)])
    if not values.size:
        return None
    if metric.better == "smaller":
        values = values[::-1]
    worst = values[: max(1, round(0.1 * values.size))]
    return DeviceAccuracy(float(values.mean()), float(worst.mean()), float(values.std()))
