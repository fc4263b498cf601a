"""The price of energy at which clusters, taken together, meet an energy cap: found by an exchange.

The sum of the clusters' curves says where the best price is, and how good any plan can be at most: the
tangents of the sum, read off at the energy cap, bound every plan within it (weak duality).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.curves import (
    Bracket,
    End,
    Fleet,
    Grid,
    Point,
    Response,
    minimise_within,
    repair,
    settle,
    share_energy,
)
from cfel.control.exchange import (
    CurveAnswer,
    CurveQuestion,
    Exchange,
    FleetAnswers,
    Place,
    UndecidedAnswer,
    UndecidedQuestion,
    answer_locally,
    ask,
    count_thinned,
)

# Relative distance between chord and bound at which the search for the price ends, and a number of exchanges
# that no case came near.
TOLERANCE = 1e-7
MOST_EXCHANGES = 60
# Prices just before and just after the critical one: the two responses there differ only in devices that jump
# at that very price.
NUDGE = 1e-9
# A fleet of more than twice this many devices is first priced by a sample: one in so many of its devices, but
# no fewer than this.
SAMPLE, ONE_IN = 256, 8
# How far around a price from a sample of N devices the whole fleet is asked, times √N: four standard errors.
MARGIN = 4.0
# Prices of the first exchange, relative to the chord between the cheapest plan and the best one.
FIRST_PRICES = 10.0 ** np.array([-4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4])


def search_price(fleet: Fleet, energy_cap: float) -> Bracket:
    """Searches the price of energy at which a fleet's response meets the cap.

    If the cap is below the least energy of the fleet, the result's `under` exceeds it too.
    """
    return _search(FleetAnswers(fleet), energy_cap)


def meet_cap(fleet: Fleet, energy_cap: float) -> tuple[Bracket, Response]:
    """That search, and the plan of all devices within the cap."""
    answers = FleetAnswers(fleet)
    bracket = _search(answers, energy_cap)
    over = answers.respond(Place(), bracket.over.point.price)
    if bracket.over is bracket.under:
        return bracket, over
    under = answers.respond(Place(), bracket.under.point.price)
    plan = settle(fleet, share_energy(bracket, energy_cap), over, under)
    goal = minimise_within(energy_cap, bracket.lower_bound)
    return bracket, repair(fleet, plan, (over, under), goal)


def _search(answers: FleetAnswers, energy_cap: float) -> Bracket:
    fleet = answers.find(Place())
    devices = np.bincount(fleet.cluster, minlength=fleet.clusters).astype(np.float64)
    return answer_locally(seek_price(devices, energy_cap), answers.answer)


def bound_objective(fleet: Fleet, energy_cap: float) -> float:
    """A lower bound on the objective of every plan within the cap."""
    found: _Narrowed = answer_locally(_find_between(_Asked(Place()), energy_cap), FleetAnswers(fleet).answer)
    return found.lower_bound


def seek_price(devices: FloatArray, energy_cap: float, place: Place | None = None) -> Exchange[Bracket]:
    """The same by an exchange, with so many devices in each cluster."""
    place = place or Place()
    found, ends = yield from _seek(devices, energy_cap, place)
    prices = np.unique([found.over.price, found.under.price])
    # Nothing is proven by devices that were taken to be decided: all are asked again.
    again = yield from _ask_ends(place, prices)
    ends = sorted([*ends, *again], key=lambda end: end.point.price)
    bound = max(found.lower_bound, *(end.point.bound(energy_cap) for end in ends))
    # Energy falls as the price rises.
    split = sum(end.point.joules > energy_cap for end in ends)
    return Bracket(ends[max(split - 1, 0)], ends[min(split, len(ends) - 1)], bound)


class _Narrowed(NamedTuple):
    """Two points around the cap, as close as matters, and a lower bound on every plan within it."""

    over: Point
    under: Point
    lower_bound: float


def _seek(devices: FloatArray, energy_cap: float, place: Place) -> Exchange[tuple[_Narrowed, list[End]]]:
    """Two points around the cap, and what all devices of a place were asked; `devices` are the fleet's.

    A large fleet is priced by a sample first, and that by a sample of its own. Prices a little below and
    above the sample's nearly always lie on both sides of the cap, and few devices are undecided between them.
    """
    size = float(count_thinned(devices, place.stride).sum())
    stride = int(size // max(SAMPLE, size // ONE_IN)) if size > 2 * SAMPLE else 1
    sample = replace(place, stride=place.stride * stride)
    part = float(count_thinned(devices, sample.stride).sum())
    if 0 < part <= size / 2:
        sampled, _ = yield from _seek(devices, energy_cap * part / size, sample)
        margin = MARGIN / part**0.5
        around = sampled.over.price * np.array([1 - margin, 1 + margin])
        over, under = yield from _ask_ends(place, around)
        if over.point.joules > energy_cap >= under.point.joules:
            narrow = yield from _close_in_between(place, over.point, under.point, energy_cap)
            return _Narrowed(narrow.over, narrow.under, -np.inf), [over, under]
    found = yield from _find_between(_Asked(place), energy_cap)
    return found, []


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A place, and what all other devices add to its points."""

    place: Place
    add_rest: Callable[[Point], Point] = lambda point: point

    def ask(self, prices: FloatArray) -> Exchange[list[Point]]:
        """Points of the summed curve at given prices."""
        ends = yield from _ask_ends(self.place, prices)
        return [self.add_rest(end.point) for end in ends]


def _ask_ends(place: Place, prices: FloatArray) -> Exchange[list[End]]:
    answer: CurveAnswer
    (answer,) = yield from ask(CurveQuestion(place, Grid.of_prices(prices)))
    objective, joules = answer.objective[0], answer.joules[0]
    sums = zip(prices.tolist(), joules.sum(axis=-1).tolist(), objective.sum(axis=-1).tolist(), strict=True)
    return [End(Point(*each), objective[i], joules[i]) for i, each in enumerate(sums)]


def ask_point(place: Place, price: float) -> Exchange[Point]:
    """The point of the summed curve at one price."""
    (end,) = yield from _ask_ends(place, np.array([price]))
    return end.point


def _find_between(asked: _Asked, energy_cap: float) -> Exchange[_Narrowed]:
    over, under = yield from asked.ask(np.array([0.0, np.inf]))
    found = yield from _close_in(asked, over, under, energy_cap)
    return found


def _close_in_between(place: Place, over: Point, under: Point, energy_cap: float) -> Exchange[_Narrowed]:
    """Narrows two answers around the cap, asking only devices that are undecided between them."""
    asked = _Asked(place)
    for _ in range(MOST_EXCHANGES):
        place = place.narrow(over.price, under.price)
        few: UndecidedAnswer
        (few,) = yield from ask(UndecidedQuestion(place))
        asked = _Asked(place, _find_rest(over, under, few))
        if few.devices.sum() <= SAMPLE:
            break
        # Close to where the cap should be, most of them will be decided, too.
        share = (over.joules - energy_cap) / (over.joules - under.joules)
        shares = np.clip(share + np.array([-0.1, 0.1]), 0.05, 0.95)
        points = yield from asked.ask(over.price + shares * (under.price - over.price))
        over = next((point for point in reversed(points) if point.joules > energy_cap), over)
        under = next((point for point in points if point.joules <= energy_cap), under)
    found = yield from _close_in(asked, over, under, energy_cap)
    return found


def _find_rest(over: Point, under: Point, few: UndecidedAnswer) -> Callable[[Point], Point]:
    """What all but a few devices add to a point between two prices: they move evenly between them."""
    over_joules = over.joules - float(few.over_joules.sum())
    under_joules = under.joules - float(few.under_joules.sum())
    objective, first = over.objective - float(few.over_objective.sum()), over.price
    slope = (under_joules - over_joules) / (under.price - first)

    def add_rest(point: Point) -> Point:
        price = point.price
        return Point(
            price,
            point.joules + over_joules + slope * (price - first),
            # Along a curve every joule changes the objective by its price.
            point.objective + objective - 0.5 * slope * (price**2 - first**2),
        )

    return add_rest


def _close_in(asked: _Asked, over: Point, under: Point, energy_cap: float) -> Exchange[_Narrowed]:
    """Narrows two points around the cap until bound and chord meet there."""
    if over.joules <= energy_cap:
        return _Narrowed(over, over, over.objective)
    bound = max(over.bound(energy_cap), under.bound(energy_cap))
    for exchange in range(MOST_EXCHANGES):
        span = over.joules - under.joules
        # Without a span the two responses are the same to rounding.
        if span <= 0:
            break
        chord = max((under.objective - over.objective) / span, 0.0)
        estimate = over.objective + chord * (over.joules - energy_cap)
        if exchange and estimate - bound <= TOLERANCE * abs(estimate):
            break
        prices = _choose_prices(over, under, chord, energy_cap)
        if not prices.size:
            break
        points = yield from asked.ask(prices)
        bound = max(bound, *(point.bound(energy_cap) for point in points))
        for point in points:
            if point.joules > energy_cap:
                over = point
            else:
                under = point
                break
    return _Narrowed(over, under, bound)


def _choose_prices(over: Point, under: Point, chord: float, energy_cap: float) -> FloatArray:
    """Prices between the two points, rising.

    The slope of the chord finds kinks exactly; between kinks interpolating the price is better.
    """
    if over.price == 0 or np.isinf(under.price):
        prices = chord * FIRST_PRICES
    else:
        width, share = under.price - over.price, (over.joules - energy_cap) / (over.joules - under.joules)
        between = over.price + share * width
        even = over.price + width * np.array([0.25, 0.5, 0.75])
        near = between + width * np.array([-0.02, 0.0, 0.02])
        prices = np.concatenate([even, near, chord * (1 + NUDGE * np.array([-1.0, 0.0, 1.0]))])
    prices = np.unique(prices)
    return prices[(prices > over.price) & (prices < under.price)]
