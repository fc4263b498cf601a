"""Pairs (ρ, θ) to choose from, for schemes that compare what pairs bring and cost instead of solving P2.

A pair is a whole number of steps and a share of the update. `kept` says how much of an update arrives at θ:
the contraction κ(θ) as devices measured it, or a guess before the first reports.
"""

from dataclasses import dataclass

import numpy as np

from cfel.arrays import BoolArray, FloatArray, IndexArray
from cfel.control.grid.step_table import list_steps, list_theta, pair_up
from cfel.control.scheme import DeviceOverrides, Observation, SchemeParameters
from cfel.cost import device_joules, device_seconds

# Before the first reports κ is taken to be θ to this power, about what trained networks show.
PRIOR = 0.3

# How much a limit may be exceeded by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Pairs to choose from; the first has the fewest steps and the smallest θ, the last has ρ = θ = 1.

    Attributes:
        rho, theta: of every pair.
        kept: κ(θ) of every pair, in (0, 1].
    """

    rho: FloatArray
    theta: FloatArray
    kept: FloatArray


def list_choices(parameters: SchemeParameters, observation: Observation) -> Choices:
    """Whole steps from ρ_min on, with a list of shares from θ_min on."""
    tau = observation.rounds.local_steps
    theta = list_theta(parameters.theta_min)
    steps, share = pair_up(list_steps(parameters.rho_min, tau), theta)
    kept = estimate_contraction(theta, observation.kept_energy)
    return Choices(steps / tau, theta[share], kept[share])


def override_devices(parameters: SchemeParameters) -> DeviceOverrides:
    """What such schemes ask of devices: whole steps, and κ at the shares on the list."""
    return DeviceOverrides(steps="whole", kept_energy_at=tuple(list_theta(parameters.theta_min).tolist()))


def estimate_contraction(theta: FloatArray, kept_energy: FloatArray | None) -> FloatArray:
    """κ(θ), rising to 1; a guess before anything is measured."""
    curve = theta**PRIOR if kept_energy is None else kept_energy
    # Top-k keeps at least the share θ of the energy, and more entries never keep less; noise may say
    # otherwise.
    return np.maximum(np.maximum.accumulate(np.clip(curve, 0.0, 1.0)), theta)


def count_costs(
    observation: Observation, rho: float | FloatArray, theta: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds and joules of every device with one pair for all, or one pair each."""
    now, tau = observation.conditions, observation.rounds.local_steps
    seconds = device_seconds(rho, theta, tau, now.mu, now.nu)
    return seconds, device_joules(rho, theta, tau, now.alpha, now.nu, now.power)


def choose_best(
    observation: Observation, choices: Choices, gain: FloatArray, seconds: FloatArray, joules: FloatArray
) -> tuple[IndexArray, BoolArray]:
    """Every device's pair with the largest gain within its own limits.

    Args:
        observation: the devices' conditions.
        choices: the pairs.
        gain: what each pair brings, the same for all devices.
        seconds: each device's limit.
        joules: likewise.

    Returns:
        The pair of each device, the first where none fits, and whether one fits.
    """
    best = np.zeros(len(observation.cluster), dtype=np.intp)
    fits = np.zeros(len(best), dtype=bool)
    # From the largest gain downwards, and of equal ones the cheaper first. One pair at a time: a table of all
    # pairs and devices would not fit into memory for large fleets.
    for pair in np.argsort(-gain, kind="stable").tolist():
        used_seconds, used_joules = count_costs(observation, choices.rho[pair], choices.theta[pair])
        within = (used_seconds <= seconds * (1 + _ROUNDING)) & (used_joules <= joules * (1 + _ROUNDING))
        best[within & ~fits] = pair
        fits |= within
        if fits.all():
            break
    return best, fits
