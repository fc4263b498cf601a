"""The price of energy at which clusters, taken together, meet an energy cap: found by an exchange.

The sum of the clusters' curves says where the best price is, and how good any plan can be at most: the
tangents of the sum, read off at the energy cap, bound every plan within it (weak duality).
"""

from collections.abc import Iterator
from dataclasses import replace

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
SAMPLE, ONE_IN = 256, 16
# How far around a price from a sample of N devices the whole fleet is asked, times √N: four standard errors
# of its energy, over the elasticity of energy by price, which is taken to be within bounds.
MARGIN, ELASTICITY = 4.0, (0.1, 2.0)
# A sample is asked no further where energy bends between two prices by less than this, of its span.
STRAIGHT = 0.1
# More devices than this are asked at two prices at a time, so far around the expected one, of those between
# which it lies.
MANY, AIM, AIMED = 4_096, 0.005, 2
ANY_PRICES = np.array([0.0, np.inf])
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


def seek_price(devices: FloatArray, energy_cap: float, place: Place | None = None) -> Exchange[Bracket]:
    """The same by an exchange, with so many devices in each cluster.

    A large fleet is priced by samples first, each larger than the one before. Prices a little below and above
    a sample's nearly always lie on both sides of the cap.
    """
    place, size = place or Place(), float(devices.sum())
    around = ANY_PRICES
    for stride in _list_strides(size):
        part = float(count_thinned(devices, stride).sum())
        if 0 < part <= size / 2:
            share = energy_cap * part / size
            found = yield from _close_in(replace(place, stride=stride), int(part), share, around)
            around = _expect_between(found, share, part)
    found = yield from _close_in(place, int(size), energy_cap, around)
    return found


def _list_strides(size: float) -> Iterator[int]:
    """One in so many devices is in a sample, the smallest sample first."""
    if size > 2 * SAMPLE:
        stride = int(size // max(SAMPLE, size // ONE_IN))
        yield from (stride * more for more in _list_strides(size / stride))
        yield stride


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


def _close_in(place: Place, size: int, energy_cap: float, around: FloatArray) -> Exchange[Bracket]:
    """Narrows two prices around the cap until bound and chord meet there, or a sample can tell the price."""
    for prices in (around, _widen(around), ANY_PRICES):
        over, under = yield from _ask_ends(place, prices)
        if prices[0] == 0 or over.point.joules > energy_cap >= under.point.joules:
            break
    if over.point.joules <= energy_cap:
        return Bracket(over, over, over.point.objective)
    bound = max(over.point.bound(energy_cap), under.point.bound(energy_cap))
    for exchange in range(MOST_EXCHANGES):
        span = over.point.joules - under.point.joules
        # Without a span the two responses are the same to rounding.
        if span <= 0:
            break
        chord = max((under.point.objective - over.point.objective) / span, 0.0)
        estimate = over.point.objective + chord * (over.point.joules - energy_cap)
        if exchange and estimate - bound <= TOLERANCE * abs(estimate):
            break
        between = over.point.price > 0 and under.point.price < np.inf
        if between and place.stride > 1 and abs(_find_bend(over.point, under.point)) <= STRAIGHT:
            break
        if between and size > MANY and exchange < AIMED:
            prices = _aim(over.point, under.point, energy_cap)
        else:
            prices = _choose_prices(over.point, under.point, chord, energy_cap)
        prices = np.unique(prices)
        prices = prices[(prices > over.point.price) & (prices < under.point.price)]
        if not prices.size:
            break
        ends = yield from _ask_ends(place, prices)
        bound = max(bound, *(end.point.bound(energy_cap) for end in ends))
        for end in ends:
            if end.point.joules > energy_cap:
                over = end
            else:
                under = end
                break
    return Bracket(over if under.point.joules <= energy_cap else under, under, bound)


def _choose_prices(over: Point, under: Point, chord: float, energy_cap: float) -> FloatArray:
    """Prices between the two points.

    The slope of the chord finds kinks exactly; between kinks interpolating the price is better.
    """
    if over.price == 0 or np.isinf(under.price):
        return chord * FIRST_PRICES
    width, share = under.price - over.price, (over.joules - energy_cap) / (over.joules - under.joules)
    between = over.price + share * width
    even = over.price + width * np.array([0.25, 0.5, 0.75])
    near = between + width * np.array([-0.02, 0.0, 0.02])
    return np.concatenate([even, near, chord * (1 + NUDGE * np.array([-1.0, 0.0, 1.0]))])


def _expect_between(found: Bracket, energy_cap: float, devices: float) -> FloatArray:
    """Two prices between which that of the fleet is, by a sample with so many devices."""
    over, under = found.over.point, found.under.point
    price = _interpolate(over, under, energy_cap)
    if not 0 < price < np.inf:
        return ANY_PRICES
    # The less energy depends on the price, the less a sample's energy says about it.
    fall, rise = (over.joules - under.joules) / energy_cap, (under.price - over.price) / price
    margin = MARGIN / devices**0.5 / float(np.clip(fall / rise if rise > 0 else np.inf, *ELASTICITY))
    return np.array([price / (1 + margin), price * (1 + margin)])


def _widen(around: FloatArray) -> FloatArray:
    """Prices four times as far from each other, as a ratio."""
    if around[0] == 0:
        return around
    return np.asarray(around * (around[1] / around[0]) ** np.array([-1.5, 1.5]))


def _aim(over: Point, under: Point, energy_cap: float) -> FloatArray:
    """Two prices closely around the expected one."""
    return _interpolate(over, under, energy_cap) + AIM * (under.price - over.price) * np.array([-1.0, 1.0])


def _interpolate(over: Point, under: Point, energy_cap: float) -> float:
    """The price at which energy meets the cap if it falls along a parabola between two points."""
    if not 0 < over.price < under.price < np.inf:
        return over.price
    span, above = over.joules - under.joules, over.joules - energy_cap
    bend = 4.0 * span * float(np.clip(_find_bend(over, under), -0.25, 0.25))
    slope = span - bend
    share = 2.0 * above / (slope + float(np.sqrt(slope**2 + 4.0 * bend * above)))
    return over.price + share * (under.price - over.price)


def _find_bend(over: Point, under: Point) -> float:
    """How far energy in the middle of two prices is above the mean, as a share of its fall between them."""
    # Along a curve every joule changes the objective by its price, so objectives tell the mean energy.
    change = under.price * under.joules - over.price * over.joules + under.objective - over.objective
    mean, even = change / (under.price - over.price), (over.joules + under.joules) / 2
    return 1.5 * (mean - even) / (over.joules - under.joules)
