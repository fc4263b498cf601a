"""The array types of cfel, each under one name, and work on long arrays in blocks."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
Float32Array: TypeAlias = NDArray[np.float32]
IntArray: TypeAlias = NDArray[np.int64]
Int32Array: TypeAlias = NDArray[np.int32]
IndexArray: TypeAlias = NDArray[np.intp]
ByteArray: TypeAlias = NDArray[np.uint8]
BoolArray: TypeAlias = NDArray[np.bool_]

# Entries that are worked on at a time: they stay in the processor's cache.
AT_A_TIME = 32_768
# Entries of a sum, few enough that a linear algebra library does not start threads of its own.
SUMMED = 8192
# From this many entries on, several threads work on blocks; NumPy releases the interpreter lock.
MANY = 100_000


def run_blocks(work: Callable[[slice], None], size: int, block: int = AT_A_TIME) -> None:
    """Calls `work` with slices of `block` entries each, on several threads where there is much to do."""
    blocks = (slice(start, start + block) for start in range(0, size, max(1, block)))
    if size < MANY:
        for each in blocks:
            work(each)
        return
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(work, blocks):
            pass


def compute_in_blocks(function: Callable[..., FloatArray], *arrays: FloatArray) -> FloatArray:
    """An arithmetic function of arrays of one length, or of one entry, without long arrays in between."""
    size = max(map(len, arrays))
    if size <= AT_A_TIME:
        return function(*arrays)
    found, several = np.empty(size), [narrow(values) for values in arrays]

    def work(block: slice) -> None:
        found[block] = function(*(values if len(values) == 1 else values[block] for values in several))

    run_blocks(work, size)
    return found


def sum_in_blocks(function: Callable[..., float], *arrays: FloatArray) -> float:
    """The sum of what a function makes of every block, in their order."""
    size = len(arrays[0])
    sums = np.zeros(-(-size // SUMMED))

    def work(block: slice) -> None:
        sums[block.start // SUMMED] = function(*(values[block] for values in arrays))

    run_blocks(work, size, SUMMED)
    return float(sums.sum())


def narrow(values: FloatArray) -> FloatArray:
    """One entry of the last axis where all are the same by construction, which makes arithmetic cheaper."""
    return values[..., :1] if values.strides[-1] == 0 else values
