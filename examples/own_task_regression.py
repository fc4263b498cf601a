r"""A task of one's own: fitting a curve, with a loss and a measure that are not those of classes.

    cfel run examples/tiny.toml --set data.task=own_task_regression:build --set data.partition=iid \
        --set rounds.global=10 --set rounds.local=10 --set local.learning_rate=0.1

A task is a function from `data.path` to a `Task`: data, model, loss and metric. Loss and metric are given per
sample and averaged by whoever asks for them. The metric is what logs and reports call accuracy, so larger
must be better: here it is the share of points that are predicted to within a tenth. There are no classes to
share out unevenly, hence `data.partition = "iid"`.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from cfel.learning.data import DataSet
from cfel.learning.task import Task


def build(_: Path | None) -> Task:
    """Two waves with a little noise, to be learned from 2,000 points."""
    return Task(
        data=_waves(2400, noise=0.02),
        model=_network,
        loss=_squared_error,
        metric=_within_a_tenth,
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


def _within_a_tenth(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets).abs().amax(1) < 0.1).to(torch.float32)
