"""Small batches: a device takes all its steps, each on a part of its batch that costs a share ρ of it.

A step on b of B samples costs o + (1 − o)·b/B of a step on all of them, in time and energy: o is what it
costs to start a step, whatever its batch. So ρ means the same to plans and accounts as where steps are left
out, and only the device translates it into samples. Plans, devices and accounts round in the same way.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cfel.arrays import FloatArray

DEFAULT_OVERHEAD = 0.05
"""As measured for ResNet-20 on one core of a server."""

# Batch sizes to choose from, as shares of the full one.
_SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class BatchShares:
    """What a share ρ of a step is in samples, and what samples cost.

    Attributes:
        batch: samples B of a full batch, ≥ 1.
        overhead: share o of the cost of a full step that does not depend on its batch, in [0, 1).
    """

    batch: int = 50
    overhead: float = DEFAULT_OVERHEAD

    def count_samples(self, rho: float) -> int:
        """The samples that cost a share ρ of a full step: the nearest number, at least one."""
        return int(self._round(rho))

    def charge(self, rho: ArrayLike) -> FloatArray:
        """What a step costs that was asked for as a share ρ, in full steps; one entry per device."""
        return self._price(self._round(rho))

    def list_shares(self, least: float) -> FloatArray:
        """The shares ρ of the batch sizes to choose from, ascending.

        Args:
            least: smallest batch, as a share of the full one.
        """
        chosen = [least, *(share for share in _SHARES if share > least)]
        samples = np.maximum(1.0, np.rint(np.multiply(chosen, self.batch)))
        return self._price(np.unique(samples))

    def _round(self, rho: ArrayLike) -> FloatArray:
        samples = (np.asarray(rho, dtype=np.float64) - self.overhead) / (1 - self.overhead) * self.batch
        return np.asarray(np.clip(np.rint(samples), 1.0, self.batch))

    def _price(self, samples: FloatArray) -> FloatArray:
        return np.asarray(self.overhead + (1 - self.overhead) * samples / self.batch)
