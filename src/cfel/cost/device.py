"""Seconds and joules of single devices in one edge round: terms of the paper's (time) and (energy).

All arguments may be numbers or arrays with one entry per device. Nothing is checked here: the numbers come
from `Conditions` and from a plan, which are validated when they are created.

Symbols: ρ local update probability, θ share of the model that is sent, τ local iterations, μ seconds per
step, α joules per step, ν seconds per full upload, p watts while sending.
"""

import numpy as np
from numpy.typing import ArrayLike

from cfel.arrays import FloatArray


def device_seconds(rho: ArrayLike, theta: ArrayLike, tau: int, mu: ArrayLike, nu: ArrayLike) -> FloatArray:
    """Expected seconds: ρτμ + θν."""
    return realised_seconds(np.multiply(rho, float(tau)), theta, mu, nu)


def device_joules(
    rho: ArrayLike, theta: ArrayLike, tau: int, alpha: ArrayLike, nu: ArrayLike, power: ArrayLike
) -> FloatArray:
    """Expected joules: ρτα + pθν."""
    return realised_joules(np.multiply(rho, float(tau)), theta, alpha, nu, power)


def realised_seconds(steps: ArrayLike, share_sent: ArrayLike, mu: ArrayLike, nu: ArrayLike) -> FloatArray:
    """Realised seconds.

    Args:
        steps: local steps computed, in place of ρτ.
        share_sent: bits sent over the bits of a full model, in place of θ; may exceed 1 with indices.
        mu: μ.
        nu: ν.
    """
    return np.add(np.multiply(steps, mu, dtype=np.float64), np.multiply(share_sent, nu, dtype=np.float64))


def realised_joules(
    steps: ArrayLike, share_sent: ArrayLike, alpha: ArrayLike, nu: ArrayLike, power: ArrayLike
) -> FloatArray:
    """Realised joules (arguments: see `realised_seconds`, with α and p)."""
    sending = np.multiply(share_sent, nu, dtype=np.float64)
    return np.add(np.multiply(steps, alpha, dtype=np.float64), np.multiply(power, sending))
