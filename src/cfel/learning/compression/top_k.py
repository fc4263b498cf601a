"""The k entries of largest magnitude, exactly, at memory speed.

`largest` gives what a full sort by (magnitude descending, index ascending) would: exactly k entries, ties
going to the lowest index. It works in three steps:

1. a sample of at most some 65,000 entries brackets the k-th magnitude between two numbers, low and high;
2. one pass over the vector collects the entries not below low: a few more than k;
3. the exact threshold is found among the few of these that lie below high.

The pass goes in pieces that stay in cache. Should the sample mislead (structure in the vector), fewer than k
are found and all magnitudes are partitioned instead; the answer is the same, only later.
Compression as such is next door.
"""

import numpy as np

from cfel.arrays import Float32Array, Int32Array, IntArray
from cfel.errors import InputError

_SAMPLE = 1 << 16
# The longest piece; all are equally long, as a short last one would take as much time.
_PIECE = 1 << 17
_SMALL = 1 << 15


def largest(vector: Float32Array, k: int) -> tuple[Int32Array, Float32Array]:
    """The k entries of largest magnitude: indices, ascending, and values; ties go to the lowest index.

    Args:
        vector: float32, one-dimensional, finite.
        k: how many, 0 … len(vector).

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
        return _largest_of_few(vector, k)
    low, high = _bracket(vector, k)
    indices, values = _at_least(vector, low, k)
    if values.size < k:
        return _largest_of_few(vector, k)
    _check_finite(vector, values)
    magnitude = np.abs(values)
    kept = _kept(magnitude, _smallest(magnitude, values.size - k, high), k)
    return indices[kept], values[kept]


def _largest_of_few(vector: Float32Array, k: int) -> tuple[Int32Array, Float32Array]:
    """The same for a vector that fits into cache: everything at once."""
    magnitude = np.abs(vector)
    _check_finite(vector, magnitude)
    place = vector.size - k
    threshold = np.partition(magnitude, place)[place]
    found = _kept(magnitude, threshold, k)
    return found.astype(np.int32), vector[found]


def _smallest(magnitude: Float32Array, place: int, high: np.float32) -> np.float32:
    """The magnitude that a sort would put at `place`; quick if few lie below `high`, and it is among them."""
    band = magnitude[magnitude < high]
    if band.size <= place:
        band = magnitude
    return np.float32(np.partition(band, place)[place])


def _kept(magnitude: Float32Array, threshold: np.float32, k: int) -> IntArray:
    """Places of the k magnitudes at or above the k-th largest; of those equal to it, the first."""
    found = np.flatnonzero(magnitude >= threshold)
    if found.size > k:
        found = np.delete(found, np.flatnonzero(magnitude[found] == threshold)[k - found.size :])
    return found


def kept_energy(vector: Float32Array, shares: tuple[float, ...]) -> tuple[float, ...]:
    """The part of ‖x‖² that the largest entries carry, for several shares θ of entries kept.

    Estimated on some 65,000 evenly spaced entries, so it costs next to nothing; exact below that size.

    Args:
        vector: float32, one-dimensional.
        shares: values of θ in [0, 1].
    """
    energy = np.square(vector[:: _stride(vector.size)], dtype=np.float64)
    energy[::-1].sort()
    total = np.concatenate([[0.0], np.cumsum(energy)])
    if total[-1] == 0:
        return tuple(1.0 for _ in shares)
    return tuple(float(total[round(share * energy.size)] / total[-1]) for share in shares)


def _stride(size: int) -> int:
    """Odd, so that it does not fall in step with the widths of layers."""
    return max(1, size // _SAMPLE) | 1


def _bracket(vector: Float32Array, k: int) -> tuple[np.float32, np.float32]:
    """Two magnitudes between which the k-th largest lies, up to four standard deviations of a sample."""
    # Of smaller vectors a twentieth is enough: sorting the sample must not cost more than what it saves.
    sample = np.abs(vector[:: max(_stride(vector.size), 21)])
    share = k / vector.size
    rank, slack = share * sample.size, 4 * np.sqrt(share * (1 - share) * sample.size) + 4
    below, above = sample.size - 1 - int(rank + slack), sample.size - 1 - int(rank - slack)
    sample.partition([max(below, 0), min(max(above, 0), sample.size - 1)])
    low = sample[below] if below >= 0 else np.float32(0)
    high = sample[above] if above < sample.size else np.float32(np.inf)
    return low, high


def _at_least(vector: Float32Array, bound: np.float32, count: int) -> tuple[Int32Array, Float32Array]:
    """The entries whose magnitude is not below `bound`, NaN among them: indices, ascending, and values.

    NumPy lists the true entries of a mask without branching, some three times faster, when more than a tenth
    of them are true. A tail of true entries behind the mask takes sparse masks there; `count` is about how
    many entries will be found.
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
    """Looks closer only if the sum of a part of the vector says that something may be wrong."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(part.sum()):
            return
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise InputError(f"update: entry {bad[0]} is {vector[bad[0]]}; has the training diverged?")
