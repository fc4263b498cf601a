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
    """The loader; one point in six is for testing."""
    return draw_spirals(POINTS, tests=POINTS // 6)


def draw_spirals(points: int, tests: int) -> DataSet:
    """Draws the same points every time; `tests` of them are for testing."""
    draw = np.random.default_rng(0)
    label = draw.integers(ARMS, size=points)
    along = np.sqrt(draw.random(points))
    angle = 2 * np.pi * (label / ARMS + 0.5 * along)
    places = along[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    places += NOISE * draw.standard_normal(places.shape)
    inputs, targets = torch.from_numpy(places.astype(np.float32)), torch.from_numpy(label)
    return DataSet("spirals", inputs[tests:], targets[tests:], inputs[:tests], targets[:tests], ARMS)
