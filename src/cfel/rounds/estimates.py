"""From the estimates that devices report to the σ² and G² that the scheme sees."""

import math
from collections.abc import Sequence

import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.learning.local.estimates import Estimates
from cfel.rounds.kernel import FleetEstimates

MOST_MEDIANS = 1000.0
"""How far above the median a device's estimates may be. Honest ones on very uneven data reach some 300."""


def needs_estimates(estimator: str, known: Sequence[Estimates | None]) -> bool:
    """Whether devices estimate σ² and G² before a plan: while there are no estimates, or always (`fresh`).

    With `reuse` a device's first steps give its estimates at no cost. A device that joins later is taken to
    be like the others until then, instead of computing two more gradients.
    """
    return estimator == "fresh" or all(each is None for each in known)


def combine_estimates(known: Sequence[Estimates | None]) -> FleetEstimates:
    """Every device's σ² and G²; the mean of the others where a device has none or implausible ones."""
    both = _both(known)
    missing = np.isnan(both[:, 0]) | _are_implausible(both)
    both[missing] = 0.0 if missing.all() else both[~missing].mean(axis=0)
    return FleetEstimates(both[:, 0], both[:, 1], _mean_kept_energy(known))


def implausible_devices(known: Sequence[Estimates | None]) -> list[int]:
    """The devices whose σ² + |G²| is more than `MOST_MEDIANS` times its median over all devices.

    Plans follow the mean, which a single absurd number would rule. It cannot move the median while most
    devices are honest. Devices that report zeros (one batch holds all their data) do not count.
    """
    found: list[int] = np.flatnonzero(_are_implausible(_both(known))).tolist()
    return found


def _are_implausible(both: FloatArray) -> BoolArray:
    sizes = np.minimum(np.abs(both), np.finfo(np.float64).max / 2).sum(axis=1)
    positive = sizes[sizes > 0]
    usual = float(np.median(positive)) if positive.size else math.inf
    # A device without estimates is NaN here, and NaN > anything is false.
    implausible: BoolArray = sizes > MOST_MEDIANS * usual
    return implausible


def _both(known: Sequence[Estimates | None]) -> FloatArray:
    return np.array([(math.nan, math.nan) if each is None else (each.sigma2, each.g2) for each in known])


def _mean_kept_energy(known: Sequence[Estimates | None]) -> FloatArray | None:
    """The share of an update's energy in its largest entries, averaged over the devices that reported it."""
    reported = [each.kept_energy for each in known if each is not None and each.kept_energy]
    return np.mean(reported, axis=0) if reported else None
