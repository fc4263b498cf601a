"""The spirals of `custom_data` with four million points: four for each device of `million.toml`."""

from pathlib import Path

import custom_data

from cfel.learning.data import DataSet

DEVICES, EACH = 1_000_000, 4


def spirals(_: Path | None) -> DataSet:
    """Draws the same points every time; the first five hundred are for testing."""
    return custom_data.draw_spirals(DEVICES * EACH + 500, tests=500)
