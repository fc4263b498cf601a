"""What a single device can do, as a handful of line segments in the (ρ, θ) plane.

For any price λ ≥ 0 on a joule, a device's cost w(2−θ)ρA + 3(1−ρ)²G² + λ(ρτα + pθν) is linear in θ. Its best
θ is therefore either the lower bound or as large as allowed: the upper bound, what the time cap leaves, or
what the battery leaves. Each of these is a line θ = c₀ − c₁ρ over an interval of ρ, and along a line the
cost is a convex quadratic in ρ with a closed-form minimum. So the exact answer for one device is the best of
at most four numbers, and for a fleet it is a few array operations.

`Pieces` holds those lines for a block of devices, objective divided by A = σ² + G² so that numbers stay near
1. This module knows nothing of the energy cap that couples the devices; `hull` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import FloatArray, IndexArray

# Entries up to which NumPy's own argmin over columns is the faster one.
SHORT = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Lines θ = c₀ − c₁ρ, ρ in [low, high], for K kinds of line and N devices; all arrays are K × N.

    Along a line the objective is `square`·ρ² + `slope`·ρ + `constant` and the energy is
    `joules_constant` + `joules_slope`·ρ. A line a device cannot use has `constant` = +inf. `turn` is
    −1/(2 `square`): times the slope at ρ = 0 it gives the bottom of the parabola.
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
    def of_lines(
        cls,
        lines: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
        step_joules: FloatArray,
        upload_joules: FloatArray,
        noise: float,
        gradient: float,
    ) -> "Pieces":
        """Cost and energy along given lines.

        Args:
            lines: c₀, c₁, low and high, K × N each; low > high marks a line that cannot be used.
            step_joules: τα of every device.
            upload_joules: pν of every device.
            noise: w, the weight of the first term (A is 1 here).
            gradient: G²/A.
        """
        constant, slope, low, high = lines
        usable = low <= high
        # Where steps are free a line that cannot be used may begin at infinity; ρ never exceeds 1.
        low = np.minimum(low, 1.0)
        # A vanishing curvature would divide zero by zero; any minimiser of a straight line is an end.
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

    @property
    def devices(self) -> int:
        """Number of devices, N."""
        return int(self.low.shape[1])

    @property
    def kinds(self) -> int:
        """Number of lines per device, K."""
        return int(self.low.shape[0])

    def cheapest(self, multiplier: float, rho: FloatArray, piece: NDArray[np.int8]) -> tuple[float, float]:
        """Every device's exact minimum of objective + λ · energy.

        Args:
            multiplier: the price λ of a joule.
            rho: filled with ρ of every device.
            piece: filled with the line every device is on.

        Returns:
            Energy and objective of all devices together.
        """
        slope = multiplier * self.joules_slope
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
        chosen = _least_row(cost + multiplier * joules)
        piece[:] = chosen
        place = _places(chosen, self.devices)
        stand.take(place, out=rho)
        return float(np.add.reduce(joules.take(place))), float(np.add.reduce(cost.take(place)))

    def least(self) -> tuple[FloatArray, float, float]:
        """Least energy on line 0 (θ at its lower bound, or the only line): the answer to an infinite price.

        Where ρ costs no energy, ρ is what the objective likes best.

        Returns:
            ρ of every device, and energy and objective of all devices together.
        """
        low, high, slope = self.low[0], self.high[0], self.joules_slope[0]
        stand = np.clip(self.slope[0] * self.turn[0], low, high)
        rho = np.where(slope > 0, low, np.where(slope < 0, high, stand))
        joules = self.joules_constant[0] + slope * rho
        costs = (self.square[0] * rho + self.slope[0]) * rho + self.constant[0]
        return rho, float(joules.sum()), float(costs.sum())

    def on(self, piece: NDArray[np.int8]) -> "Pieces":
        """The same fleet with every device held on one line: a convex problem, K = 1."""
        return Pieces(*(values[np.newaxis] for values in self._along(piece, *self._arrays())))

    @classmethod
    def joined(cls, blocks: Sequence["Pieces"]) -> "Pieces":
        """The lines of several blocks with equally many kinds, side by side."""
        return cls(
            *(np.concatenate(values, axis=1) for values in zip(*map(cls._arrays, blocks), strict=True))
        )

    def take(self, devices: IndexArray | slice) -> "Pieces":
        """The lines of some devices."""
        return Pieces(*(values[:, devices] for values in self._arrays()))

    def theta(self, piece: NDArray[np.int8], rho: FloatArray) -> FloatArray:
        """θ of every device standing at ρ on the given line."""
        constant, slope = self._along(piece, self.theta_constant, self.theta_slope)
        return constant - slope * rho

    def joules(self, piece: NDArray[np.int8], rho: FloatArray) -> FloatArray:
        """Energy of every device standing at ρ on the given line."""
        constant, slope = self._along(piece, self.joules_constant, self.joules_slope)
        return constant + slope * rho

    def costs(self, piece: NDArray[np.int8], rho: FloatArray) -> FloatArray:
        """Objective of every device standing at ρ on the given line."""
        square, slope, constant = self._along(piece, self.square, self.slope, self.constant)
        return (square * rho + slope) * rho + constant

    def _along(self, piece: NDArray[np.int8], *values: FloatArray) -> list[FloatArray]:
        place = _places(piece, self.devices)
        return [np.take(array, place) for array in values]

    def _arrays(self) -> tuple[FloatArray, ...]:
        return (
            self.theta_constant,
            self.theta_slope,
            self.low,
            self.high,
            self.square,
            self.slope,
            self.constant,
            self.joules_constant,
            self.joules_slope,
            self.turn,
        )


def _least_row(value: FloatArray) -> IndexArray:
    """The row of each column's least value; `argmin(axis=0)` is slow for a few long rows."""
    if value.size < SHORT:
        return np.asarray(value.argmin(axis=0))
    best = value[0]
    chosen = np.zeros(len(best), dtype=np.intp)
    for row in range(1, len(value)):
        chosen[value[row] < best] = row
        best = np.minimum(best, value[row])
    return chosen


def _places(row: NDArray[np.signedinteger[Any]], columns: int) -> IndexArray:
    """Flat positions of (row[n], n) in an array of that many columns."""
    place: IndexArray = np.multiply(row, columns, dtype=np.intp)
    place += np.arange(columns)
    return place
