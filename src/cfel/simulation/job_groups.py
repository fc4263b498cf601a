"""Groups of jobs for workers: large ones first, to save messages, small ones last, to end together."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

MOST_IN_A_GROUP = 64
# What the message of one group, or of its results, may hold; a worker and the driver keep a few of them.
GROUP_BYTES = 64 * 2**20
# A group takes this part of what is left for each worker.
SHARES = 3

Item = TypeVar("Item")


def largest_group(parameters: int, vectors: int) -> int:
    """How many devices may share a group, so that its message stays within `GROUP_BYTES`.

    Args:
        parameters: d, of the model.
        vectors: dense vectors that travel with each device: its state, and its upload.
    """
    return max(1, min(MOST_IN_A_GROUP, GROUP_BYTES // (4 * parameters * max(1, vectors))))


def group_jobs(jobs: Sequence[Item], workers: int, most: int) -> Iterator[Sequence[Item]]:
    """The jobs in order, cut into groups of at most `most`, ever smaller towards the end."""
    start = 0
    while start < len(jobs):
        left = len(jobs) - start
        size = min(most, max(1, left // (SHARES * workers)))
        yield jobs[start : start + size]
        start += size
