"""The pairs (k, θ) that whole-step plans choose from: steps to take, share to send, and what that is worth.

The table is the same for all devices of a round. What a pair takes in time and energy differs from device to
device; that is in `step_grid`.
"""

import math
from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray, IndexArray

THETA_LIST = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
"""The shares θ to choose from; those below `theta_min` are left out."""

# With more local iterations than this, the numbers of steps to choose from are thinned out.
MOST_STEP_COUNTS = 20


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """The pairs (k, θ) to choose from, the same for all devices.

    Attributes:
        steps: k of every pair; the first pair has the fewest steps and the smallest θ.
        theta: θ of every pair.
        cost: objective of every pair, to be made small; negative where a pair is progress.
        least_speed: smallest share of its clock that a device may run at, in (0, 1]; 1 for fixed clocks.
    """

    steps: FloatArray
    theta: FloatArray
    cost: FloatArray
    least_speed: float = 1.0


def list_theta(least: float, most: float = 1.0) -> FloatArray:
    """The shares to choose from, beginning with the least."""
    return np.array(sorted({least, most, *(share for share in THETA_LIST if least <= share <= most)}))


def list_steps(rho_min: float, tau: int) -> FloatArray:
    """The numbers of steps to choose from, beginning with the fewest that keep to ρ_min."""
    fewest = count_fewest_steps(rho_min, tau)
    return np.unique(np.linspace(fewest, tau, min(tau - fewest + 1, MOST_STEP_COUNTS)).round())


def count_fewest_steps(rho_min: float, tau: int) -> int:
    """The fewest whole steps that keep to ρ_min; at least one."""
    return max(1, math.ceil(rho_min * tau - 1e-9))


def pair_up(steps: FloatArray, theta: FloatArray) -> tuple[FloatArray, IndexArray]:
    """Every step count with every θ: the steps of each pair, and where its θ is in the list."""
    return np.repeat(steps, theta.size), np.tile(np.arange(theta.size), steps.size)
