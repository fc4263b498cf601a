"""Devices into tasks: large ones first, to save messages, small ones last, so that workers end together."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

MOST_IN_A_TASK = 64
# What one task's message or answer may hold; a worker and the driver have a few of them at a time.
TASK_BYTES = 64 * 2**20
# A task takes this part of what is left for each worker.
SHARES = 3

Item = TypeVar("Item")


def most_in_a_task(parameters: int, vectors: int) -> int:
    """How many devices may share a task.

    Args:
        parameters: d, of the model.
        vectors: dense vectors that travel with each device: what it remembers, and its upload.
    """
    return max(1, min(MOST_IN_A_TASK, TASK_BYTES // (4 * parameters * max(1, vectors))))


def guided_groups(items: Sequence[Item], workers: int, most: int) -> Iterator[Sequence[Item]]:
    """The items in order, cut into groups of at most `most`, ever smaller towards the end."""
    start = 0
    while start < len(items):
        left = len(items) - start
        size = min(most, max(1, left // (SHARES * workers)))
        yield items[start : start + size]
        start += size
