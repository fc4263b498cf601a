"""The search for the price of energy: at which λ does the fleet just use its energy cap?

This is the Lagrangian dual of P2's energy constraint. Plot every plan of a fleet as a point (energy,
objective). At a price λ the devices' best response is the point where a line of slope −λ touches the lower
convex envelope of all these points. `search_energy_price` moves along the envelope towards the energy cap
with two responses, one over the cap and one under it:

* the tangents at the responses seen so far, read off at the cap, are lower bounds on every plan within it;
* the chord between the two responses, read off at the cap, is what mixing them would give at best.

The search ends when bound and chord meet. Two kinds of fleet respond to a price: `segments.PricedFleet`,
where ρ and θ are continuous, and `list_solver.PairGrid`, where devices choose from a list of pairs. The
search needs no plan within the cap; `joint` and `list_solver` make one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import FloatArray

# Devices are handled in blocks small enough for a solver's temporaries to stay in the processor's cache. That
# is why a million devices cost little more per device than ten thousand.
BLOCK = 4096
# Relative distance between chord and bound at which the search ends, and a number of steps no case came near.
TOLERANCE = 1e-6
MOST_STEPS = 100
# Responses just before and just after the best price are added at the end, so that the two that are returned
# differ only in devices that jump at that very price.
NUDGE = 1e-7
# A fleet larger than this is first priced by a sample of about this size.
SAMPLE = 8192
# How far around a guessed price the two first responses are taken: four standard errors of the sample.
MARGIN = 4.0 / SAMPLE**0.5


def split_into_blocks(devices: int) -> Iterator[slice]:
    """Slices of `BLOCK` devices each."""
    return (slice(start, start + BLOCK) for start in range(0, devices, BLOCK))


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """Every device's best response to one price of energy.

    Attributes:
        price: λ, per joule, in units of the objective.
        choice: per device, the number of the segment or of the pair that it is on.
        rho: ρ on that segment; steps of that pair.
        joules, objective: of all devices together.
    """

    price: float
    rho: FloatArray
    choice: NDArray[Any]
    joules: float
    objective: float


class PriceResponder(Protocol):
    """Devices that respond to a price of energy."""

    @property
    def size(self) -> int:
        """Number of devices."""

    def respond(self, price: float) -> Response:
        """Finds every device's exact minimum of objective + λ · energy."""

    def spend_least(self) -> Response:
        """Gives the response to an infinite price."""

    def sample(self, stride: int) -> Self:
        """Takes one device in `stride`."""


@dataclass(frozen=True, slots=True, eq=False)
class Bracket:
    """Two neighbouring responses around the energy cap.

    Attributes:
        over: needs more than the cap (or just as much, or is the unlimited optimum).
        under: needs no more than the cap.
        lower_bound: proven least objective at the cap.
    """

    over: Response
    under: Response
    lower_bound: float

    @property
    def price(self) -> float:
        """The price of a joule here, λ."""
        return min(self.over.price, self.under.price)


def search_energy_price(fleet: PriceResponder, energy_cap: float, guess: float | None = None) -> Bracket:
    """Searches the price of energy at which the fleet's response meets the cap.

    If the cap is below the least energy of the fleet, the result's `under` exceeds it too. A `guess` near the
    price saves steps.
    """
    over, under = _find_start(fleet, energy_cap, guess)
    if over.joules <= energy_cap:
        return Bracket(over, over, over.objective)
    bound, price = max((_dual_value(end, energy_cap), end.price) for end in (over, under))
    for step in range(MOST_STEPS):
        span = over.joules - under.joules
        chord = (under.objective - over.objective) / span if span > 0 else 0.0
        estimate = over.objective + chord * (over.joules - energy_cap)
        # Without a span the two responses are the same to rounding.
        if span <= 0 or estimate - bound <= TOLERANCE * abs(estimate):
            break
        response = fleet.respond(_choose_price(over, under, chord, energy_cap, step))
        bound, price = max((bound, price), (_dual_value(response, energy_cap), response.price))
        over, under = _narrow(over, under, response, energy_cap)
    if fleet.size <= SAMPLE and (over.choice != under.choice).any():
        for nearby in (price * (1 - NUDGE), price * (1 + NUDGE)):
            if over.price < nearby < under.price:
                over, under = _narrow(over, under, fleet.respond(nearby), energy_cap)
    return Bracket(over, under, min(bound, estimate))


def _find_start(fleet: PriceResponder, energy_cap: float, guess: float | None) -> tuple[Response, Response]:
    """Two responses to start from; if the first needs no more than the cap, it is the optimum.

    A large fleet is priced by a sample first: the responses a little below and above a good guess nearly
    always lie on both sides of the cap. Where they do not, or without a guess, prices 0 and infinity serve.
    """
    over, under = None, None
    stride = fleet.size // SAMPLE
    if guess is None and stride > 1:
        cap = energy_cap / fleet.size * len(range(0, fleet.size, stride))
        guess = search_energy_price(fleet.sample(stride), cap).over.price
    if guess:
        for price in (guess * (1 - MARGIN), guess * (1 + MARGIN)):
            response = fleet.respond(price)
            if response.joules > energy_cap:
                over = response
            elif under is None:
                under = response
    return over or fleet.respond(0.0), under or fleet.spend_least()


def _dual_value(response: Response, energy_cap: float) -> float:
    """The tangent at a response, read off at the cap: by weak duality a lower bound on every plan there."""
    if np.isinf(response.price):
        return -np.inf
    return response.objective + response.price * (response.joules - energy_cap)


def _narrow(
    over: Response, under: Response, response: Response, energy_cap: float
) -> tuple[Response, Response]:
    return (response, under) if response.joules > energy_cap else (over, response)


def _choose_price(over: Response, under: Response, chord: float, energy_cap: float, step: int) -> float:
    """The chord's slope finds kinks exactly; between kinks interpolating the price is faster: take turns."""
    if step % 2 and np.isfinite(under.price):
        share = (over.joules - energy_cap) / (over.joules - under.joules)
        return over.price + share * (under.price - over.price)
    return max(chord, 0.0)
