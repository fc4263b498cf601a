"""A model with batch norm for `compare_commits`, which lays this file beside the experiment; torch only."""

import math

from torch import nn


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A perceptron with batch norm and dropout."""
    first = nn.Linear(math.prod(input_shape), 16)
    rest = (nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, classes))
    return nn.Sequential(nn.Flatten(), first, *rest)
