"""What devices can choose from when steps are whole: a step count k, a share θ, and a clock to match.

A plan in whole steps happens as planned, so its expected cost is its realised cost. For every pair (k, θ) the
best clock is the slowest one that meets the device's time limit,

    s = kμ / (limit − θν), at least the slowest clock allowed;   energy = kα·e(s) + pθν

with the device's clock curve e(s) = c + (1 − c)·s^γ. So each device has a short list of pairs, each with an
objective and an energy. A `StepGrid` responds to a price of energy as a `PricedFleet` does: the same search
finds the price, and its bound proves how good a plan is on this list. It does not look between its entries.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cfel.arrays import FloatArray, IndexArray
from cfel.control.grid.step_table import StepTable
from cfel.control.problem import RoundProblem
from cfel.control.solver.feasible_limits import SLACK
from cfel.control.solver.priced_fleet import BLOCK, Response
from cfel.system.clock import clock_energy

_PER_DEVICE = (
    *("step_seconds", "step_joules", "upload_seconds", "upload_joules"),
    *("clock_static", "clock_exponent", "seconds", "battery"),
)
# Up to this many energies (devices × pairs) are kept between responses; more are computed again every time.
MOST_KEPT = 4_000_000


@dataclass(frozen=True, slots=True, eq=False)
class StepGrid:
    """The devices of a round and their limits; arrays have one entry per device.

    Attributes:
        table: the pairs.
        step_seconds, step_joules: μ and α at full clock.
        upload_seconds, upload_joules: ν and pν.
        clock_static, clock_exponent: c and γ of the clock curve.
        seconds, battery: time and energy limits; the first pair must meet them.
        rows: what `_rows` yields, where it is kept.
    """

    table: StepTable
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
        cls, problem: RoundProblem, table: StepTable, seconds: FloatArray, battery: FloatArray | None
    ) -> "StepGrid":
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

    def take(self, which: slice) -> "StepGrid":
        """Some of the devices."""
        return replace(self, rows=None, **{name: getattr(self, name)[which] for name in _PER_DEVICE})

    def sample(self, stride: int) -> "StepGrid":
        """Takes one device in `stride`."""
        return self if stride == 1 else self.take(slice(None, None, stride))._keep_rows()

    def within(self, makespan: float) -> "StepGrid":
        """The same devices, which now have at most `makespan` seconds."""
        return replace(self, rows=None, seconds=np.minimum(self.seconds, makespan))._keep_rows()

    def least_makespan(self) -> float:
        """Seconds within which every device can do the first pair at full clock."""
        return float(
            (self.table.steps[0] * self.step_seconds + self.table.theta[0] * self.upload_seconds).max()
        )

    def longest_makespan(self) -> float:
        """Seconds beyond which no device has a use for more: all steps at the slowest clock, all sent."""
        slowest = self.table.steps.max() * self.step_seconds / self.table.least_speed
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

    def speed(self, pair: IndexArray) -> FloatArray:
        """Share of its clock that every device runs at with its pair."""
        return self._speed(self.table.steps[pair], self.table.theta[pair])

    def upgrade(self, pair: IndexArray, joules: float) -> tuple[IndexArray, FloatArray, FloatArray]:
        """Every device's change of pair that gains most per joule and takes at most `joules` more.

        Returns:
            The new pair (the old one where nothing is gained), its gain and its additional joules.
        """
        better, spent = pair.copy(), self.joules(pair)
        for block, energy in zip(self._slices(), self._rows(), strict=True):
            extra = energy - spent[block][:, None]
            gain = self.table.cost[pair[block]][:, None] - self.table.cost
            worth = np.where((gain > 0) & (extra <= joules), gain / np.maximum(extra, 1e-300), 0.0)
            best = worth.argmax(axis=1)
            better[block] = np.where(worth.max(axis=1) > 0, best, pair[block])
        return better, self.costs(pair) - self.costs(better), self.joules(better) - spent

    def _slices(self) -> list[slice]:
        return [slice(start, start + BLOCK) for start in range(0, self.size, BLOCK)]

    def _rows(self) -> Iterator[FloatArray]:
        """Energy of every pair, infinite where the limits forbid it: one row per device, block by block."""
        if self.rows is not None:
            yield from self.rows
            return
        for block in self._slices():
            part = self.take(block)
            columns = replace(part, **{name: getattr(part, name)[:, None] for name in _PER_DEVICE})
            steps, theta = self.table.steps, self.table.theta
            joules = columns._joules(steps, theta)
            needed = steps * columns.step_seconds + theta * columns.upload_seconds
            beyond = (needed > columns.seconds * (1 + SLACK)) | (joules > columns.battery * (1 + SLACK))
            beyond[:, 0] = False
            joules[beyond] = np.inf
            yield joules

    def _keep_rows(self) -> "StepGrid":
        """The same grid, with the energies of all pairs kept if they take little memory."""
        few = self.size * len(self.table.steps) <= MOST_KEPT
        return replace(self, rows=tuple(self._rows())) if few else self

    def _speed(self, steps: FloatArray, theta: FloatArray) -> FloatArray:
        left = self.seconds - theta * self.upload_seconds
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(left > 0, steps * self.step_seconds / left, 1.0)
        return np.asarray(np.clip(needed, self.table.least_speed, 1.0))

    def _joules(self, steps: FloatArray, theta: FloatArray) -> FloatArray:
        share = clock_energy(self._speed(steps, theta), self.clock_static, self.clock_exponent)
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
