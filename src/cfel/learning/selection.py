"""The k entries of largest magnitude, exactly, at memory speed.

`largest` gives what a full sort by (magnitude descending, index ascending) would: exactly k entries, ties
going to the lowest index. It works in three steps:

1. a sample of at most some 65,000 entries brackets the k-th magnitude between two numbers, low and high;
2. one pass over the vector counts what lies at or above high and collects the few entries between: the exact
   threshold is among them;
3. a second pass gathers everything at or above the threshold.

Both passes go in pieces that stay in cache. Should the sample mislead (all entries equal, structure in the
vector), step 2 notices and all magnitudes are partitioned instead; the answer is the same, only later.
Compression as such is next door.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cfel.errors import InputError

Floats: TypeAlias = NDArray[np.float32]
Indices: TypeAlias = NDArray[np.int32]

_SAMPLE = 1 << 16
_PIECE = 1 << 17
_SMALL = 1 << 15


def largest(vector: Floats, k: int) -> tuple[Indices, Floats]:
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
    above, band = _between(vector, low, high)
    if not 0 < k - above <= band.size:
        above, band = 0, np.abs(vector)
    _check_finite(vector, band)
    threshold = np.partition(band, band.size - (k - above))[band.size - (k - above)]
    ties = int(np.count_nonzero(band == threshold))
    excess = above + int(np.count_nonzero(band > threshold)) + ties - k
    indices, values = _at_least(vector, threshold, k + excess)
    _check_finite(vector, values)
    if excess:
        late = np.flatnonzero(np.abs(values) == threshold)[ties - excess :]
        indices, values = np.delete(indices, late), np.delete(values, late)
    return indices, values


def _largest_of_few(vector: Floats, k: int) -> tuple[Indices, Floats]:
    """The same for a vector that fits into cache: everything at once."""
    magnitude = np.abs(vector)
    _check_finite(vector, magnitude)
    place = vector.size - k
    threshold = np.partition(magnitude, place)[place]
    found = np.flatnonzero(magnitude >= threshold)
    if found.size > k:
        late = np.flatnonzero(magnitude[found] == threshold)[k - found.size :]
        found = np.delete(found, late)
    return found.astype(np.int32), vector[found]


def kept_energy(vector: Floats, shares: tuple[float, ...]) -> tuple[float, ...]:
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


def _bracket(vector: Floats, k: int) -> tuple[np.float32, np.float32]:
    """Two magnitudes between which the k-th largest lies, up to four standard deviations of the sample."""
    # Of smaller vectors a twentieth is enough: sorting the sample must not cost more than what it saves.
    sample = np.abs(vector[:: max(_stride(vector.size), 21)])
    share = k / vector.size
    rank, slack = share * sample.size, 4 * np.sqrt(share * (1 - share) * sample.size) + 4
    below, above = sample.size - 1 - int(rank + slack), sample.size - 1 - int(rank - slack)
    sample.partition([max(below, 0), min(max(above, 0), sample.size - 1)])
    low = sample[below] if below >= 0 else np.float32(0)
    high = sample[above] if above < sample.size else np.float32(np.inf)
    return low, high


def _between(vector: Floats, low: np.float32, high: np.float32) -> tuple[int, Floats]:
    """How many magnitudes are at least `high`, and those from `low` to below it (NaN is among these)."""
    size = min(_PIECE, vector.size)
    magnitude, below, above = np.empty(size, np.float32), np.empty(size, np.bool_), np.empty(size, np.bool_)
    count, band = 0, []
    for start in range(0, vector.size, size):
        piece = vector[start : start + size]
        sized = np.abs(piece, out=magnitude[: piece.size])
        less = np.less(sized, low, out=below[: piece.size])
        more = np.greater_equal(sized, high, out=above[: piece.size])
        count += int(np.count_nonzero(more))
        band.append(sized.take(np.flatnonzero(np.equal(less, more, out=less))))
    return count, np.concatenate(band)


def _at_least(vector: Floats, threshold: np.float32, count: int) -> tuple[Indices, Floats]:
    """The `count` entries whose magnitude is at least `threshold`: indices, ascending, and values.

    NumPy lists the true entries of a mask without branching, some three times faster, when more than a tenth
    of them are true. A tail of true entries behind the mask takes sparse masks there.
    """
    size = min(_PIECE, vector.size)
    tail = size // 8 if 0.02 < count / vector.size < 0.11 else 0
    magnitude, mask = np.empty(size, np.float32), np.empty(size + tail, np.bool_)
    mask[size:] = True
    indices, values, filled = np.empty(count, np.int32), np.empty(count, np.float32), 0
    for start in range(0, vector.size, size):
        piece = vector[start : start + size]
        sized = np.abs(piece, out=magnitude[: piece.size])
        np.greater_equal(sized, threshold, out=mask[: piece.size])
        mask[piece.size : size] = False
        found = np.flatnonzero(mask)[: -tail or None]
        stop = filled + found.size
        np.take(piece, found, out=values[filled:stop], mode="clip")
        np.add(found, start, out=indices[filled:stop], casting="unsafe")
        filled = stop
    return indices, values


def _check_finite(vector: Floats, part: Floats) -> None:
    """Looks closer only if the sum of a part of the vector says that something may be wrong."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(part.sum()):
            return
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise InputError(f"update: entry {bad[0]} is {vector[bad[0]]}; has the training diverged?")
