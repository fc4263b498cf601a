"""User-defined data: points on three intertwined spirals; the task is to say which spiral.

    cfel run examples/tiny.toml --set data.name=custom_data:spirals --set rounds.global=8

A loader is a function that takes `data.path` (not used here) and returns a `DataSet`: inputs and targets for
training and for testing, and the number of classes. Float inputs reach the model unchanged; images stored as
bytes are scaled batch by batch. The loader does not split the data over devices: `data.partition` does.
"""

from pathlib import Path

import numpy as np
import torch

from cfel.learning.data import DataSet

ARMS = 3
POINTS = 3000
NOISE = 0.05


def spirals(_: Path | None) -> DataSet:
    """Draws the same points every time; one in six is for testing."""
    draw = np.random.default_rng(0)
    label = draw.integers(ARMS, size=POINTS)
    along = np.sqrt(draw.random(POINTS))
    angle = 2 * np.pi * (label / ARMS + 0.5 * along)
    points = along[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    points += NOISE * draw.standard_normal(points.shape)
    inputs, targets = torch.from_numpy(points.astype(np.float32)), torch.from_numpy(label)
    test = POINTS // 6
    return DataSet("spirals", inputs[test:], targets[test:], inputs[:test], targets[:test], ARMS)
