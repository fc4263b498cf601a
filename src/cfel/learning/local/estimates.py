"""Estimating σ² and G², the variance of a mini-batch gradient and the squared norm of the full one.

Both come from a few gradients at the same point, fed one by one to `Scatter`: mean and scatter are kept in
place, so K gradients need the memory of two. The gradients are lists of tensors, as autograd returns them.
Where to evaluate and which batches to draw is decided in `roles`.

* `fresh` (the paper): K independent batches; σ̂² = scatter/(K−1), Ĝ² = ‖ḡ‖² − σ̂²/K.
* `reuse`: the two halves of one batch of B out of n samples, drawn without replacement. The variance of a
  batch drawn with replacement is estimated by v = ‖g_a − g_b‖²/4; then σ̂² = (1 − B/n)·v, Ĝ² = ‖ḡ‖² − σ̂².

Ĝ² may come out negative; it is unbiased only because it may. Flooring is for whoever averages over devices.
With batch norm a half batch has other statistics than the whole, so `reuse` is then an approximation.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cfel.errors import InputError


@dataclass(frozen=True, slots=True)
class Estimates:
    """What a device found out about its gradients and updates; not finite where training has diverged.

    Attributes:
        sigma2: σ̂² ≥ 0.
        g2: Ĝ², which may be negative.
        kept_energy: share of its last update's ‖x‖² in the largest entries, at `kept_energy_at`; or empty.
    """

    sigma2: float
    g2: float
    kept_energy: tuple[float, ...] = ()

    @property
    def finite(self) -> bool:
        """Whether both are finite numbers."""
        return math.isfinite(self.sigma2) and math.isfinite(self.g2)


def estimates_from(sigma2: float, g2: float, kept_energy: tuple[float, ...] = ()) -> Estimates:
    """Estimates that came from a file or over the network.

    Raises:
        InputError: they are not finite, or σ² is negative: no device that trains sends such.
    """
    estimates = Estimates(sigma2, g2, kept_energy)
    if not (estimates.finite and sigma2 >= 0):
        raise InputError(f"estimates: sigma2 = {sigma2}, g2 = {g2}; has the training diverged?")
    return estimates


class Scatter:
    """Weighted mean and scatter of gradients (Welford's recurrence); the first becomes the mean.

    Args:
        first: a gradient, one tensor per parameter; changed in place from now on.
        weight: its weight, e.g. its number of samples.
    """

    def __init__(self, first: list[Tensor], weight: float = 1.0) -> None:
        self.mean = first
        self.weight = weight
        self.scatter = 0.0

    def add(self, gradient: list[Tensor], weight: float = 1.0) -> None:
        """Takes one more gradient in; its tensors are overwritten."""
        total = self.weight + weight
        torch._foreach_sub_(gradient, self.mean)
        torch._foreach_add_(self.mean, gradient, alpha=weight / total)
        self.scatter += squared_norm(gradient) * self.weight * weight / total
        self.weight = total


def squared_norm(gradient: list[Tensor]) -> float:
    """‖g‖² of a gradient given as a list of tensors."""
    parts = torch.stack([torch.linalg.vector_norm(part) for part in gradient])
    return float(parts.to(torch.float64).square().sum())


def from_fresh(scatter: Scatter, batches: int) -> Estimates:
    """The estimates from `batches` ≥ 2 independent mini-batch gradients of weight 1 each."""
    sigma2 = scatter.scatter / (batches - 1)
    return Estimates(sigma2, squared_norm(scatter.mean) - sigma2 / batches)


def from_halves(scatter: float, mean_squared: float, batch: int, samples: int) -> Estimates:
    """The estimates from two parts of one batch drawn without replacement.

    Args:
        scatter: of the parts weighted by their sizes; B·‖g_a − g_b‖²/4 for halves of equal size.
        mean_squared: ‖ḡ‖² of the whole batch.
        batch: B, samples in the batch, at least 2.
        samples: n, samples of the device, at least B.
    """
    sigma2 = scatter / batch * (1 - batch / samples)
    return Estimates(sigma2, mean_squared - sigma2)
