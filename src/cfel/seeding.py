"""Random streams keyed by (seed, purpose, global round, edge round, device).

A key names one stream for good: who draws from it, when, in which order or in which process changes nothing.
That is what makes two schemes meet the same conditions, a resumed run equal an undisturbed one, and a
deployment equal its simulation. There is no global generator anywhere in cfel.

Two shapes of the same idea:

* `make_generator` — one NumPy generator for one key, for shuffles and small draws;
* `draw_uniforms` — a (devices × draws) block, where row n belongs to device n whatever the fleet's size, for
  conditions of a million devices at memory speed.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from cfel.arrays import FloatArray


def make_key(seed: int, purpose: str, *index: int) -> int:
    """A 128-bit integer that names the stream; equal arguments give equal keys on every platform.

    Args:
        seed: the experiment's seed, any integer.
        purpose: what the draws are for, e.g. "channel"; different purposes never share a stream.
        *index: global round, edge round, device, ... as far as they apply.
    """
    text = "/".join([str(int(seed)), purpose, *(str(int(i)) for i in index)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def make_generator(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """The generator of one stream (see `make_key` for the arguments)."""
    return make_generator_from_key(make_key(seed, purpose, *index))


def make_generator_from_key(name: int) -> np.random.Generator:
    """The generator of the stream that `make_key` named."""
    # NumPy's stub has forgotten that any ISeedSequence will do.
    return np.random.Generator(np.random.Philox(_Words(name)))  # type: ignore[arg-type]


class _Words(ISeedSequence):
    """A key as the seed itself: what `Philox(key=…)` means, without the system's entropy it asks for first.

    That question would take most of the time: five times as long as all the rest of making a generator.
    """

    def __init__(self, name: int) -> None:
        self._words = np.frombuffer(name.to_bytes(16, "little"), dtype="<u8")

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint64) -> NDArray[np.uint64]:
        """The key's two words, which are all that Philox takes."""
        if n_words != self._words.size or np.dtype(dtype) != np.uint64:
            raise ValueError(f"a key has two 64-bit words, asked for {n_words} of {dtype}")
        return self._words.astype(np.uint64)


def draw_uniforms(seed: int, purpose: str, index: Sequence[int], devices: int, draws: int) -> FloatArray:
    """Independent U[0, 1) numbers, one row per device.

    Row n depends on (seed, purpose, index, n, draws) only: a larger fleet has the same first rows.

    Args:
        seed: the experiment's seed.
        purpose: what the draws are for.
        index: global round, edge round, ... as far as they apply.
        devices: number of rows.
        draws: numbers per device.
    """
    return make_generator(seed, purpose, *index).random((devices, draws))
