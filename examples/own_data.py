"""Data of one's own: points on three intertwined spirals, told apart by their two coordinates.

    cfel run examples/tiny.toml --set data.name=own_data:spirals --set rounds.global=8

A loader is a function from `data.path` (here there is none) to a `DataSet`: inputs and targets to train with
and to test with, and the number of classes. Floats go to the model as they are; images as bytes are scaled
batch by batch. Who gets which samples is `data.partition`'s business, not the loader's.
"""

from pathlib import Path

import numpy as np
import torch

from cfel.learning.data import DataSet

ARMS = 3
POINTS = 3000
NOISE = 0.05


def spirals(_: Path | None) -> DataSet:
    """The same points every time; one in six is kept for testing."""
    draw = np.random.default_rng(0)
    label = draw.integers(ARMS, size=POINTS)
    along = np.sqrt(draw.random(POINTS))
    angle = 2 * np.pi * (label / ARMS + 0.5 * along)
    points = along[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    points += NOISE * draw.standard_normal(points.shape)
    inputs, targets = torch.from_numpy(points.astype(np.float32)), torch.from_numpy(label)
    test = POINTS // 6
    return DataSet("spirals", inputs[test:], targets[test:], inputs[:test], targets[:test], ARMS)
