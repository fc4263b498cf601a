"""The list responder: a round solved on a list of pairs (k, θ), each with a clock to match.

A plan in whole steps happens as planned, so its expected cost is its realised cost. For every pair the best
clock is the slowest one that meets the device's time limit,

    s = kμ / (limit − θν), at least the slowest clock allowed;   energy = kα·e(s) + pθν

with the device's clock curve e(s) = c + (1 − c)·s^γ. So each device has a short list of pairs, each with an
objective and an energy, and the search for the price of energy (`curves`) applies as it does to P2. Its bound
says: no plan on the list with this makespan and this energy has a smaller objective.

The caps say what a round may use, not what it should use. Slow clocks that fill a slack time cap, or uploads
that hardly help but fit the energy budget, buy little. So with a time weight a between 0 and 1 the plan
maximises

    log progress − a·log makespan − (1 − a)·log energy

among the plans within the caps: one percent more time is spent only where it brings at least a percent of a
in progress. For a given makespan this sets the price of energy, λ = (1 − a)·progress / energy, and the
response to a price is exact. The makespan is searched on a grid. Without a time weight the caps are used up.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import FloatArray, IndexArray, run_blocks
from cfel.control.curves import (
    Curve,
    Goal,
    Grid,
    Response,
    divide_again,
    limit_prices,
    respond_at,
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
from cfel.control.prices import ask_point, meet_cap
from cfel.control.problem import (
    SLACK,
    Proposal,
    RoundProblem,
    Solution,
    find_feasible_limits,
    prove,
    solve_without_too_costly,
)
from cfel.system.conditions import PAPER_EXPONENT

THETA_LIST = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
"""The shares θ to choose from; those below `theta_min` are left out."""

# With more local iterations than this, the numbers of steps to choose from are thinned out.
MOST_STEP_COUNTS = 20
# Up to this many energies (devices × pairs) are kept between responses; more are computed again every time.
MOST_KEPT = 4_000_000
# Energies that are worked on at a time: they stay in the processor's cache.
AT_A_TIME = 32_768
# Prices that are tried, relative to the best one so far: at first, where the energy cap asks for more, and
# around the best point.
FIRST_PRICES = np.array([0.5, 1.0, 1.7, 3.0])
HIGH_PRICES = np.array([5.0, 8.0, 16.0, 40.0, 200.0, np.inf])
NEAR_PRICES = np.array([0.85, 1.15])
# At a given makespan the price and the response to it settle in a few steps.
PRICE_STEPS = 6
# So few devices are also offered what no price reaches, at up to so many makespans.
FEW = 32
MOST_TRIED = 64
# For so few devices × pairs, every makespan at which a device is just ready is tried.
MOST_READY = 600
# Makespans that are tried at each stage of the search; few devices are offered more.
MAKESPANS = 12
# How often the range is halved in which the shortest makespan lies that the energy cap allows.
HALVINGS = 10
# Of these, so many of the best are tried again with the time that their responses need.
TIGHTENED = 3
# A larger fleet chooses its makespan by a sample of about this size.
SAMPLE = 2048
_PER_DEVICE = (
    *("step_seconds", "step_joules", "upload_seconds", "upload_joules"),
    *("clock_static", "clock_exponent", "seconds", "battery", "cluster"),
)


@dataclass(frozen=True, slots=True, eq=False)
class PairTable:
    """The pairs (k, θ) to choose from, the same for all devices.

    Attributes:
        steps: k of every pair; the first pair has the fewest steps and the smallest θ.
        theta: θ of every pair.
        cost: objective of every pair, to be made small; negative where a pair is progress.
        least_clock: smallest share of its full clock that a device may run at, in (0, 1]; `None` where clocks
            are not chosen.
    """

    steps: FloatArray
    theta: FloatArray
    cost: FloatArray
    least_clock: float | None = None

    def drop_dominated(self) -> "PairTable":
        """The table without pairs that take more time and energy than another one and bring no more.

        Time and energy of every device rise with steps and with θ, so no device would choose them.
        """
        rank = np.arange(len(self.cost))
        least, most = (slice(None), None), (None, slice(None))
        worse = (self.steps[least] >= self.steps) & (self.theta[least] >= self.theta)
        worse &= self.cost[least] >= self.cost
        same = worse & worse.T
        # Of equals, the first stays.
        worse &= ~same | (rank[least] > rank[most])
        kept = np.flatnonzero(~worse.any(axis=1) | (rank == 0))
        return replace(self, steps=self.steps[kept], theta=self.theta[kept], cost=self.cost[kept])

    @property
    def slowest(self) -> float:
        """The slowest clock."""
        return 1.0 if self.least_clock is None else self.least_clock


def list_theta(least: float, most: float = 1.0) -> FloatArray:
    """The shares to choose from, beginning with the least."""
    return np.array(sorted({least, most, *(share for share in THETA_LIST if least <= share <= most)}))


def list_steps(rho_min: float, tau: int) -> FloatArray:
    """The numbers of steps to choose from, beginning with the fewest that keep to ρ_min."""
    fewest = count_fewest_steps(rho_min, tau)
    return np.unique(np.linspace(fewest, tau, min(tau - fewest + 1, MOST_STEP_COUNTS)).round())


def count_fewest_steps(rho_min: float, tau: int) -> int:
    """The fewest whole steps that keep to ρ_min; at least one."""
    return max(1, math.ceil(rho_min * tau - 1e-9))


def pair_up(steps: FloatArray, theta: FloatArray) -> tuple[FloatArray, IndexArray]:
    """Every step count with every θ: the steps of each pair, and where its θ is in the list."""
    return np.repeat(steps, theta.size), np.tile(np.arange(theta.size), steps.size)


@dataclass(frozen=True, slots=True, eq=False)
class ListFleet:
    """The devices of a round and their limits, which respond to a price by pairs; one entry per device.

    Attributes:
        table: the pairs, without those that no device would ever choose.
        step_seconds, step_joules: μ and α at full clock.
        upload_seconds, upload_joules: ν and pν.
        clock_static, clock_exponent: c and γ of the clock curve.
        seconds, battery: time and energy limits; the first pair must meet them.
        cluster, clusters: the cluster of every device, and how many there are.
        rows: energy of every pair, devices × pairs, where it is kept.
    """

    table: PairTable
    step_seconds: FloatArray
    step_joules: FloatArray
    upload_seconds: FloatArray
    upload_joules: FloatArray
    clock_static: FloatArray
    clock_exponent: FloatArray
    seconds: FloatArray
    battery: FloatArray
    cluster: IndexArray
    clusters: int
    rows: FloatArray | None = None

    @classmethod
    def from_problem(
        cls, problem: RoundProblem, table: PairTable, seconds: FloatArray, battery: FloatArray | None
    ) -> "ListFleet":
        """The devices of a round."""
        return cls(
            table.drop_dominated(),
            step_seconds=problem.mu,
            step_joules=problem.alpha,
            upload_seconds=problem.nu,
            upload_joules=problem.power * problem.nu,
            clock_static=np.broadcast_to(problem.clock_static, problem.mu.shape),
            clock_exponent=np.broadcast_to(problem.clock_exponent, problem.mu.shape),
            seconds=seconds,
            battery=np.full(problem.devices, np.inf) if battery is None else battery,
            cluster=problem.cluster,
            clusters=problem.clusters,
        )

    @property
    def size(self) -> int:
        """Number of devices, N."""
        return len(self.seconds)

    def take(self, devices: IndexArray | slice) -> "ListFleet":
        """Some of the devices."""
        rows = None if self.rows is None else self.rows[devices]
        some = {name: getattr(self, name)[devices] for name in _PER_DEVICE}
        return replace(self, rows=rows, **some).prepare()

    def at(self, makespan: FloatArray) -> "ListFleet":
        """One copy per makespan, in which devices have at most as many seconds."""
        spans = len(makespan)
        copies: dict[str, Any] = {
            name: np.concatenate([getattr(self, name)] * spans) for name in _PER_DEVICE if name != "cluster"
        }
        copies["seconds"] = np.minimum(self.seconds, makespan[:, None]).ravel()
        copies["cluster"] = (self.cluster + self.clusters * np.arange(spans)[:, None]).ravel()
        return replace(self, rows=None, clusters=self.clusters * spans, **copies)

    def find_ready(self, response: Response, shape: tuple[int, int]) -> FloatArray:
        """Seconds that the slowest device of each cluster needs: makespans × prices × clusters."""
        spans, prices = shape
        choice = response.choice.reshape(prices, spans, self.size)
        order = np.argsort(self.cluster, kind="stable")
        present, start = np.unique(self.cluster[order], return_index=True)
        ready = np.zeros((spans, prices, self.clusters))
        if order.size:
            needed = self.needed_seconds(choice)[:, :, order]
            ready[:, :, present] = np.maximum.reduceat(needed, start, axis=2).transpose(1, 0, 2)
        return ready

    def prepare(self) -> "ListFleet":
        """The same fleet, with the energies of all pairs kept if they take little memory."""
        few = self.rows is None and self.size * len(self.table.steps) <= MOST_KEPT
        return replace(self, rows=self._rows(slice(None))) if few else self

    def least_makespan(self) -> float:
        """Seconds within which every device can do the first pair at full clock."""
        return float(
            (self.table.steps[0] * self.step_seconds + self.table.theta[0] * self.upload_seconds).max()
        )

    def least_joules_at_full_clock(self) -> float:
        """What all devices together need for the first pair if none is slowed down."""
        return float(
            (self.table.steps[0] * self.step_joules + self.table.theta[0] * self.upload_joules).sum()
        )

    def longest_makespan(self) -> float:
        """Seconds beyond which no device has a use for more: all steps at the slowest clock, all sent."""
        slowest = self.table.steps.max() * self.step_seconds / self.table.slowest
        return float((slowest + self.table.theta.max() * self.upload_seconds).max())

    def respond(self, price: FloatArray) -> Response:
        """Finds every device's best pair at a price: the exact minimum of cost + λ · energy."""
        found = Response.empty(price.shape, np.int16)

        def work(block: slice) -> None:
            rows = self._rows(block)
            start = np.arange(0, rows.size, rows.shape[1])
            value = np.empty_like(rows)
            for number, each in enumerate(limit_prices(price[:, block])):
                np.multiply(rows, each[:, None], out=value)
                value += self.table.cost
                pair = value.argmin(axis=1)
                found.choice[number, block] = pair
                np.take(rows, start + pair, out=found.joules[number, block])

        run_blocks(work, self.size, AT_A_TIME // len(self.table.steps))
        np.take(self.table.cost, found.choice, out=found.cost)
        np.take(self.table.steps, found.choice, out=found.rho)
        return found

    def place(self, choice: NDArray[np.int16], rho: FloatArray) -> Response:
        """Every device at a pair."""
        return Response(choice, rho, self._joules(choice), self.table.cost[choice])

    def plan_within(self, joules: FloatArray) -> Response:
        """Every device at its least cost within given energies, rows × devices."""
        rows = self._rows(slice(None))
        fits = rows <= joules[:, :, None] * (1 + 1e-12)
        choice = np.where(fits, self.table.cost, np.inf).argmin(axis=2)
        spent = np.take_along_axis(rows, choice.T, axis=1).T
        cost = np.where(spent <= joules * (1 + 1e-12), self.table.cost[choice], np.inf)
        return Response(choice.astype(np.int16), self.table.steps[choice], spent, cost)

    def clock(self, pair: NDArray[np.int16]) -> FloatArray:
        """Share of its full clock that every device runs at with its pair."""
        left = self.seconds - self.table.theta[pair] * self.upload_seconds
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(left > 0, self.table.steps[pair] * self.step_seconds / left, 1.0)
        return np.asarray(np.clip(needed, self.table.slowest, 1.0))

    def needed_seconds(self, pair: NDArray[np.int16]) -> FloatArray:
        """Seconds of every device with its pair at full clock."""
        table = self.table
        return table.steps[pair] * self.step_seconds + table.theta[pair] * self.upload_seconds

    def _joules(self, pair: NDArray[np.int16]) -> FloatArray:
        steps, theta, clock = self.table.steps[pair], self.table.theta[pair], self.clock(pair)
        share = self._clock_energy(clock, slice(None))
        return np.asarray(steps * self.step_joules * share + theta * self.upload_joules)

    def _rows(self, block: slice) -> FloatArray:
        """Energy of every pair, infinite where the limits forbid it: one row per device."""
        if self.rows is not None:
            return self.rows[block]
        steps, theta = self.table.steps, self.table.theta
        seconds, battery = self.seconds[block, None], self.battery[block, None]
        # The inner loop of every large plan: in-place operations, as temporaries cost more than arithmetic.
        computing, sending = (
            steps * self.step_seconds[block, None],
            theta * self.upload_seconds[block, None],
        )
        beyond = computing + sending > seconds * (1 + SLACK)
        left = np.subtract(seconds, sending, out=sending)
        with np.errstate(divide="ignore", invalid="ignore"):
            clock = np.divide(computing, left, out=computing)
        np.copyto(clock, 1.0, where=left <= 0)
        np.maximum(clock, self.table.slowest, out=clock)
        np.minimum(clock, 1.0, out=clock)
        joules = self._clock_energy(clock, (block, None))
        joules *= steps * self.step_joules[block, None]
        joules += np.multiply(theta, self.upload_joules[block, None], out=left)
        if np.isfinite(battery).any():
            beyond |= joules > battery * (1 + SLACK)
        beyond[:, 0] = False
        np.copyto(joules, np.inf, where=beyond)
        return joules

    def _clock_energy(self, clock: FloatArray, where: slice | tuple[slice, None]) -> FloatArray:
        """`system.conditions.clock_energy`, device by device: a fleet's numbers are those of its clusters."""
        static, exponent = self.clock_static[where], self.clock_exponent[where]
        share = np.square(clock)
        if (exponent != PAPER_EXPONENT).any():
            share = np.where(exponent == PAPER_EXPONENT, share, np.power(clock, exponent))
        if static.any():
            share *= 1.0 - static
            share += static
        return share


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A plan of every device, and a lower bound on the objective at the same makespan and energy."""

    response: Response
    lower_bound: float
    price: float

    @property
    def objective(self) -> float:
        """Of all devices."""
        return float(self.response.cost.sum())


@dataclass(frozen=True, slots=True)
class Weighing:
    """What progress is weighed against: log progress − a·log seconds − (1 − a)·log joules.

    Attributes:
        time: a, in [0, 1).
        seconds, joules: what the round takes beside the devices' work: gossip.
    """

    time: float
    seconds: float = 0.0
    joules: float = 0.0

    def score(
        self, objective: FloatArray | float, makespan: FloatArray | float, joules: FloatArray | float
    ) -> FloatArray:
        """What is maximised; −inf without progress, which is a negative objective."""
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds, energy = np.log(makespan + self.seconds), np.log(joules + self.joules)
            found = np.log(np.negative(objective)) - self.time * seconds - (1 - self.time) * energy
        return np.where((np.asarray(objective) < 0) & (np.asarray(joules) > 0), found, -np.inf)

    def price(self, objective: float, joules: float) -> float:
        """λ = (1 − a)·progress / energy, the price at which the score is stationary."""
        return (1 - self.time) * max(-objective, 0.0) / (joules + self.joules) if joules > 0 else 0.0


def solve_on_list(problem: RoundProblem, table: PairTable, weighing: Weighing | None = None) -> Solution:
    """Decides the steps, θ and the clock of every device.

    Args:
        problem: what is known and what may be spent; its own objective plays no part. ρ_min and θ_min must
            be those of the table's first pair.
        table: the pairs to choose from and what each is worth.
        weighing: what time and energy are worth; None to use the caps up.
    """
    return solve_without_too_costly(problem, lambda rest, _: _solve(rest, table, weighing), table.slowest)


def _solve(problem: RoundProblem, table: PairTable, weighing: Weighing | None) -> Solution:
    limits = find_feasible_limits(problem, table.slowest)
    fleet = ListFleet.from_problem(problem, table, limits.seconds, limits.battery)
    if limits.forced:
        response = respond_at(fleet, np.inf)
        plan = _Plan(response, float(response.cost.sum()), np.inf)
    elif weighing is None:
        fleet = fleet.prepare()
        plan = _meet_cap(fleet, limits.joules)
    else:
        fleet, plan = _find_best(fleet, limits.joules, weighing)
    pair = plan.response.choice
    found = Proposal(
        rho=fleet.table.steps[pair] / problem.tau,
        theta=fleet.table.theta[pair],
        lower_bound=plan.lower_bound,
        multiplier=plan.price,
        method="list",
        clock=None if table.least_clock is None else fleet.clock(pair),
        objective=plan.objective,
    )
    return prove(problem, limits, found)


def _find_best(fleet: ListFleet, energy_cap: float, weighing: Weighing) -> tuple[ListFleet, _Plan]:
    """The best plan at the best makespan.

    With few devices and a cap that binds, plans fall short of what the curves promise: other makespans are
    then tried as well, as long as they promise more.
    """
    first, *others = _search_makespan(fleet, energy_cap, weighing)
    best = _plan_at(fleet, energy_cap, weighing, first)
    for point in others:
        if point.score <= best.score:
            break
        best = max(best, _plan_at(fleet, energy_cap, weighing, point), key=lambda each: each.score)
    return best.fleet, best.plan


def rate_points(total: Curve, energy_cap: float, weighing: Weighing) -> FloatArray:
    """The score of every point of a summed curve, makespans × prices; −inf beyond the energy cap.

    Where the cap lies between two prices, the second stands for what the chord between them says can be
    reached with all of the energy.
    """
    joules, objective = total.joules[:, :, 0], total.objective[:, :, 0]
    makespan = total.grid.makespan[:, None]
    rated = np.where(joules <= energy_cap, weighing.score(objective, makespan, joules), -np.inf)
    crossing = (joules[:, :-1] > energy_cap) & (joules[:, 1:] <= energy_cap)
    if crossing.any():
        span = np.where(crossing, joules[:, :-1] - joules[:, 1:], 1.0)
        share = (energy_cap - joules[:, 1:]) / span
        reached = objective[:, 1:] + share * (objective[:, :-1] - objective[:, 1:])
        at_cap = weighing.score(reached, makespan, np.full_like(reached, energy_cap))
        rated[:, 1:] = np.where(crossing, np.maximum(rated[:, 1:], at_cap), rated[:, 1:])
    return rated


class _Tried(NamedTuple):
    """A plan at a makespan, and its score."""

    score: float
    fleet: ListFleet
    plan: _Plan


class Point(NamedTuple):
    """A makespan and a price, their score, and the seconds that the response needs at full clocks."""

    score: float
    makespan: float
    price: float
    needed: float


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Between which makespans a fleet is planned, and which are tried in any case.

    Attributes:
        shortest: within which every device can do the first pair at full clock.
        longest: beyond which no device has a use for more, or may not take it.
        ready: at which a device is just ready with one of its pairs, for few devices.
        affordable: in less time, clocks are too fast for the energy cap; 0 where full clocks meet it.
    """

    shortest: float
    longest: float
    ready: FloatArray = field(default_factory=lambda: np.empty(0))
    affordable: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The search for the makespan and the price of the best score."""

    place: Place
    size: int
    energy_cap: float
    weighing: Weighing

    def ask(self, makespan: FloatArray, prices: FloatArray) -> Exchange[list[Point]]:
        """The best price of each makespan."""
        total, needed = yield from self._add_up(makespan, prices)
        if (total.joules[:, -1, 0] > self.energy_cap).any():
            higher = np.concatenate([prices, prices[-1] * HIGH_PRICES])
            total, needed = yield from self._add_up(makespan, higher)
        rated = rate_points(total, self.energy_cap, self.weighing)
        best = rated.argmax(axis=1)
        each = np.arange(len(makespan))
        found = (rated[each, best], makespan, total.grid.price[each, best], needed[each, best])
        return [Point(*point) for point in zip(*(values.tolist() for values in found), strict=True)]

    def _add_up(self, makespan: FloatArray, prices: FloatArray) -> Exchange[tuple[Curve, FloatArray]]:
        grid = Grid(makespan, np.tile(prices, (len(makespan), 1)))
        answer: CurveAnswer
        (answer,) = yield from ask(CurveQuestion(self.place, grid, ready=True))
        total = (part.sum(axis=-1, keepdims=True) for part in (answer.objective, answer.joules))
        return Curve(grid, *total), answer.ready.max(axis=-1)

    def run(self, between: Spans) -> Exchange[list[Point]]:
        """All makespans that make sense, then those around the best, then what the best ones need."""
        shortest, longest = between.shortest, between.longest
        price = yield from self._find_first_price(longest)
        count = int(np.clip(768 // self.size, MAKESPANS, 32))
        if not longest > shortest:
            only = yield from self.ask(np.array([longest]), price * FIRST_PRICES)
            return only
        spans = np.concatenate([np.geomspace(shortest, longest, count), between.ready])
        points = yield from self.ask(np.unique(spans), price * FIRST_PRICES)
        # A response that is ready before its makespan ends may be worth more with less time.
        points += yield from self.ask(_tighten(points), max(points).price * NEAR_PRICES)
        spans = np.sort([point.makespan for point in points])
        best = max(points)
        place = int(np.searchsorted(spans, best.makespan))
        low, high = spans[max(place - 1, 0)], spans[min(place + 1, len(spans) - 1)]
        around = yield from self.ask(np.geomspace(low, high, count + 2)[1:-1], best.price * NEAR_PRICES)
        points += around + (yield from self.ask(_tighten(around), best.price * NEAR_PRICES))
        # A sample may be ready in less time than all devices can afford.
        return sorted((each for each in points if each.makespan >= between.affordable), reverse=True)

    def _find_first_price(self, makespan: float) -> Exchange[float]:
        """The price that the score sets where energy is free: the least that it can be."""
        grid = Grid(np.array([makespan]), np.zeros((1, 1)))
        answer: CurveAnswer
        (answer,) = yield from ask(CurveQuestion(self.place, grid))
        return self.weighing.price(float(answer.objective.sum()), float(answer.joules.sum()))


def _tighten(points: list[Point]) -> FloatArray:
    """Makespans at which the best responses are just ready at full clocks."""
    best = sorted(points, reverse=True)[:TIGHTENED]
    return np.unique([min(point.needed, point.makespan) for point in best])


def seek_makespan(
    between: Spans, devices: FloatArray, energy_cap: float, weighing: Weighing
) -> Exchange[list[Point]]:
    """Makespans and prices, best scores first; a large fleet is asked by a sample.

    `devices` are those of every cluster.
    """
    size = int(devices.sum())
    stride = max(1, size // SAMPLE)
    part = int(count_thinned(devices, stride).sum())
    if not part:
        stride, part = 1, size
    share = part / size
    search = _Search(
        Place(stride=stride), part, energy_cap * share, replace(weighing, joules=weighing.joules * share)
    )
    points = yield from search.run(between)
    return points


def find_affordable(between: Spans, energy_cap: float) -> Exchange[Spans]:
    """Only the makespans that leave clocks slow enough for the energy cap, which the longest does."""
    low, high = between.shortest, between.longest
    for _ in range(HALVINGS if low < high else 0):
        middle = math.sqrt(low * high)
        point = yield from ask_point(Place(middle), np.inf)
        low, high = (low, middle) if point.joules <= energy_cap else (middle, high)
    return Spans(high, between.longest, between.ready[between.ready > high], affordable=high)


def _search_makespan(fleet: ListFleet, energy_cap: float, weighing: Weighing) -> list[Point]:
    """Makespans and prices of the best scores; more than one for few devices, see `_find_best`."""
    devices = np.bincount(fleet.cluster, minlength=fleet.clusters).astype(np.float64)
    between, answer = _find_spans(fleet), FleetAnswers(fleet).answer
    if fleet.least_joules_at_full_clock() > energy_cap:
        between = answer_locally(find_affordable(between, energy_cap), answer)
    points = answer_locally(seek_makespan(between, devices, energy_cap, weighing), answer)
    return points[: MOST_TRIED if fleet.size <= FEW else 1]


def _find_spans(fleet: ListFleet) -> Spans:
    """The makespans to try; for few devices, also all at which one of them is just ready with a pair."""
    shortest = fleet.least_makespan()
    longest = max(shortest, min(float(fleet.seconds.max()), fleet.longest_makespan()))
    pairs = len(fleet.table.steps)
    if fleet.size * pairs > MOST_READY:
        return Spans(shortest, longest)
    ready = fleet.needed_seconds(np.arange(pairs, dtype=np.int16)[:, None]).ravel()
    return Spans(shortest, longest, ready[(ready > shortest) & (ready < longest)])


def _plan_at(fleet: ListFleet, energy_cap: float, weighing: Weighing, point: Point) -> _Tried:
    """The best plan at a makespan: at the price that the score sets, or within the cap if it binds."""
    fleet = fleet.at(np.array([point.makespan])).prepare()
    price = point.price
    for _ in range(1 if fleet.rows is None else PRICE_STEPS):
        response = respond_at(fleet, price)
        objective, joules = float(response.cost.sum()), float(response.joules.sum())
        following = weighing.price(objective, joules)
        if not 0 < following < np.inf or abs(following - price) <= 1e-9 * price:
            break
        price = following
    plan = _meet_cap(fleet, energy_cap) if joules > energy_cap else _Plan(response, objective, price)
    if fleet.size <= FEW:
        plan = _polish(fleet, plan, energy_cap, weighing)
    response = plan.response
    reached = weighing.score(response.cost.sum(), point.makespan, response.joules.sum())
    return _Tried(float(reached), fleet, plan)


def _polish(fleet: ListFleet, plan: _Plan, energy_cap: float, weighing: Weighing) -> _Plan:
    """The plan of the best score among those that no price reaches; it matters where devices are few."""
    seconds, response = float(fleet.seconds.max()), plan.response

    def rate(objective: FloatArray, joules: FloatArray) -> FloatArray:
        rated = weighing.score(objective, seconds, joules)
        return np.where(joules <= energy_cap * (1 + SLACK), rated, -np.inf)

    rows = fleet.rows if fleet.rows is not None else np.zeros((1, 1))
    reach = float(np.ptp(np.where(np.isfinite(rows), rows, rows[:, :1]), axis=1).max())
    better = divide_again(fleet, response, reach, Goal(rate, energy_cap, np.inf))
    # The tangent at the old plan, read off at the energy of the new one.
    moved = float(better.joules.sum() - response.joules.sum())
    bound = plan.lower_bound - plan.price * moved if plan.price < np.inf else plan.lower_bound
    return _Plan(better, min(bound, float(better.cost.sum())), plan.price)


def _meet_cap(fleet: ListFleet, energy_cap: float) -> _Plan:
    """The least objective within the energy cap, nearly."""
    bracket, plan = meet_cap(fleet, energy_cap)
    return _Plan(plan, min(bracket.lower_bound, float(plan.cost.sum())), bracket.price)
