"""From a device's limits to the segments of `DeviceSegments`.

A limit is a budget that ρ and θ share linearly: seconds, ρτμ + θν ≤ cap (P2's time constraint), or joules,
ρτα + pθν ≤ battery. At a given ρ the largest allowed θ is the least of θ_max and what each limit leaves: a
concave chain of segments. Each segment is kept over the interval of ρ where it is the least one.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from cfel.arrays import FloatArray, IndexArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.device_segments import DeviceSegments
from cfel.control.solver.feasible_limits import Limits

# A limit is widened by this share: where it leaves room for one ρ only, rounding must not take that away.
ROUNDING = 1e-12


class _Limit(NamedTuple):
    """ρ · step + θ · upload ≤ budget."""

    budget: FloatArray
    step: FloatArray
    upload: FloatArray


class _Segment(NamedTuple):
    """θ = constant − slope · ρ for ρ in [low, high]."""

    constant: FloatArray
    slope: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTerms:
    """What one device's problem needs, for any list of devices (repetitions allowed).

    Attributes:
        step_seconds, step_joules: τμ and τα.
        upload_seconds, upload_joules: ν and pν.
        seconds, joules: the device's own limits; +inf where there is none.
        rho_min, rho_max, theta_min, theta_max: bounds.
    """

    step_seconds: FloatArray
    step_joules: FloatArray
    upload_seconds: FloatArray
    upload_joules: FloatArray
    seconds: FloatArray
    joules: FloatArray
    rho_min: FloatArray
    rho_max: FloatArray
    theta_min: FloatArray
    theta_max: FloatArray

    @classmethod
    def from_problem(cls, problem: RoundProblem, limits: Limits) -> "DeviceTerms":
        """Collects the terms of every device of a problem."""
        least = problem.joules(problem.rho_min, problem.theta_min)
        # No device can use more than the energy cap less what the others need at least. With few devices
        # this sharpens the lower bound, so it is treated like a battery.
        joules = limits.joules - float(least.sum()) + least
        if limits.battery is not None:
            joules = np.minimum(joules, limits.battery)
        return cls(
            step_seconds=problem.tau * problem.mu,
            step_joules=problem.tau * problem.alpha,
            upload_seconds=problem.nu,
            upload_joules=problem.power * problem.nu,
            seconds=limits.seconds,
            joules=joules,
            rho_min=problem.rho_min,
            rho_max=problem.rho_max,
            theta_min=problem.theta_min,
            theta_max=problem.theta_max,
        )

    def take(self, devices: IndexArray | slice) -> "DeviceTerms":
        """Selects some devices."""
        return DeviceTerms(*(getattr(self, name)[devices] for name in TERMS))


TERMS = tuple(field.name for field in fields(DeviceTerms))


def build_segments(terms: DeviceTerms, noise: float, gradient: float) -> DeviceSegments:
    """Builds all segments of the devices, θ = θ_min first.

    Args:
        terms: the devices.
        noise: w, the weight of P2's first term.
        gradient: G²/(σ² + G²).
    """
    segments = _list_segments(terms)
    stacked = np.empty((4, len(segments), len(terms.seconds)))
    for kind, segment in enumerate(segments):
        for column, values in enumerate(segment):
            stacked[column, kind] = values
    constant, slope, low, high = stacked
    return DeviceSegments.along(
        (constant, slope, low, high), terms.step_joules, terms.upload_joules, noise, gradient
    )


def _list_segments(terms: DeviceTerms) -> list[_Segment]:
    """θ = θ_min, then θ = θ_max, then one segment for each limit that can matter."""
    limits = _select_limits(terms)
    bottom, top = terms.theta_min, terms.theta_max
    fits = np.minimum.reduce([terms.rho_max, *(_largest_rho(limit, bottom) for limit in limits)])
    # Limits are feasible at the lower bounds; where rounding says otherwise, ρ_min is allowed all the same.
    fits = np.maximum(fits, terms.rho_min)
    flat = np.zeros_like(fits)
    segments = [_Segment(bottom, flat, terms.rho_min, fits)]
    if (bottom == top).all():
        return segments
    full = [_largest_rho(limit, top) for limit in limits]
    segments.append(_Segment(top, flat, terms.rho_min, np.minimum.reduce([fits, *full])))
    for index, limit in enumerate(limits):
        # Below full[index] even θ_max is within this limit, so the limit does not bind there.
        low = np.maximum(terms.rho_min, full[index])
        others = [other for position, other in enumerate(limits) if position != index]
        segments.append(_follow_limit(limit, others, low, fits))
    return segments


def _select_limits(terms: DeviceTerms) -> list[_Limit]:
    """The limits that can bind for at least one of the devices; fewer kinds mean less work for all."""
    wider = 1.0 + ROUNDING
    time = _Limit(terms.seconds * wider, terms.step_seconds, terms.upload_seconds)
    energy = _Limit(terms.joules * wider, terms.step_joules, terms.upload_joules)
    return [limit for limit in (time, energy) if (_largest_use(limit, terms) > limit.budget).any()]


def _largest_use(limit: _Limit, terms: DeviceTerms) -> FloatArray:
    return terms.rho_max * limit.step + terms.theta_max * limit.upload


def _largest_rho(limit: _Limit, theta: FloatArray) -> FloatArray:
    """Largest ρ the limit allows beside θ; ±inf where steps are free."""
    left = limit.budget - theta * limit.upload
    free = np.where(left >= 0, np.inf, -np.inf)
    return np.divide(left, limit.step, out=free, where=limit.step > 0)


def _follow_limit(limit: _Limit, others: list[_Limit], low: FloatArray, high: FloatArray) -> _Segment:
    """The segment along which a limit is used up, where no other limit is tighter."""
    constant, slope = _coefficients(limit)
    for other in others:
        low, high = _narrow_to_below(constant, slope, *_coefficients(other), low, high)
    usable = np.isfinite(constant)
    return _Segment(
        np.where(usable, constant, 0.0), slope, np.where(usable, low, 1.0), np.where(usable, high, 0.0)
    )


def _coefficients(limit: _Limit) -> tuple[FloatArray, FloatArray]:
    """c₀ and c₁ of θ = c₀ − c₁ρ; c₀ = +inf where uploads are free and the limit does not restrict θ."""
    sends = limit.upload > 0
    constant = np.divide(limit.budget, limit.upload, out=np.full_like(limit.budget, np.inf), where=sends)
    slope = np.divide(limit.step, limit.upload, out=np.zeros_like(limit.budget), where=sends)
    return constant, slope


def _narrow_to_below(
    constant: FloatArray,
    slope: FloatArray,
    other_constant: FloatArray,
    other_slope: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Narrows [low, high] to where the first segment is not above the second."""
    with np.errstate(invalid="ignore"):
        rise = constant - other_constant
    rise = np.where(np.isnan(rise), 0.0, rise)
    steeper = slope - other_slope
    crossing = np.divide(rise, steeper, out=np.zeros_like(rise), where=steeper != 0)
    low = np.where(steeper > 0, np.maximum(low, crossing), low)
    high = np.where(steeper < 0, np.minimum(high, crossing), high)
    # Parallel and above everywhere: an empty interval.
    return low, np.where((steeper == 0) & (rise > 0), low - 1.0, high)
