"""Tasks as users bring them; tests name them as "tests.tasks:function"."""

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cfel.learning.data import digits as load_digits
from cfel.learning.data.dataset import DataSet
from cfel.learning.task import Task, cross_entropy
from tests.architectures import perceptron


def _margin(outputs: Tensor, targets: Tensor) -> Tensor:
    own = F.one_hot(targets, outputs.shape[1]).bool()
    return outputs[own] - outputs.masked_fill(own, -torch.inf).amax(1)


def digits(_path: Path | None) -> Task:
    """Digits with two further metrics."""
    return Task(load_digits(), perceptron, metrics={"cross_entropy": cross_entropy, "margin": _margin})


def _not_a_number(outputs: Tensor, _targets: Tensor) -> Tensor:
    return torch.full(outputs.shape[:1], torch.nan)


def endless(_path: Path | None) -> Task:
    """Digits with metrics that are no finite numbers."""
    infinite = {"infinite": lambda outputs, _: torch.full(outputs.shape[:1], torch.inf)}
    return Task(load_digits(), perceptron, metrics={**infinite, "undefined": _not_a_number})


def undefined(_path: Path | None) -> Task:
    """Digits whose metric is no number."""
    return Task(load_digits(), perceptron, metric=_not_a_number)


def infinite(_path: Path | None) -> Task:
    """Digits whose metric is infinite."""
    return Task(load_digits(), perceptron, metric=lambda outputs, _: torch.full(outputs.shape[:1], torch.inf))


def _line(_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, outputs))


def regression(_path: Path | None) -> Task:
    """A sine wave, with the absolute error as a further metric."""
    x = torch.linspace(-1, 1, 600).unsqueeze(1)
    y = torch.sin(3 * x)
    return Task(
        DataSet("wave", x[::2], y[::2], x[1::2], y[1::2], classes=1),
        _line,
        loss=lambda outputs, targets: (outputs - targets).square().sum(1),
        metric=lambda outputs, targets: ((outputs - targets).abs().sum(1) < 0.3).float(),
        metrics={"mae": lambda outputs, targets: (outputs - targets).abs().sum(1)},
    )
