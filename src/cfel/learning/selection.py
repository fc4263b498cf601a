"""The k entries of largest magnitude, exactly, at memory speed.

`largest` gives what a full sort by (magnitude descending, index ascending) would: exactly k entries, ties
going to the lowest index. It works in three steps:

1. a sample of some 65,000 entries brackets the k-th magnitude between two numbers, low and high;
2. one pass over the vector, in pieces that stay in cache, marks everything at or above low;
3. the exact threshold is found among the few marked entries below high.

Should the sample mislead (all entries equal, structure in the vector), step 3 notices and falls back on a
partition of all magnitudes; the answer is the same, only later. Compression as such is next door.
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
        _check_finite(np.arange(vector.size), vector)
        return np.arange(k, dtype=np.int32), vector[:k].copy()
    low, high = _bracket(vector, k)
    indices, values = _at_least(vector, low, share=k / vector.size)
    _check_finite(indices, values)
    if indices.size < k:
        indices, values, high = np.arange(vector.size, dtype=np.int32), vector, np.float32(np.inf)
    keep = _exact(np.abs(values), k, high)
    return indices.compress(keep), values.compress(keep)


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
    if vector.size <= _SMALL:
        return np.float32(0), np.float32(np.inf)
    sample = np.abs(vector[:: _stride(vector.size)])
    share = k / vector.size
    rank, slack = share * sample.size, 4 * np.sqrt(share * (1 - share) * sample.size) + 4
    below, above = sample.size - 1 - int(rank + slack), sample.size - 1 - int(rank - slack)
    sample.partition([max(below, 0), min(max(above, 0), sample.size - 1)])
    low = sample[below] if below >= 0 else np.float32(0)
    high = sample[above] if above < sample.size else np.float32(np.inf)
    return low, high


def _at_least(vector: Floats, low: np.float32, share: float) -> tuple[Indices, Floats]:
    """The entries of magnitude not less than `low` (so NaN is among them): indices, ascending, and values.

    NumPy lists the true entries of a mask without branching, some three times faster, when more than a tenth
    of them are true. A tail of true entries behind the mask takes sparse masks there.
    """
    size = min(_PIECE, vector.size)
    tail = size // 8 if 0.02 < share < 0.11 else 0
    magnitude, mask = np.empty(size, dtype=np.float32), np.empty(size + tail, dtype=np.bool_)
    mask[size:] = True
    indices: list[Indices] = []
    values: list[Floats] = []
    for start in range(0, vector.size, size):
        piece = vector[start : start + size]
        sized = np.abs(piece, out=magnitude[: piece.size])
        np.less(sized, low, out=mask[: piece.size])
        np.logical_not(mask[: piece.size], out=mask[: piece.size])
        mask[piece.size : size] = False
        found = np.flatnonzero(mask)[: -tail or None]
        values.append(piece.take(found))
        indices.append(np.add(found, start, dtype=np.int32, casting="unsafe"))
    return np.concatenate(indices), np.concatenate(values)


def _exact(magnitudes: Floats, k: int, high: np.float32) -> NDArray[np.bool_]:
    """Marks the k largest of the candidates, which contain all of the answer and come in ascending order."""
    above = magnitudes >= high
    missing = k - int(np.count_nonzero(above))
    band = magnitudes[~above] if missing > 0 else magnitudes
    wanted = missing if missing > 0 else k
    if wanted == band.size:
        return np.ones(magnitudes.size, dtype=np.bool_)
    threshold = np.partition(band, band.size - wanted)[band.size - wanted]
    keep: NDArray[np.bool_] = magnitudes > threshold
    ties = np.flatnonzero(magnitudes == threshold)
    keep[ties[: k - int(np.count_nonzero(keep))]] = True
    return keep


def _check_finite(indices: NDArray[np.integer], values: Floats) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise InputError(f"update: entry {indices[bad[0]]} is {values[bad[0]]}; has the training diverged?")
