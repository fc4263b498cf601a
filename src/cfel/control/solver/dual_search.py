"""The least objective a fleet can have for a given energy, bounded from below and nearly reached.

Plot every plan of the fleet as a point (energy, objective). The lower convex hull of those points is what
Lagrangian duality can see: for a price λ the devices' best answers (`Crew.cheapest`) are the hull's point
with slope −λ. `search` walks along the hull towards the energy cap with two points, one over the cap and one
under it. The tangents at points already visited give a valid lower bound, the chord between the two an upper
estimate, and the walk ends when they meet.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from cfel.control.solver.priced_fleet import Choice

# Relative distance between chord and tangents at which the walk ends, and a limit no instance came near.
TOLERANCE = 1e-6
MOST_STEPS = 100
# Around the best price the answers just before and just after it are looked up, so that only devices that
# jump at that very price differ between the two ends.
NUDGE = 1e-7
# A fleet larger than this is first priced by a sample of about this size.
SAMPLE = 8192
# How far around a guessed price the two first points are taken: four standard errors of the sample.
MARGIN = 4.0 / SAMPLE**0.5


class Priced(Protocol):
    """Devices that answer to a price of energy: a `Crew`, or a `Menu`."""

    @property
    def size(self) -> int:
        """Number of devices."""

    def cheapest(self, multiplier: float) -> Choice:
        """Every device's exact minimum of objective + λ · energy."""

    def least(self) -> Choice:
        """The answer to an infinite price."""

    def every(self, stride: int) -> Self:
        """One device in `stride`."""


@dataclass(frozen=True, slots=True, eq=False)
class Bracket:
    """Two neighbouring points of the hull around the energy cap.

    Attributes:
        over: needs more than the cap (or just as much, or is the unlimited optimum).
        under: needs no more than the cap.
        lower_bound: proven least objective at the cap, divided by A.
    """

    over: Choice
    under: Choice
    lower_bound: float

    @property
    def price(self) -> float:
        """What a joule is worth here."""
        return min(self.over.multiplier, self.under.multiplier)


def search(crew: Priced, energy_cap: float, guess: float | None = None) -> Bracket:
    """Walks the hull until the cap lies between two points that the hull joins by a straight line.

    Args:
        crew: what the devices can do.
        energy_cap: joules; at least the energy of the fleet at its lower bounds, else the result's `under`
            exceeds the cap too.
        guess: a price thought to be near; saves steps if it is.
    """
    over, under = _ends(crew, energy_cap, guess)
    if over.joules <= energy_cap:
        return Bracket(over, over, over.objective)
    bound, price = max((_tangent(end, energy_cap), end.multiplier) for end in (over, under))
    for step in range(MOST_STEPS):
        span = over.joules - under.joules
        chord = (under.objective - over.objective) / span if span > 0 else 0.0
        estimate = over.objective + chord * (over.joules - energy_cap)
        # Without a span the two cannot be told apart any more.
        if span <= 0 or estimate - bound <= TOLERANCE * abs(estimate):
            break
        point = crew.cheapest(_next_multiplier(over, under, chord, energy_cap, step))
        bound, price = max((bound, price), (_tangent(point, energy_cap), point.multiplier))
        over, under = _narrowed(over, under, point, energy_cap)
    if crew.size <= SAMPLE and (over.piece != under.piece).any():
        for nearby in (price * (1 - NUDGE), price * (1 + NUDGE)):
            if over.multiplier < nearby < under.multiplier:
                over, under = _narrowed(over, under, crew.cheapest(nearby), energy_cap)
    return Bracket(over, under, min(bound, estimate))


def _ends(crew: Priced, energy_cap: float, guess: float | None) -> tuple[Choice, Choice]:
    """Two points of the hull to start from; if the first needs no more than the cap, it is the optimum.

    A large fleet is priced by a sample first: the answers a little above and below a good guess nearly always
    lie on both sides of the cap. Where they do not, or there is no guess, the ends of the hull serve.
    """
    over, under = None, None
    stride = crew.size // SAMPLE
    if guess is None and stride > 1:
        cap = energy_cap / crew.size * len(range(0, crew.size, stride))
        guess = search(crew.every(stride), cap).over.multiplier
    if guess:
        for multiplier in (guess * (1 - MARGIN), guess * (1 + MARGIN)):
            point = crew.cheapest(multiplier)
            if point.joules > energy_cap:
                over = point
            elif under is None:
                under = point
    return over or crew.cheapest(0.0), under or crew.least()


def _tangent(point: Choice, energy_cap: float) -> float:
    """The dual value: what the hull's tangent at a point says of the least objective at the cap."""
    if np.isinf(point.multiplier):
        return -np.inf
    return point.objective + point.multiplier * (point.joules - energy_cap)


def _narrowed(over: Choice, under: Choice, point: Choice, energy_cap: float) -> tuple[Choice, Choice]:
    return (point, under) if point.joules > energy_cap else (over, point)


def _next_multiplier(over: Choice, under: Choice, chord: float, energy_cap: float, step: int) -> float:
    """The chord's slope finds kinks exactly; between kinks interpolating the price is faster: take turns."""
    if step % 2 and np.isfinite(under.multiplier):
        share = (over.joules - energy_cap) / (over.joules - under.joules)
        return over.multiplier + share * (under.multiplier - over.multiplier)
    return max(chord, 0.0)
