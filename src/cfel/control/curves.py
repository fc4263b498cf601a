"""Planning by adding curves: what clusters answer, how the answers add up, and what clusters get back.

Only two numbers couple the clusters of a round: the price of energy λ and, where it is chosen, the makespan.
At a makespan and a price, the devices of a cluster have an exact best response, and of all its devices only
two numbers matter outside: the objective they reach and the energy they use. As functions of makespan and
price these two are the cluster's *curve*, and curves add up. So a round is planned in exchanges:

1. `make_curve`: every cluster answers a grid of makespans and prices with its curve;
2. `add_curves`: the curves are summed, in the order of clusters;
3. `prices.seek_price` (and `list_solver.rate_points`, where the makespan is chosen): the sum says where the
   best point is, and how good any plan can be at most;
4. `share_energy`: what the energy cap leaves at that point is divided among the clusters;
5. `settle`: every cluster plans its own devices within its share.

Nothing but grids, curves and shares passes between clusters and the one who plans, so the clusters' part can
be computed anywhere. It is computed here for all clusters at once; each cluster's numbers are those that it
would get alone, to the last bit (`Fleet.take`, sums by `add_by_cluster`).

Two kinds of fleet respond to prices: `segments.PricedFleet`, where ρ and θ are continuous, and
`list_solver.ListFleet`, where devices choose from a list. With few devices, what a price cannot reach is
worth having; `repair` adds a second kind of curve for that.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from cfel.arrays import FloatArray, IndexArray, narrow, run_blocks

# Prices that stand for none and for infinity: large and small enough, and their products are numbers.
NO_PRICE, ANY_PRICE = 1e-290, 1e200
# A plan is repaired if its proven gap is above the first, and from both sides if it is above the second. The
# fewer devices there are, the more there is to gain: at most `FEW` are offered all energies that they could
# use, and of more than `MOST_REPAIRED` only some are asked, and only if their gap is above the third.
REPAIR_ABOVE = 4e-6
THOROUGH_ABOVE = 1e-4
MOST_REPAIRED, SOME = 512, 64
REPAIR_MANY_ABOVE = 5e-6
FEW = 16
# The division of energy is searched on grids that close in.
REACHES = (1.0, 0.4, 0.16, 0.06, 0.02, 0.004, 0.001)
# How much of a limit is rounding.
ROUNDING = 1e-11
# More values than this are sorted in two steps.
MANY = 10_000


Place = Any
"""An index of NumPy arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """What clusters are asked: T makespans in seconds (+inf: as the caps say), and P prices for each.

    Attributes:
        makespan: T entries.
        price: T × P, per joule, in units of the objective; 0 … +inf.
    """

    makespan: FloatArray
    price: FloatArray

    @classmethod
    def of_prices(cls, price: FloatArray) -> "Grid":
        """Prices at the makespan of the caps."""
        return cls(np.array([np.inf]), price[np.newaxis])


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """What clusters answer to a grid: objective and joules of their best response, T × P × clusters."""

    grid: Grid
    objective: FloatArray
    joules: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """Every device's best response, per price (first axis) and device; it stays in the cluster.

    Attributes:
        choice: number of the segment or of the list's entry.
        rho: ρ on that segment; steps of that entry.
        joules, cost: energy and objective.
    """

    choice: NDArray[Any]
    rho: FloatArray
    joules: FloatArray
    cost: FloatArray

    @classmethod
    def empty(cls, shape: tuple[int, int], choice: type[np.signedinteger[Any]]) -> "Response":
        """Room for as many prices and devices."""
        return cls(np.empty(shape, choice), np.empty(shape), np.empty(shape), np.empty(shape))

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter((self.choice, self.rho, self.joules, self.cost))

    def pick(self, place: Place) -> "Response":
        """The entries at a place of all arrays."""
        return Response(*(values[place] for values in self))

    def put(self, place: Place, other: "Response") -> None:
        """Writes entries into a place of all arrays."""
        for values, new in zip(self, other, strict=True):
            values[place] = new


class Fleet(Protocol):
    """The devices of some clusters, which respond to prices of energy."""

    @property
    def cluster(self) -> IndexArray:
        """The cluster of every device."""

    @property
    def clusters(self) -> int:
        """How many clusters."""

    @property
    def size(self) -> int:
        """How many devices."""

    def at(self, makespan: FloatArray) -> Self:
        """One copy of the fleet per makespan; clusters of the second copy follow those of the first."""

    def take(self, devices: IndexArray | slice) -> Self:
        """Some of the devices."""

    def respond(self, price: FloatArray) -> Response:
        """Finds every device's exact minimum of cost + λ · joules, for prices × devices."""

    def place(self, choice: NDArray[Any], rho: FloatArray) -> Response:
        """Every device at ρ on the given segment, or at the given entry of the list."""

    def plan_within(self, joules: FloatArray) -> Response:
        """Every device at its least cost within given energies, rows × devices; infinite where none fits."""

    def prepare(self) -> Self:
        """The same fleet, ready for many questions."""

    def find_ready(self, response: Response, shape: tuple[int, int]) -> FloatArray:
        """Seconds that the slowest device of each cluster needs at full clock: makespans × prices × clusters.

        The responses are those of `make_curve` to a grid of that shape.
        """


def add_by_cluster(values: Iterable[FloatArray], fleet: Fleet) -> FloatArray:
    """Sums per cluster, rows × clusters, in the order of devices: each sum is that of the cluster alone."""
    rows = list(values)
    sums = np.zeros((len(rows), fleet.clusters))
    for own, row in zip(sums, rows, strict=True):
        np.add.at(own, fleet.cluster, row)
    return sums


def make_curve(fleet: Fleet, grid: Grid) -> tuple[Curve, Response]:
    """The clusters' answer to a grid, and the responses behind it (P × T·N), which stay where they are."""
    spans, prices = grid.price.shape
    copies = fleet if spans == 1 and np.isinf(grid.makespan[0]) else fleet.at(grid.makespan)
    response = copies.respond(_repeat(grid.price.T, fleet.size))
    shape = (prices, spans, fleet.clusters)
    objective, joules = (
        add_by_cluster(values, copies).reshape(shape).transpose(1, 0, 2)
        for values in (response.cost, response.joules)
    )
    return Curve(grid, objective, joules), response


def _repeat(values: FloatArray, times: int) -> FloatArray:
    """Every column so many times; a single one is not copied."""
    rows, columns = values.shape
    if columns == 1:
        return np.broadcast_to(values, (rows, times))
    return np.repeat(values, times, axis=1)


def limit_prices(price: FloatArray) -> FloatArray:
    """Prices to compute with; a column of a single one where all devices have the same."""
    return np.clip(narrow(price), NO_PRICE, ANY_PRICE)


def add_curves(curve: Curve) -> Curve:
    """The sum over clusters, in their order; sums of sums serve as well, up to rounding."""
    objective, joules = (part.sum(axis=-1, keepdims=True) for part in (curve.objective, curve.joules))
    return Curve(curve.grid, objective, joules)


class Point(NamedTuple):
    """A point of a summed curve at one makespan."""

    price: float
    joules: float
    objective: float

    def bound(self, energy_cap: float) -> float:
        """The tangent here, read off at the cap: by weak duality a lower bound on every plan within it."""
        if self.price == 0:
            return self.objective
        return self.objective + self.price * (self.joules - energy_cap) if self.price < np.inf else -np.inf


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """The clusters' answer at one price.

    Attributes:
        point: of the summed curve.
        objective, joules: per cluster.
    """

    point: Point
    objective: FloatArray
    joules: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Bracket:
    """Two neighbouring answers around the energy cap, and what is proven.

    Attributes:
        over: uses more than the cap (or is the unlimited optimum).
        under: uses no more than the cap.
        lower_bound: no plan within the cap has a smaller objective.
    """

    over: End
    under: End
    lower_bound: float

    @property
    def price(self) -> float:
        """The price of a joule here, λ."""
        return self.over.point.price


# What is left of the energy. Two neighbouring responses differ in devices that jump at that price. As many
# clusters as the cap pays for take the response over it, best value per joule first, and the next one in line
# gets the rest: within a cluster, devices jump by the same rule, and others move along their segments.


def share_energy(bracket: Bracket, energy_cap: float) -> FloatArray:
    """Divides the energy cap among the clusters: joules of each."""
    over, under = bracket.over, bracket.under
    extra, saved = over.joules - under.joules, under.objective - over.objective
    left = energy_cap - under.point.joules
    ranked = rank_by_worth(saved, extra)
    paid = np.cumsum(extra[ranked]) <= left
    share = under.joules.copy()
    share[ranked[paid]] = over.joules[ranked[paid]]
    if not paid.all() and left > 0:
        share[ranked[np.argmin(paid)]] += left - float(extra[ranked[paid]].sum())
    return share


def rank_by_worth(saved: FloatArray, extra: FloatArray) -> IndexArray:
    """Those that take more energy, best value per joule first."""
    wanted = np.flatnonzero(extra > 0)
    with np.errstate(over="ignore"):  # what costs next to nothing is worth infinitely much
        worth = saved[wanted] / np.maximum(extra[wanted], 1e-300)
    return wanted[_sort_stably(-worth)]


def _sort_stably(values: FloatArray) -> IndexArray:
    """`np.argsort(values, kind="stable")`; for many values by a faster sort, then of equal ones by number."""
    size = len(values)
    if size < MANY:
        return np.argsort(values, kind="stable")
    order = np.argsort(values)
    ranked = values[order]
    number = np.cumsum(np.append(False, ranked[1:] != ranked[:-1]))
    return np.asarray(np.sort(number * size + order) % size)


def settle(fleet: Fleet, share: FloatArray, over: Response, under: Response) -> Response:
    """Plans the devices of every cluster within its share, between the responses to two prices.

    All clusters together use more than the cap at the first, and no more at the second.
    """
    upper, lower = add_by_cluster((over.joules, under.joules), fleet)
    takes_all = (share >= upper) & (upper > lower)
    plan = Response(*(np.empty_like(values) for values in over))

    def work(block: slice) -> None:
        first = takes_all[fleet.cluster[block]]
        for place, *ends in zip(plan, over, under, strict=True):
            place[block] = np.where(first, *(end[block] for end in ends))

    run_blocks(work, fleet.size)
    for cluster in np.flatnonzero((share > lower) & (share < upper)):
        devices = np.flatnonzero(fleet.cluster == cluster)
        left = float(share[cluster] - lower[cluster])
        mixed = fleet.take(devices).place(*_mix(over.pick(devices), under.pick(devices), left))
        plan.put(devices, mixed)
    return plan


def _mix(over: Response, under: Response, left: float) -> tuple[NDArray[Any], FloatArray]:
    """Moves from one response towards the other, as far as the energy goes.

    Devices that jump do so whole, best value per joule first; the others share what is left.
    """
    extra, jumps = over.joules - under.joules, over.choice != under.choice
    ranked = rank_by_worth(np.where(jumps, under.cost - over.cost, 0.0), np.where(jumps, extra, 0.0))
    taken = ranked[np.cumsum(extra[ranked]) <= left]
    left -= float(extra[taken].sum())
    moving = float(extra[~jumps].sum())
    share = min(1.0, max(0.0, left) / moving) if moving > 0 else 0.0
    choice, rho = under.choice.copy(), np.where(jumps, under.rho, under.rho + share * (over.rho - under.rho))
    choice[taken], rho[taken] = over.choice[taken], over.rho[taken]
    return choice, rho


def respond_at(fleet: Fleet, price: float) -> Response:
    """Every device's response to one price."""
    return fleet.respond(np.broadcast_to(price, (1, fleet.size))).pick(0)


# What a price cannot reach. At any price a device goes where its value, as a function of its energy, touches
# its convex envelope. Between two such places it can still go: with few devices this is worth having. So a
# cluster answers a second question: how good can you be with so many joules more or less than now? These
# curves add up, too, if the energy is divided at its best: sum[j] = min over k of one[k] + other[j − k].


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """Best divisions of a change of energy among the members of each group.

    Attributes:
        objective, joules: groups × J; of the group with (j − Z) units more than now, J = 2Z + 1. Members that
            cannot use their units use less.
        picks: per level of the tree of sums, what the first of two takes: groups × pairs × J.
    """

    objective: FloatArray
    joules: FloatArray
    picks: tuple[IndexArray, ...]


def divide(objective: FloatArray, joules: FloatArray) -> Division:
    """Adds up the curves of each group's members, groups × members × J, as sums of sums."""
    groups, members, units = objective.shape
    zero, picks = units // 2, []
    group, unit = np.arange(groups)[:, None, None], np.arange(units)
    while members > 1:
        pairs = (members + 1) // 2
        room, used = np.full((groups, pairs, units + 2 * zero), np.inf), np.zeros((groups, pairs, units))
        room[:, : members // 2, zero:-zero], used[:, : members // 2] = objective[:, 1::2], joules[:, 1::2]
        if members % 2:
            # The odd one out is paired with nobody.
            room[:, -1, 2 * zero :] = 0.0
        # Window j, read from its end, has what the second of two gets if the first takes k of j.
        windows = sliding_window_view(room[:, :, ::-1], units, axis=-1)[:, :, ::-1]
        sums = windows + objective[:, 0::2, None, :]
        pick, pair = sums.argmin(axis=-1), np.arange(pairs)[:, None]
        other = np.clip(unit - pick + zero, 0, units - 1)
        joules = joules[:, 0::2][group, pair, pick] + used[group, pair, other]
        objective = np.take(sums, np.arange(0, sums.size, units) + pick.ravel()).reshape(pick.shape)
        members = pairs
        picks.append(pick)
    return Division(objective[:, 0], joules[:, 0], tuple(picks))


def undo(division: Division, units: IndexArray) -> IndexArray:
    """What every member takes, groups × members (and nobodies), if each group takes `units`."""
    zero, group = division.objective.shape[1] // 2, np.arange(len(units))[:, None]
    taken = units[:, None]
    for pick in reversed(division.picks):
        pairs = pick.shape[1]
        taken, both = taken[:, :pairs], np.empty((len(units), 2 * pairs), dtype=np.intp)
        both[:, 0::2] = pick[group, np.arange(pairs), taken]
        both[:, 1::2] = taken - both[:, 0::2] + zero
        taken = both
    return taken


Rate = Callable[[FloatArray, FloatArray], FloatArray]
"""What plans are worth, by objective and joules of the fleet; the larger, the better."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a division of energy is searched for: the best rate within the energy cap, or enough."""

    rate: Rate
    energy_cap: float
    enough: float
    lower_bound: float = -np.inf


def minimise_within(energy_cap: float, lower_bound: float) -> Goal:
    """The least objective within the cap."""

    def rate(objective: FloatArray, joules: FloatArray) -> FloatArray:
        return np.where(joules <= energy_cap * (1 + ROUNDING), -objective, -np.inf)

    return Goal(rate, energy_cap, -lower_bound - REPAIR_ABOVE * abs(lower_bound), lower_bound)


def repair(fleet: Fleet, plan: Response, ends: tuple[Response, Response], goal: Goal) -> Response:
    """Improves a plan between two responses by dividing its energy again, while its gap is not small."""
    if measure_gap(plan, goal.lower_bound) <= REPAIR_ABOVE:
        return plan
    if fleet.size > MOST_REPAIRED:
        enough = measure_gap(plan, goal.lower_bound) <= REPAIR_MANY_ABOVE
        return plan if enough else _repair_some(fleet, plan, ends, goal)
    over, under = ends
    if fleet.size <= FEW:
        most, least = fleet.respond(np.repeat([[0.0], [np.inf]], fleet.size, axis=1)).joules
        reach = float(np.minimum(most - least, goal.energy_cap).max())
    else:
        reach = 2.0 * float(np.abs(over.joules - under.joules).max())
    plan = divide_again(fleet, plan, reach, goal)
    if measure_gap(plan, goal.lower_bound) > THOROUGH_ABOVE:
        # The other way round: all jumps are made, and everybody saves a little for them.
        excess = float(over.joules.sum()) - goal.energy_cap
        other = divide_again(fleet, over, excess, goal)
        if goal.rate(other.cost.sum(), other.joules.sum()) > goal.rate(plan.cost.sum(), plan.joules.sum()):
            plan = divide_again(fleet, other, reach, goal)
    return plan


def _repair_some(fleet: Fleet, plan: Response, ends: tuple[Response, Response], goal: Goal) -> Response:
    """The same for a large fleet, by some devices that stand for all: those that jump, and a sample."""
    over, under = ends
    stride = -(-fleet.size // SOME)
    some = np.union1d(np.flatnonzero(over.choice != under.choice)[:SOME], np.arange(0, fleet.size, stride))
    part = plan.pick(some)
    cost, joules = (float(plan.cost.sum() - part.cost.sum()), float(plan.joules.sum() - part.joules.sum()))
    narrow = minimise_within(goal.energy_cap - joules, goal.lower_bound - cost)
    plan.put(some, repair(fleet.take(some), part, (over.pick(some), under.pick(some)), narrow))
    return plan


def divide_again(fleet: Fleet, plan: Response, reach: float, goal: Goal) -> Response:
    """The best division of energy around that of a plan, on grids that close in.

    Devices are offered up to `reach` joules more or less at first; where it is 0, there is nothing to divide.
    """
    if reach <= 0:
        return plan
    half = count_units(fleet.size)
    for closer in REACHES if reach > 0 else ():
        unit, left = closer * reach / half, goal.energy_cap - float(plan.joules.sum())
        if unit < left < np.inf:
            # What is left may go to one device whole, or to several in equal parts.
            unit = left / min(np.ceil(left / unit), half)
        better = _divide_once(fleet, plan, unit, goal.rate)
        worth, before = (float(goal.rate(each.cost.sum(), each.joules.sum())) for each in (better, plan))
        plan = better if worth > before else plan
        if max(worth, before) >= goal.enough:
            break
    return plan


def _divide_once(fleet: Fleet, plan: Response, unit: float, rate: Rate) -> Response:
    """The best division in steps of `unit` joules."""
    half = count_units(fleet.size)
    offset = unit * np.arange(-half, half + 1.0)
    offered = fleet.plan_within(plan.joules + offset[:, None])
    # The plan itself is among the offers; where rounding hides it, it stays.
    worse = plan.cost < offered.cost[half]
    offered.put((half, worse), plan.pick(worse))
    seat, table = _seat_by_cluster(fleet)
    nobody = np.where(np.arange(2 * half + 1) < half, np.inf, 0.0)
    objective, joules = np.tile(nobody, (*table, 1)), np.zeros((*table, 2 * half + 1))
    objective[seat], joules[seat] = offered.cost.T, offered.joules.T
    own = divide(objective, joules)
    whole = divide(own.objective[np.newaxis], own.joules[np.newaxis])
    chosen = int(rate(whole.objective[0], whole.joules[0]).argmax())
    shares = undo(whole, np.array([chosen]))[0, : table[0]]
    return offered.pick((undo(own, shares)[seat], np.arange(fleet.size)))


def measure_gap(plan: Response, lower_bound: float) -> float:
    """How much worse than a lower bound a plan is, relatively."""
    return (float(plan.cost.sum()) - lower_bound) / max(abs(lower_bound), 1e-300)


def count_units(devices: int) -> int:
    """Z: how many units more or less each device is offered."""
    return int(np.clip(1024 // devices, 16, 64))


def _seat_by_cluster(fleet: Fleet) -> tuple[tuple[IndexArray, IndexArray], tuple[int, int]]:
    """A row per cluster that has devices, and a seat per device; and how many rows and seats there are."""
    _, row, count = np.unique(fleet.cluster, return_inverse=True, return_counts=True)
    return (row, rank_in_cluster(fleet.cluster)), (len(count), int(count.max()))


def rank_in_cluster(cluster: IndexArray) -> IndexArray:
    """The place of every device among those of its cluster."""
    order = np.argsort(cluster, kind="stable")
    count = np.bincount(cluster) if cluster.size else np.zeros(0, dtype=np.intp)
    rank = np.empty(len(cluster), dtype=np.intp)
    rank[order] = np.arange(len(cluster)) - np.repeat(np.cumsum(count) - count, count)
    return rank
