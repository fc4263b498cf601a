"""Random streams keyed by (seed, purpose, global round, edge round, device).

A key names one stream for good: which process draws from it, when and in which order changes nothing. That is
why two schemes meet the same conditions, a resumed run equals an uninterrupted one, and a deployment equals
its simulation. There is no global generator anywhere in cfel.

Two ways to draw:

* `make_generator` — one NumPy generator for one key, for shuffles and small draws;
* `draw_uniforms` — a (devices × draws) block for the conditions of many devices at memory speed; row n
  belongs to device n, however large the fleet is.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from cfel.arrays import FloatArray


def make_key(seed: int, purpose: str, *index: int) -> int:
    """Returns a 128-bit integer that names the stream; equal arguments give equal keys on every platform.

    Args:
        seed: the experiment's seed, any integer.
        purpose: what the draws are for, e.g. "channel"; different purposes never share a stream.
        *index: global round, edge round, device, ... as far as they apply.
    """
    text = "/".join([str(int(seed)), purpose, *(str(int(i)) for i in index)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def make_generator(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """Makes the generator of one stream (see `make_key` for the arguments)."""
    return make_generator_from_key(make_key(seed, purpose, *index))


def make_generator_from_key(name: int) -> np.random.Generator:
    """Makes the generator of the stream that `make_key` named."""
    # NumPy accepts any ISeedSequence here; its type stub does not say so.
    return np.random.Generator(np.random.Philox(_Words(name)))  # type: ignore[arg-type]


class _Words(ISeedSequence):
    """A key used as the seed itself, as `Philox(key=…)` does.

    `Philox(key=…)` first asks the system for entropy that it then ignores. That takes five times as long as
    all the rest of making a generator.
    """

    def __init__(self, name: int) -> None:
        self._words = np.frombuffer(name.to_bytes(16, "little"), dtype="<u8")

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint64) -> NDArray[np.uint64]:
        """Returns the key's two words, which are all that Philox takes."""
        if n_words != self._words.size or np.dtype(dtype) != np.uint64:
            raise ValueError(f"a key has two 64-bit words, asked for {n_words} of {dtype}")
        return self._words.astype(np.uint64)


def draw_uniforms(seed: int, purpose: str, index: Sequence[int], devices: int, draws: int) -> FloatArray:
    """Draws independent U[0, 1) numbers, one row per device.

    Row n depends on (seed, purpose, index, n, draws) only: a larger fleet has the same first rows. For the
    key see `make_key`.
    """
    return make_generator(seed, purpose, *index).random((devices, draws))
