"""What a single device can do, as a handful of segments in the (ρ, θ) plane.

At a price λ ≥ 0 of a joule, a device minimises

    w(2−θ)ρA + 3(1−ρ)²G² + λ(ρτα + pθν)            its term of P2, plus λ times its energy

which is linear in θ. The best θ is therefore either the lower bound or the largest that is allowed: the upper
bound, what the time cap leaves, or what the battery leaves. Each of these is a segment θ = c₀ − c₁ρ over an
interval of ρ. Along a segment the cost is a convex quadratic in ρ with a closed-form minimum. So the exact
answer for one device is the best of at most four numbers, and for a fleet it is a few array operations.

`DeviceSegments` holds the segments of a block of devices. Objectives are divided by A = σ² + G², which keeps
all numbers near 1. Nothing here knows the energy cap that couples the devices; see `dual_search`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import FloatArray, IndexArray

# Entries up to which NumPy's own argmin over columns is the faster one.
SHORT = 2048


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSegments:
    """Segments θ = c₀ − c₁ρ, ρ in [low, high], for K kinds of segment and N devices; all arrays are K × N.

    Along a segment the objective is `square`·ρ² + `slope`·ρ + `constant` and the energy is
    `joules_constant` + `joules_slope`·ρ. A segment a device cannot use has `constant` = +inf. `turn` is
    −1/(2 `square`): multiplied by the slope at ρ = 0 it gives the minimum of the parabola.
    """

    theta_constant: FloatArray
    theta_slope: FloatArray
    low: FloatArray
    high: FloatArray
    square: FloatArray
    slope: FloatArray
    constant: FloatArray
    joules_constant: FloatArray
    joules_slope: FloatArray
    turn: FloatArray

    @classmethod
    def along(
        cls,
        segments: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
        step_joules: FloatArray,
        upload_joules: FloatArray,
        noise: float,
        gradient: float,
    ) -> "DeviceSegments":
        """Computes cost and energy along given segments.

        Args:
            segments: c₀, c₁, low and high, K × N each; low > high marks a segment that cannot be used.
            step_joules: τα of every device.
            upload_joules: pν of every device.
            noise: w, the weight of P2's first term (A is 1 here).
            gradient: G²/A.
        """
        constant, slope, low, high = segments
        usable = low <= high
        # Where steps are free, an unusable segment may begin at infinity; ρ never exceeds 1.
        low = np.minimum(low, 1.0)
        # Without curvature the minimum would be 0/0. A tiny one sends it to an end of the segment, which is
        # where a straight line has its minimum.
        square = np.maximum(3.0 * gradient + noise * slope, 1e-200)
        return cls(
            theta_constant=constant,
            theta_slope=slope,
            low=low,
            high=np.maximum(low, high),
            square=square,
            turn=-0.5 / square,
            slope=noise * (2.0 - constant) - 6.0 * gradient,
            constant=np.where(usable, 3.0 * gradient, np.inf),
            joules_constant=upload_joules * constant,
            joules_slope=step_joules - upload_joules * slope,
        )

    @classmethod
    def join(cls, blocks: Sequence["DeviceSegments"]) -> "DeviceSegments":
        """Puts blocks with the same number of kinds side by side."""
        columns = zip(*(block._arrays() for block in blocks), strict=True)
        return cls(*(np.concatenate(arrays, axis=1) for arrays in columns))

    @property
    def devices(self) -> int:
        """Number of devices, N."""
        return int(self.low.shape[1])

    def respond(self, price: float, rho: FloatArray, choice: NDArray[np.int8]) -> tuple[float, float]:
        """Finds every device's exact minimum of objective + λ · energy.

        Args:
            price: λ, per joule.
            rho: filled with ρ of every device.
            choice: filled with the segment every device is on.

        Returns:
            Energy and objective of all devices together.
        """
        # The inner loop of every solve: in-place operations, as temporaries cost more than the arithmetic.
        slope = price * self.joules_slope
        slope += self.slope
        stand = slope * self.turn
        np.maximum(stand, self.low, out=stand)
        np.minimum(stand, self.high, out=stand)
        joules = self.joules_slope * stand
        joules += self.joules_constant
        cost = self.square * stand
        cost += self.slope
        cost *= stand
        cost += self.constant
        chosen = _find_least_row(cost + price * joules)
        choice[:] = chosen
        place = _flatten_places(chosen, self.devices)
        stand.take(place, out=rho)
        return float(np.add.reduce(joules.take(place))), float(np.add.reduce(cost.take(place)))

    def spend_least(self) -> tuple[FloatArray, float, float]:
        """Finds the least energy on segment 0 (θ at its lower bound): the response to an infinite price.

        Where ρ costs no energy, ρ minimises the objective.

        Returns:
            ρ of every device, and energy and objective of all devices together.
        """
        low, high, slope = self.low[0], self.high[0], self.joules_slope[0]
        stand = np.clip(self.slope[0] * self.turn[0], low, high)
        rho = np.where(slope > 0, low, np.where(slope < 0, high, stand))
        joules = self.joules_constant[0] + slope * rho
        costs = (self.square[0] * rho + self.slope[0]) * rho + self.constant[0]
        return rho, float(joules.sum()), float(costs.sum())

    def hold(self, choice: NDArray[np.int8]) -> "DeviceSegments":
        """Keeps every device on one segment, which leaves a convex problem, K = 1."""
        return DeviceSegments(*(values[np.newaxis] for values in self._select(choice, *self._arrays())))

    def take(self, devices: IndexArray | slice) -> "DeviceSegments":
        """Selects some devices."""
        return DeviceSegments(*(values[:, devices] for values in self._arrays()))

    def theta(self, choice: NDArray[np.int8], rho: FloatArray) -> FloatArray:
        """θ of every device at ρ on the given segment."""
        constant, slope = self._select(choice, self.theta_constant, self.theta_slope)
        return constant - slope * rho

    def joules(self, choice: NDArray[np.int8], rho: FloatArray) -> FloatArray:
        """Energy of every device at ρ on the given segment."""
        constant, slope = self._select(choice, self.joules_constant, self.joules_slope)
        return constant + slope * rho

    def costs(self, choice: NDArray[np.int8], rho: FloatArray) -> FloatArray:
        """Objective of every device at ρ on the given segment."""
        square, slope, constant = self._select(choice, self.square, self.slope, self.constant)
        return (square * rho + slope) * rho + constant

    def _select(self, choice: NDArray[np.int8], *values: FloatArray) -> list[FloatArray]:
        place = _flatten_places(choice, self.devices)
        return [np.take(array, place) for array in values]

    def _arrays(self) -> tuple[FloatArray, ...]:
        return tuple(getattr(self, name) for name in FIELDS)


FIELDS = tuple(field.name for field in fields(DeviceSegments))


def _find_least_row(value: FloatArray) -> IndexArray:
    """The row of each column's least value; `argmin(axis=0)` is slow for a few long rows."""
    if value.size < SHORT:
        return np.asarray(value.argmin(axis=0))
    best = value[0]
    chosen = np.zeros(len(best), dtype=np.intp)
    for row in range(1, len(value)):
        chosen[value[row] < best] = row
        best = np.minimum(best, value[row])
    return chosen


def _flatten_places(row: NDArray[np.signedinteger[Any]], columns: int) -> IndexArray:
    """Flat positions of (row[n], n) in an array of that many columns; `take` on them beats fancy indexing."""
    place: IndexArray = np.multiply(row, columns, dtype=np.intp)
    place += np.arange(columns)
    return place
