r"""A user-defined task: fit a curve, with a loss and a metric for regression.

    cfel run examples/tiny.toml --set data.task=custom_task_regression:build --set data.partition=iid \
        --set rounds.global=10 --set rounds.local=10 --set local.learning_rate=0.1

A task is a function that takes `data.path` and returns a `Task`: data, model, loss, metric. Loss and metric
return one value per sample; cfel takes the mean. A `Metric` says what reports call it, its unit, and which
direction is better: here the mean absolute error, where smaller is better. Further `metrics` are recorded
under their own names: here the share of points predicted to within 0.1. There are no classes to split
unevenly, so the command sets `data.partition = "iid"`.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from cfel.learning.data import DataSet
from cfel.learning.task import Task
from cfel.metric import Metric


def build(_: Path | None) -> Task:
    """Builds the task: a sine wave with a little noise, learned from 2,000 points."""
    return Task(
        data=_waves(2400, noise=0.02),
        model=_network,
        loss=_squared_error,
        metric=Metric("absolute error", unit="", better="smaller", function=_absolute_error),
        metrics={"within 0.1": Metric("within 0.1", function=_within_a_tenth)},
    )


def _waves(points: int, noise: float) -> DataSet:
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (points, 1))
    y = 0.5 * np.sin(np.pi * x) + noise * draw.standard_normal(x.shape)
    inputs, targets = (torch.from_numpy(part.astype(np.float32)) for part in (x, y))
    test = points // 6
    return DataSet("waves", inputs[test:], targets[test:], inputs[:test], targets[:test], classes=1)


def _network(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 64), nn.ReLU(), nn.Linear(64, outputs))


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(1)


def _absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean(1)


def _within_a_tenth(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets).abs().amax(1) < 0.1).to(torch.float32)
