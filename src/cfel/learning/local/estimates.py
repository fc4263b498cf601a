"""Estimates of σ² and G²: the variance of a mini-batch gradient, and the squared norm of the full gradient.

Both come from a few gradients at the same point. `Scatter` takes them one by one and keeps a running mean and
scatter, so K gradients need the memory of two. Gradients are lists of tensors, as autograd returns them.
Where to evaluate and which batches to draw is decided in `device`.

* `fresh` (the paper): K independent batches; σ̂² = scatter/(K−1), Ĝ² = ‖ḡ‖² − σ̂²/K.
* `reuse`: the two halves of one batch of B out of n samples, drawn without replacement. The variance of a
  batch drawn with replacement is estimated by v = ‖g_a − g_b‖²/4; then σ̂² = (1 − B/n)·v, Ĝ² = ‖ḡ‖² − σ̂².

Ĝ² may be negative: a floor at zero would bias it. The code that averages over devices applies the floor.
With batch norm, half a batch has other statistics than the whole batch, so `reuse` is an approximation there.

`stack_estimates` turns the estimates of all devices into arrays, for checkpoints. In messages they are
encoded like any other value, by `deployment.protocol.codec`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfel.arrays import FloatArray
from cfel.errors import InputError

MOST_REPORTED = 1e100
"""Losses and squared norms of float32 models stay far below; sums of larger numbers may overflow."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """What a device knows about its gradients and updates; not finite where training has diverged."""

    sigma2: float  # σ̂² ≥ 0
    g2: float  # Ĝ², which may be negative
    # Share of its last update's ‖x‖² in the largest entries, at `kept_energy_at`; or empty.
    kept_energy: tuple[float, ...] = ()

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.sigma2) and math.isfinite(self.g2)


def check_estimates(estimates: Estimates) -> Estimates:
    """The same estimates, if they are possible; for those read from a file or received from a device."""
    # A NaN fails both comparisons.
    if not (0 <= estimates.sigma2 <= MOST_REPORTED and abs(estimates.g2) <= MOST_REPORTED):
        raise InputError(
            f"estimates: sigma2 = {estimates.sigma2}, g2 = {estimates.g2}; has the training diverged?"
        )
    return estimates


def check_loss(loss: float, steps: int) -> None:
    """Raises for a mean loss that no device can report; NaN is possible only without steps."""
    if not abs(loss) <= MOST_REPORTED and (steps or not math.isnan(loss)):
        raise InputError(f"loss = {loss}: must be finite, and at most {MOST_REPORTED:g}")


def refresh_estimates(before: Estimates | None, fresh: Estimates) -> Estimates:
    """A device's estimates after a fresh measurement of σ² and G².

    `kept_energy` describes the device's last update, which a fresh measurement does not touch: it is kept.
    """
    return fresh if before is None else replace(fresh, kept_energy=before.kept_energy)


def stack_estimates(estimates: Sequence[Estimates | None]) -> dict[str, FloatArray]:
    """The estimates of all devices as arrays by name, one row per device, NaN where there are none."""
    nothing = (math.nan, math.nan)
    rows = [nothing if each is None else (each.sigma2, each.g2) for each in estimates]
    arrays = {"estimates": np.array(rows, dtype=np.float64)}
    curves = [() if each is None else each.kept_energy for each in estimates]
    width = max((len(curve) for curve in curves), default=0)
    if width:
        # A row of NaN stands for a device without a curve; arrays have no gaps.
        arrays["kept_energy"] = np.array([curve or (math.nan,) * width for curve in curves], dtype=np.float64)
    return arrays


def unstack_estimates(arrays: Mapping[str, Any]) -> list[Estimates | None]:
    """The inverse of `stack_estimates`; other arrays are ignored."""
    both: FloatArray = arrays["estimates"]
    curves: FloatArray = arrays["kept_energy"] if "kept_energy" in arrays else np.full((len(both), 1), np.nan)
    return [
        None
        if math.isnan(sigma2)
        else check_estimates(Estimates(sigma2, g2, () if np.isnan(curve).any() else tuple(curve)))
        for (sigma2, g2), curve in zip(both.tolist(), curves.tolist(), strict=True)
    ]


class Scatter:
    """Weighted mean and scatter of gradients (Welford's recurrence)."""

    def __init__(self, first: list[Tensor], weight: float = 1.0, shared: int | None = None) -> None:
        self.mean = first
        self.weight = weight
        self._shared = shared
        self.scatter = 0.0

    def add(self, gradient: list[Tensor], weight: float = 1.0) -> None:
        """Adds one more gradient; its tensors are overwritten."""
        total = self.weight + weight
        # The gradient's memory now holds its distance to the mean; the mean moves by a share of it.
        torch._foreach_sub_(gradient, self.mean)
        torch._foreach_add_(self.mean, gradient, alpha=weight / total)
        self.scatter += squared_norm(gradient[: self._shared]) * self.weight * weight / total
        self.weight = total

    def square_mean(self) -> float:
        """‖ḡ‖² of what counts."""
        return squared_norm(self.mean[: self._shared])


def squared_norm(gradient: list[Tensor]) -> float:
    """‖g‖² of a gradient given as a list of tensors."""
    # Norms per tensor in float32, their squares in float64: fast, and without losing the small tensors.
    parts = torch.stack([torch.linalg.vector_norm(part) for part in gradient])
    return float(parts.to(torch.float64).square().sum())


def estimate_from_batches(scatter: Scatter, batches: int) -> Estimates:
    """The `fresh` estimates, from `batches` ≥ 2 independent mini-batch gradients of weight 1 each."""
    sigma2 = scatter.scatter / (batches - 1)
    return Estimates(sigma2, scatter.square_mean() - sigma2 / batches)


def estimate_from_halves(scatter: float, mean_squared: float, batch: int, samples: int) -> Estimates:
    """The `reuse` estimates, from two parts of a batch of B out of a device's n samples.

    `scatter` is of the parts weighted by their sizes, B·‖g_a − g_b‖²/4 for equal halves; `mean_squared` is
    ‖ḡ‖² of the whole batch.
    """
    # The last factor corrects for drawing without replacement: a batch of all samples has no noise.
    sigma2 = scatter / batch * (1 - batch / samples)
    return Estimates(sigma2, mean_squared - sigma2)


def scale_noise(estimates: Estimates, *, used: int, batch: int, samples: int) -> Estimates:
    """Estimates from the halves of b = `used` samples, with σ² of a full batch of B instead.

    A device with fewer than B samples has full batches of all its n samples.
    """
    full = min(batch, samples)
    if used == full:
        return estimates
    # S²/B·(1 − B/n) over S²/b·(1 − b/n): without replacement, a batch of all samples has no noise.
    scale = used / full * (samples - full) / (samples - used)
    return replace(estimates, sigma2=estimates.sigma2 * scale)
