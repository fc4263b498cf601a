"""Plans without a coordinator: edge servers agree on the sum of their curves by gossip.

Every edge server asks its own devices at the same grid of prices, and gossips its curve: in each step it
replaces its numbers by a weighted mean of its neighbours'. With doubly stochastic weights W the mean over
edge servers stays, and what differs from it shrinks by ζ, the second largest absolute eigenvalue of W, per
step. So after K steps m times one's own number is the sum S of all, up to

    |m·x − S| ≤ m·ζᴷ·S        for numbers ≥ 0, as energies are

an error that every edge server knows beforehand. It takes the least price at which its own estimate, less
that error, keeps to the energy cap. All prices are then at least the one that the exact sum would give on
the same grid, so all devices together keep to the cap, and they are at most as far from it as the error says.
"""

from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.curves import Curve, Fleet, Grid, Response, make_curve
from cfel.errors import InputError

# Prices that are gossiped, over so many decades to each side of the expected one: 4 KiB of numbers.
PRICES = 256
DECADES = 1.0
# How far rows and columns of gossip weights may be from 1.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """A plan that edge servers made without a coordinator.

    Attributes:
        price: λ of every cluster.
        error: relative error of every estimate of the sum at most, m·ζᴷ.
        lowest, highest: no price can be lower or higher than these, given the error.
        response: every device's plan.
    """

    price: FloatArray
    error: float
    lowest: float
    highest: float
    response: Response


def bound_error(weights: FloatArray, steps: int) -> float:
    """The relative error of a sum after so many gossip steps, at most."""
    clusters = len(weights)
    spread = np.linalg.norm(weights - 1.0 / clusters, ord=2)
    return float(clusters * spread**steps)


def gossip(curve: Curve, weights: FloatArray, steps: int) -> Curve:
    """Every cluster's estimate of the summed curve after so many gossip steps."""
    rows, columns = (np.abs(weights.sum(axis=axis) - 1.0).max() for axis in (1, 0))
    if max(rows, columns) > ROUNDING or weights.min() < 0:
        raise InputError("gossip weights: must be ≥ 0 and add up to 1 in every row and column")
    mixing = np.linalg.matrix_power(weights, steps).T * len(weights)
    return Curve(curve.grid, curve.objective @ mixing, curve.joules @ mixing)


def agree(fleet: Fleet, energy_cap: float, weights: FloatArray, steps: int, expected: float) -> Agreement:
    """Plans within the energy cap, each cluster at the price that it read off its own estimate.

    Args:
        fleet: the devices of all clusters.
        energy_cap: joules, all devices together.
        weights: of gossip between edge servers, doubly stochastic.
        steps: gossip steps.
        expected: a price near the one to be found, as that of the last round.
    """
    grid = Grid.of_prices(expected * np.geomspace(10.0**-DECADES, 10.0**DECADES, PRICES))
    curve, response = make_curve(fleet, grid)
    error = bound_error(weights, steps)
    prices = grid.price[0]
    estimate = gossip(curve, weights, steps).joules[0]
    exact = curve.joules[0].sum(axis=-1)
    chosen = _first_within(estimate, energy_cap * (1.0 - error))
    lowest, highest = (
        prices[_first_within(exact[:, None], cap)[0]]
        for cap in (energy_cap, energy_cap * (1.0 - error) / (1.0 + error))
    )
    place = (chosen[fleet.cluster], np.arange(fleet.size))
    return Agreement(prices[chosen], error, float(lowest), float(highest), response.pick(place))


def _first_within(joules: FloatArray, energy_cap: float) -> np.ndarray:
    """The least price at which each column keeps to the cap; the highest one where none does."""
    fits = joules <= energy_cap
    return np.where(fits.any(axis=0), fits.argmax(axis=0), len(joules) - 1)
