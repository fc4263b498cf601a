"""Torch's state in a worker: its seeded generator, its threads and its allocator; and a map over threads.

One torch thread per worker makes results independent of the worker. The allocator's settings only affect
speed. The settings are safe to apply twice. Workers that train devices are started by the executors.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock
from typing import TypeVar

import torch

_LOCK = RLock()


@contextmanager
def seed_generator(key: int, device: torch.device | None = None) -> Iterator[None]:
    """Seeds torch's generators of the CPU and of `device` for the block, and restores them after it.

    Layers draw from them when they are built, and some (dropout) when they train. There is one for the whole
    process, so a block has it to itself: other threads wait. All else in cfel draws from keyed streams.
    """
    # Not `fork_rng` and `manual_seed`: they visit every kind of device, which takes longer than a small step.
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    with _LOCK:
        states = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(key % 2**63)
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


Item = TypeVar("Item")
Result = TypeVar("Result")

# mallopt(3): parameter numbers, and the largest size glibc accepts for the second.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST_MMAP_THRESHOLD = 32 * 1024 * 1024
_NEVER_TRIM = 2**31 - 1


def prepare_thread() -> None:
    """Limits torch to one thread for operations of the calling thread."""
    torch.set_num_threads(1)


def map_in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int = 0
) -> list[Result]:
    """Applies a function to every item, in at most `workers` threads; results are in the items' order."""
    cores = os.cpu_count() or 1
    # A comparison on a cluster may have hundreds of workers; the threads here are on one machine.
    count = max(1, min(workers or cores, cores, len(items)))
    with ThreadPoolExecutor(count, initializer=prepare_thread) as pool:
        return list(pool.map(function, items))


def prepare_process() -> bool:
    """Makes the allocator keep freed memory; call it before threads start.

    A device update of a large model allocates and frees about 50 MB. Returning the pages to the system each
    time, to get them back zeroed, costs about 5 % of the training time.

    Returns:
        Whether this system's C library accepted the settings (glibc does).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = (
        (_TRIM_THRESHOLD, _NEVER_TRIM),
        (_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
        (_ARENA_MAX, 1),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)
