"""The list responder: a round solved on a list of pairs (k, θ), each with a clock to match.

A plan in whole steps happens as planned, so its expected cost is its realised cost. For every pair the best
clock is the slowest one that meets the device's time limit,

    s = kμ / (limit − θν), at least the slowest clock allowed;   energy = kα·e(s) + pθν

with the device's clock curve e(s) = c + (1 − c)·s^γ. So each device has a short list of pairs, each with an
objective and an energy, and the search for the price of energy (`prices`) applies as it does to P2. Its bound
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
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cfel.arrays import FloatArray, IndexArray
from cfel.control.prices import Response, search_energy_price, split_into_blocks
from cfel.control.problem import SLACK, RoundProblem, find_feasible_limits
from cfel.control.solution import Proposal, Solution, prove, solve_without_dear
from cfel.system.conditions import clock_energy

THETA_LIST = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
"""The shares θ to choose from; those below `theta_min` are left out."""

# With more local iterations than this, the numbers of steps to choose from are thinned out.
MOST_STEP_COUNTS = 20
# Up to this many energies (devices × pairs) are kept between responses; more are computed again every time.
MOST_KEPT = 4_000_000
# Makespans that are tried, evenly spaced in the logarithm; twice, the second time around the best.
MAKESPANS = 12
# Progress per joule rises with its price, so the fixed point is reached from below in a few steps.
PRICE_STEPS = 12
# Energy left over after the search is offered to all devices this many times.
FILLS = 4
# A larger fleet chooses its makespan by a sample of about this size.
SAMPLE = 2048
_PER_DEVICE = (
    *("step_seconds", "step_joules", "upload_seconds", "upload_joules"),
    *("clock_static", "clock_exponent", "seconds", "battery"),
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
class PairGrid:
    """The devices of a round and their limits, which respond to a price by pairs; one entry per device.

    Attributes:
        table: the pairs.
        step_seconds, step_joules: μ and α at full clock.
        upload_seconds, upload_joules: ν and pν.
        clock_static, clock_exponent: c and γ of the clock curve.
        seconds, battery: time and energy limits; the first pair must meet them.
        rows: what `_rows` yields, where it is kept.
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
    rows: tuple[FloatArray, ...] | None = None

    @classmethod
    def from_problem(
        cls, problem: RoundProblem, table: PairTable, seconds: FloatArray, battery: FloatArray | None
    ) -> "PairGrid":
        """The devices of a round."""
        return cls(
            table,
            step_seconds=problem.mu,
            step_joules=problem.alpha,
            upload_seconds=problem.nu,
            upload_joules=problem.power * problem.nu,
            clock_static=np.broadcast_to(problem.clock_static, problem.mu.shape),
            clock_exponent=np.broadcast_to(problem.clock_exponent, problem.mu.shape),
            seconds=seconds,
            battery=np.full(problem.devices, np.inf) if battery is None else battery,
        )._keep_rows()

    @property
    def size(self) -> int:
        """Number of devices, N."""
        return len(self.seconds)

    def take(self, which: slice) -> "PairGrid":
        """Some of the devices."""
        return replace(self, rows=None, **{name: getattr(self, name)[which] for name in _PER_DEVICE})

    def sample(self, stride: int) -> "PairGrid":
        """Takes one device in `stride`."""
        return self if stride == 1 else self.take(slice(None, None, stride))._keep_rows()

    def within(self, makespan: float) -> "PairGrid":
        """The same devices, which now have at most `makespan` seconds."""
        return replace(self, rows=None, seconds=np.minimum(self.seconds, makespan))._keep_rows()

    def least_makespan(self) -> float:
        """Seconds within which every device can do the first pair at full clock."""
        return float(
            (self.table.steps[0] * self.step_seconds + self.table.theta[0] * self.upload_seconds).max()
        )

    def longest_makespan(self) -> float:
        """Seconds beyond which no device has a use for more: all steps at the slowest clock, all sent."""
        slowest = self.table.steps.max() * self.step_seconds / self.table.slowest
        return float((slowest + self.table.theta.max() * self.upload_seconds).max())

    def respond(self, price: float) -> Response:
        """Finds every device's best pair at a price: the exact minimum of cost + λ · energy."""
        if price == 0:
            rows = (np.where(np.isinf(joules), np.inf, self.table.cost) for joules in self._rows())
        else:
            rows = (self.table.cost + price * joules for joules in self._rows())
        return self._response(price, [row.argmin(axis=1) for row in rows])

    def spend_least(self) -> Response:
        """Finds every device's pair of least energy: the response to an infinite price."""
        return self._response(np.inf, [joules.argmin(axis=1) for joules in self._rows()])

    def costs(self, pair: IndexArray) -> FloatArray:
        """Objective of every device at its pair."""
        return self.table.cost[pair]

    def joules(self, pair: IndexArray) -> FloatArray:
        """Energy of every device at its pair."""
        return self._joules(self.table.steps[pair], self.table.theta[pair])

    def clock(self, pair: IndexArray) -> FloatArray:
        """Share of its full clock that every device runs at with its pair."""
        return self._clock(self.table.steps[pair], self.table.theta[pair])

    def upgrade(self, pair: IndexArray, joules: float) -> tuple[IndexArray, FloatArray, FloatArray]:
        """Every device's change of pair that gains most per joule and takes at most `joules` more.

        Returns the new pair (the old one where nothing is gained), its gain and its additional joules.
        """
        better, spent = pair.copy(), self.joules(pair)
        for block, energy in zip(split_into_blocks(self.size), self._rows(), strict=True):
            extra = energy - spent[block][:, None]
            gain = self.table.cost[pair[block]][:, None] - self.table.cost
            worth = np.where((gain > 0) & (extra <= joules), gain / np.maximum(extra, 1e-300), 0.0)
            best = worth.argmax(axis=1)
            better[block] = np.where(worth.max(axis=1) > 0, best, pair[block])
        return better, self.costs(pair) - self.costs(better), self.joules(better) - spent

    def _rows(self) -> Iterator[FloatArray]:
        """Energy of every pair, infinite where the limits forbid it: one row per device, block by block."""
        if self.rows is not None:
            yield from self.rows
            return
        for block in split_into_blocks(self.size):
            part = self.take(block)
            columns = replace(part, **{name: getattr(part, name)[:, None] for name in _PER_DEVICE})
            steps, theta = self.table.steps, self.table.theta
            joules = columns._joules(steps, theta)
            needed = steps * columns.step_seconds + theta * columns.upload_seconds
            beyond = (needed > columns.seconds * (1 + SLACK)) | (joules > columns.battery * (1 + SLACK))
            beyond[:, 0] = False
            joules[beyond] = np.inf
            yield joules

    def _keep_rows(self) -> "PairGrid":
        """The same grid, with the energies of all pairs kept if they take little memory."""
        few = self.size * len(self.table.steps) <= MOST_KEPT
        return replace(self, rows=tuple(self._rows())) if few else self

    def _clock(self, steps: FloatArray, theta: FloatArray) -> FloatArray:
        left = self.seconds - theta * self.upload_seconds
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(left > 0, steps * self.step_seconds / left, 1.0)
        return np.asarray(np.clip(needed, self.table.slowest, 1.0))

    def _joules(self, steps: FloatArray, theta: FloatArray) -> FloatArray:
        share = clock_energy(self._clock(steps, theta), self.clock_static, self.clock_exponent)
        return np.asarray(steps * self.step_joules * share + theta * self.upload_joules)

    def _response(self, price: float, pairs: list[IndexArray]) -> Response:
        pair = np.concatenate(pairs)
        return Response(
            price,
            rho=self.table.steps[pair],
            choice=pair,
            joules=float(self.joules(pair).sum()),
            objective=float(self.costs(pair).sum()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Every device's pair, and a lower bound on the objective at the same makespan and energy."""

    pair: IndexArray
    objective: float
    joules: float
    lower_bound: float
    price: float

    @classmethod
    def from_response(cls, response: Response) -> "_Plan":
        """A response is the best plan of its energy."""
        objective = response.objective
        return cls(response.choice, objective, response.joules, objective, response.price)


@dataclass(frozen=True, slots=True)
class Weighing:
    """What progress is weighed against: log progress − a·log seconds − (1 − a)·log joules.

    Attributes:
        time: a, in (0, 1).
        seconds, joules: what the round takes beside the devices' work: gossip.
    """

    time: float
    seconds: float = 0.0
    joules: float = 0.0

    def score(self, progress: float, makespan: float, joules: float) -> float:
        """What is maximised; −inf for a plan that makes no progress."""
        if progress <= 0 or joules <= 0:
            return -math.inf
        seconds, energy = makespan + self.seconds, joules + self.joules
        return math.log(progress) - self.time * math.log(seconds) - (1 - self.time) * math.log(energy)

    def price(self, progress: float, joules: float) -> float:
        """The price of energy at which one percent of energy is worth 1 − a percent of progress."""
        return (1 - self.time) * progress / (joules + self.joules)


def solve_on_list(problem: RoundProblem, table: PairTable, weighing: Weighing | None = None) -> Solution:
    """Decides the steps, θ and the clock of every device.

    Args:
        problem: what is known and what may be spent; its own objective plays no part. ρ_min and θ_min must
            be those of the table's first pair.
        table: the pairs to choose from and what each is worth.
        weighing: what time and energy are worth; None to use the caps up.
    """
    return solve_without_dear(problem, lambda rest, _: _solve(rest, table, weighing))


def _solve(problem: RoundProblem, table: PairTable, weighing: Weighing | None) -> Solution:
    limits = find_feasible_limits(problem)
    grid = PairGrid.from_problem(problem, table, limits.seconds, limits.battery)
    if limits.forced:
        plan = _Plan.from_response(grid.spend_least())
    elif weighing is None:
        plan = _fill_cap(grid, limits.joules)
    else:
        grid = grid.within(_choose_makespan(grid, limits.joules, weighing))
        plan = _plan_within(grid, limits.joules, weighing)
    found = Proposal(
        rho=table.steps[plan.pair] / problem.tau,
        theta=table.theta[plan.pair],
        lower_bound=plan.lower_bound,
        multiplier=plan.price,
        method="list",
        clock=None if table.least_clock is None else grid.clock(plan.pair),
        objective=plan.objective,
    )
    return prove(problem, limits, found)


def _choose_makespan(grid: PairGrid, energy_cap: float, weighing: Weighing) -> float:
    """The makespan of the best score, among a grid of them, and then among a finer grid around the best."""
    stride = max(1, grid.size // SAMPLE)
    sample, shortest = grid.sample(stride), grid.least_makespan()
    share = sample.size / grid.size
    cap, own = energy_cap * share, replace(weighing, joules=weighing.joules * share)
    longest = max(shortest, min(float(grid.seconds.max()), grid.longest_makespan()))

    def score(makespan: float) -> float:
        plan = _plan_within(sample.within(makespan), cap, own)
        return own.score(-plan.objective, makespan, plan.joules)

    low, high = shortest, longest
    for _ in range(2):
        tried = np.geomspace(low, high, MAKESPANS).tolist() if high > low else [low]
        best = max(range(len(tried)), key=lambda i: (score(tried[i]), -i))
        low, high = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
    return float(tried[best])


def _plan_within(grid: PairGrid, energy_cap: float, weighing: Weighing) -> _Plan:
    """The best plan within the makespan: at the price that the score sets, or within the cap if it binds."""
    response = grid.respond(0.0)
    for _ in range(PRICE_STEPS):
        if response.objective >= 0 or response.joules <= 0:
            break
        price = weighing.price(-response.objective, response.joules)
        # At the fixed point the response repeats itself.
        if price <= response.price * (1 + 1e-9):
            break
        response = grid.respond(price)
    if response.joules > energy_cap:
        return _fill_cap(grid, energy_cap)
    return _Plan.from_response(response)


def _fill_cap(grid: PairGrid, energy_cap: float) -> _Plan:
    """The least objective within the energy cap, nearly: the dual search, and what is left over spent."""
    bracket = search_energy_price(grid, energy_cap)
    pair = bracket.under.choice.copy()
    left = energy_cap - bracket.under.joules
    for _ in range(FILLS):
        better, gain, extra = grid.upgrade(pair, left)
        worth = np.flatnonzero(gain > 0)
        if not worth.size:
            break
        order = worth[np.argsort(-gain[worth] / np.maximum(extra[worth], 1e-300), kind="stable")]
        paid = order[np.cumsum(np.maximum(extra[order], 0.0)) <= left]
        # One that does not fit ends the sum; the first always fits by itself.
        paid = paid if paid.size else order[:1]
        pair[paid] = better[paid]
        left = energy_cap - float(grid.joules(pair).sum())
    objective, joules = float(grid.costs(pair).sum()), float(grid.joules(pair).sum())
    return _Plan(pair, objective, joules, min(bracket.lower_bound, objective), bracket.price)
