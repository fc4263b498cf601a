"""Small batches: a device takes all its steps, each on a part of its batch that costs a share ρ of it.

A step on b of B samples costs o + (1 − o)·b/B of a step on all of them, in time and energy: o is what it
costs to start a step, whatever its batch. So ρ means the same to plans and accounts as where steps are left
out. `rounds.kernel` rounds every plan down to whole samples, so that what is planned is what happens.

Training only the last layers is the same arithmetic: the forward pass is the fixed part, and tenths of the
layers are what ρ buys.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cfel.arrays import FloatArray

DEFAULT_OVERHEAD = 0.05
"""As measured for ResNet-20 on one core of a server."""

# Batch sizes to choose from, as shares of the full one.
_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


# Estimates of σ² compare two halves of a batch, and batch norm needs two samples.
_LEAST_SAMPLES = 2

_LEAST_NORMALISED = 0.2
"""Least part of a batch for models that normalise over it: on 4 of 50 samples, ResNet-20 did not learn."""


@dataclass(frozen=True, slots=True)
class BatchShares:
    """What a share ρ of a step is in samples, and what samples cost."""

    batch: int  # samples B of a full batch, ≥ 1
    # Share o of the cost of a full step that does not depend on its batch, in [0, 1).
    overhead: float = DEFAULT_OVERHEAD
    # Whether the model normalises over a batch, which fails on few samples; True if not known.
    normalises: bool = True

    @property
    def least(self) -> float:
        """The share ρ that the smallest possible batch costs."""
        return float(self._price(self._count(0.0)))

    def count_samples(self, rho: float) -> int:
        """The samples that a share ρ pays for, at least two (or all, of a batch of one)."""
        return int(self._count(rho))

    def price_samples(self, samples: int) -> float:
        """The share ρ of a step that so many samples cost."""
        return float(self._price(np.asarray(samples)))

    def round_down(self, rho: ArrayLike) -> FloatArray:
        """The shares that whole samples cost: at most ρ, unless even the smallest batch costs more."""
        return self._price(self._count(rho))

    def find_part(self, rho: ArrayLike) -> FloatArray:
        """The part of its batch that a share ρ pays for, in (0, 1]."""
        return self._count(rho) / self.batch

    def list_shares(self, least: float | None = None) -> FloatArray:
        """The shares ρ of the batch sizes to choose from, ascending.

        `least` is a share of the full batch; None for what the model can learn from.
        """
        if least is None:
            least = _LEAST_NORMALISED if self.normalises else 0.0
        chosen = [least, *(share for share in _SHARES if share > least)]
        samples = np.clip(np.rint(np.multiply(chosen, self.batch)), self._count(0.0), self.batch)
        return self._price(np.unique(samples))

    def _count(self, rho: ArrayLike) -> FloatArray:
        samples = (np.asarray(rho, dtype=np.float64) - self.overhead) / (1 - self.overhead) * self.batch
        # What is left of rounding must not cost a sample.
        return np.asarray(np.clip(np.floor(samples + 1e-6), min(_LEAST_SAMPLES, self.batch), self.batch))

    def _price(self, samples: FloatArray) -> FloatArray:
        price = self.overhead + (1 - self.overhead) * samples / self.batch
        # Exactly one step for a full batch: rounding may end above 1, and ρ must not.
        return np.where(samples == self.batch, 1.0, price)


FORWARD_SHARE = 1 / 3
"""Of a step: by the usual count, the backward pass takes twice as long as the forward pass."""

LAYER_SHARES = BatchShares(batch=10, overhead=FORWARD_SHARE)
"""What ρ is in tenths of the layers, where only the last ones are trained; all are taken to cost alike."""
