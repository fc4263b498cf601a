"""The k entries of largest magnitude, exactly, at memory speed.

`find_largest` returns what a full sort by (magnitude descending, index ascending) would: exactly k entries;
of equal magnitudes, the lowest indices. It works in three steps:

1. A sample of at most about 65,000 entries brackets the k-th magnitude between two numbers, low and high.
2. One pass over the vector collects the entries that are at least low: a few more than k.
3. The exact threshold is found among the few of these that are below high.

The pass works in pieces that fit into the cache. If the vector has a structure that misleads the sample, the
pass finds fewer than k entries. Then all magnitudes are partitioned: the same result, only slower. How a
compressor uses it is in `compressors`, and how indices become bytes in `packing`.
"""

import numpy as np

from cfel.arrays import Float32Array, Int32Array, IntArray
from cfel.errors import InputError

_SAMPLE = 1 << 16
# The longest piece. All have the same length, as a short last one would take as much time.
_PIECE = 1 << 17
# 128 KiB of float32, which a core's cache holds together with its copy.
_SMALL = 1 << 15


def find_largest(vector: Float32Array, k: int) -> tuple[Int32Array, Float32Array]:
    """Finds the k entries of largest magnitude; of equal ones, those with the lowest indices.

    Raises:
        InputError: k is out of range, or an entry is not a finite number.
    """
    if not 0 <= k <= vector.size:
        raise InputError(f"k: must lie in 0 … {vector.size}, got {k}")
    if vector.size >= 2**31:
        raise InputError(f"vector: {vector.size} entries are more than 32-bit indices reach")
    if k == 0 or k == vector.size:
        _check_finite(vector, vector)
        return np.arange(k, dtype=np.int32), vector[:k].copy()
    if vector.size <= _SMALL:
        return _find_largest_of_few(vector, k)
    low, high = _bracket_threshold(vector, k)
    indices, values = _collect_at_least(vector, low, k)
    # The sample was misleading: fewer than k entries reach its lower bound.
    if values.size < k:
        return _find_largest_of_few(vector, k)
    _check_finite(vector, values)
    magnitude = np.abs(values)
    kept = _select_at_least(magnitude, _find_value_at_rank(magnitude, values.size - k, high), k)
    return indices[kept], values[kept]


def _find_largest_of_few(vector: Float32Array, k: int) -> tuple[Int32Array, Float32Array]:
    """`find_largest` for a vector that fits into the cache: no sample, no pieces."""
    magnitude = np.abs(vector)
    _check_finite(vector, magnitude)
    place = vector.size - k
    threshold = np.partition(magnitude, place)[place]
    found = _select_at_least(magnitude, threshold, k)
    return found.astype(np.int32), vector[found]


def _find_value_at_rank(magnitude: Float32Array, place: int, high: np.float32) -> np.float32:
    """The magnitude that an ascending sort would put at `place`; fast if few are below `high`."""
    band = magnitude[magnitude < high]
    if band.size <= place:
        band = magnitude
    return np.float32(np.partition(band, place)[place])


def _select_at_least(magnitude: Float32Array, threshold: np.float32, k: int) -> IntArray:
    """Positions of k magnitudes that are at least the threshold; of those equal to it, the first."""
    # More than k only if several equal the threshold: then the last of those are dropped.
    found = np.flatnonzero(magnitude >= threshold)
    if found.size > k:
        found = np.delete(found, np.flatnonzero(magnitude[found] == threshold)[k - found.size :])
    return found


def measure_kept_energy(vector: Float32Array, shares: tuple[float, ...]) -> tuple[float, ...]:
    """The share of ‖x‖² in the largest entries, for several shares θ of entries kept.

    It is estimated on about 65,000 evenly spaced entries, which is cheap, and exact for smaller vectors.
    """
    energy = np.square(vector[:: _stride(vector.size)], dtype=np.float64)
    energy[::-1].sort()
    total = np.concatenate([[0.0], np.cumsum(energy)])
    if total[-1] == 0:
        return tuple(1.0 for _ in shares)
    return tuple(float(total[round(share * energy.size)] / total[-1]) for share in shares)


def _stride(size: int) -> int:
    """An odd step: an even one could hit the same columns of a layer again and again."""
    return max(1, size // _SAMPLE) | 1


def _bracket_threshold(vector: Float32Array, k: int) -> tuple[np.float32, np.float32]:
    """Two magnitudes with the k-th largest between them, within four standard deviations of the sample."""
    # At most a twentieth of the vector: sorting a larger sample would cost more than it saves.
    sample = np.abs(vector[:: max(_stride(vector.size), 21)])
    share = k / vector.size
    rank, slack = share * sample.size, 4 * np.sqrt(share * (1 - share) * sample.size) + 4
    below, above = sample.size - 1 - int(rank + slack), sample.size - 1 - int(rank - slack)
    sample.partition([max(below, 0), min(max(above, 0), sample.size - 1)])
    low = sample[below] if below >= 0 else np.float32(0)
    high = sample[above] if above < sample.size else np.float32(np.inf)
    return low, high


def _collect_at_least(vector: Float32Array, bound: np.float32, count: int) -> tuple[Int32Array, Float32Array]:
    """Collects the entries whose magnitude is not below `bound`, NaN included: indices and values.

    `flatnonzero` is about three times faster on masks with more than a tenth of their entries true, as NumPy
    then avoids branches. Extra true entries behind a sparse mask get it there, and are cut off the result.
    """
    size = -(-vector.size // -(-vector.size // _PIECE))
    tail = size // 8 if 0.02 < count / vector.size < 0.11 else 0
    magnitude, mask = np.empty(size, np.float32), np.empty(size + tail, np.bool_)
    mask[size:] = True
    indices, values = [], []
    for start in range(0, vector.size, size):
        piece = vector[start : start + size]
        own = mask[: piece.size]
        np.less(np.abs(piece, out=magnitude[: piece.size]), bound, out=own)
        np.logical_not(own, out=own)
        mask[piece.size : size] = False
        found = np.flatnonzero(mask)[: -tail or None]
        values.append(piece.take(found))
        indices.append(np.add(found, start, dtype=np.int32, casting="unsafe"))
    return np.concatenate(indices), np.concatenate(values)


def _check_finite(vector: Float32Array, part: Float32Array) -> None:
    """Raises if an entry is not finite; the sum of `part` decides whether a closer look is needed."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(part.sum()):
            return
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise InputError(f"update: entry {bad[0]} is {vector[bad[0]]}; has the training diverged?")
