"""What devices can choose from when θ comes in a few sizes and the clock may be turned down.

P2 is linear in θ because the paper bounds what top-k drops by (1 − θ)‖x‖². Real updates are far more
compressible, and how much so can be measured, but a measured curve κ(θ) is no line. So θ is chosen from a
short list, and for each θ the rest is one variable: with

    cost(ρ) = bᵢρ + c(1 − ρ)²         b: per step and depending on θᵢ, c: for steps left out
    energy(ρ) = ταρs² + pθᵢν          s: share of the clock, the least that meets the time limit

both are convex in ρ, and a device's best answer to a price of energy has a closed form on every θ. A device
that would be done early turns its clock down instead: time ∝ 1/s, energy of a step ∝ s² (μ ∝ 1/f, α ∝ f²).

A `Menu` answers to prices exactly as a `Crew` does, so `hull.search` finds the price, and its bound proves
how good the plan is.
"""

from dataclasses import dataclass, replace

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.feasible_limits import SLACK, Limits
from cfel.control.solver.priced_fleet import BLOCK, Assignment, Choice

_PER_DEVICE = (
    *("step_seconds", "step_joules", "upload_seconds", "upload_joules"),
    *("seconds", "battery", "low", "high"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """What a device's work is worth: the objective, to be made small.

    Attributes:
        theta: the shares to choose from, ascending, in (0, 1].
        per_step: b for each of them; negative where a step is progress.
        left_out: c ≥ 0, weight of (1 − ρ)².
        least_speed: smallest share of the clock, in (0, 1]; 1 for a fixed clock.
    """

    theta: FloatArray
    per_step: FloatArray
    left_out: float
    least_speed: float

    def costs(self, piece: Assignment, rho: FloatArray) -> FloatArray:
        """Objective of every device."""
        return np.asarray(self.per_step[piece] * rho + self.left_out * (1.0 - rho) ** 2)


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """The devices of a round and the θ each may take; arrays have one entry per device.

    Attributes:
        worth: the objective.
        step_seconds: τμ at full clock.
        step_joules: τα at full clock.
        upload_seconds: ν.
        upload_joules: pν.
        seconds: the device's time limit.
        battery: the device's energy limit.
        low, high: bounds of ρ.
        only: the one entry of the list that each device is held to, or `None`.
    """

    worth: Worth
    step_seconds: FloatArray
    step_joules: FloatArray
    upload_seconds: FloatArray
    upload_joules: FloatArray
    seconds: FloatArray
    battery: FloatArray
    low: FloatArray
    high: FloatArray
    only: Assignment | None = None

    @classmethod
    def of(cls, problem: RoundProblem, limits: Limits, worth: Worth) -> "Menu":
        """The devices of a round under limits it can meet."""
        unlimited = np.full(problem.devices, np.inf)
        return cls(
            worth,
            step_seconds=problem.tau * problem.mu,
            step_joules=problem.tau * problem.alpha,
            upload_seconds=problem.nu,
            upload_joules=problem.power * problem.nu,
            seconds=limits.seconds,
            battery=unlimited if limits.battery is None else limits.battery,
            low=problem.rho_min,
            high=problem.rho_max,
        )

    @property
    def size(self) -> int:
        """Number of devices, N."""
        return len(self.seconds)

    def take(self, which: slice) -> "Menu":
        """Some of the devices."""
        only = None if self.only is None else self.only[which]
        return replace(self, only=only, **{name: getattr(self, name)[which] for name in _PER_DEVICE})

    def every(self, stride: int) -> "Menu":
        """One device in `stride`."""
        return self.take(slice(None, None, stride))

    def held(self, piece: Assignment) -> "Menu":
        """The same devices, each kept to one θ: a convex problem."""
        return replace(self, only=piece)

    def cheapest(self, multiplier: float) -> Choice:
        """Every device's exact minimum of objective + λ · energy."""
        parts = [self.take(block)._answer(multiplier) for block in self._blocks()]
        return self._choice(multiplier, parts)

    def least(self) -> Choice:
        """Every device at its least energy: the answer to an infinite price."""
        parts = [self.take(block)._answer(np.inf) for block in self._blocks()]
        return self._choice(np.inf, parts)

    def joules(self, piece: Assignment, rho: FloatArray) -> FloatArray:
        """Energy of every device."""
        theta = self.worth.theta[piece]
        return self._joules(rho, self._full(theta), theta)

    def speed(self, piece: Assignment, rho: FloatArray) -> FloatArray:
        """Share of the clock of every device: the least that meets its time limit."""
        return self._speed(rho, self._full(self.worth.theta[piece]))

    def _blocks(self) -> list[slice]:
        return [slice(start, start + BLOCK) for start in range(0, self.size, BLOCK)]

    def _choice(self, multiplier: float, parts: list[tuple[FloatArray, Assignment]]) -> Choice:
        rho, piece = (np.concatenate(each) for each in zip(*parts, strict=True))
        joules = float(self.joules(piece, rho).sum())
        return Choice(multiplier, rho, piece, joules, float(self.worth.costs(piece, rho).sum()))

    def _answer(self, multiplier: float) -> tuple[FloatArray, Assignment]:
        """ρ and the entry of the list of each device, the best at a price (infinite: the least energy)."""
        theta = self.worth.theta[:, None]
        full = self._full(theta)
        # The shortest upload at the lower bound of ρ is within the limits by their making.
        possible = full >= self.low * (1 - SLACK)
        possible[0] = True
        high = np.maximum(np.minimum(self.high, full), self.low)
        high = np.clip(self._affordable(full, theta), self.low, high)
        if np.isinf(multiplier):
            rho = np.broadcast_to(self.low, full.shape)
            total = self._joules(rho, full, theta)
        else:
            rho = np.clip(self._stationary(multiplier, full), self.low, high)
            cost = self.worth.per_step[:, None] * rho + self.worth.left_out * (1.0 - rho) ** 2
            total = cost + multiplier * self._joules(rho, full, theta)
        total = np.where(possible, total, np.inf)
        piece = total.argmin(axis=0).astype(np.int8) if self.only is None else self.only
        return np.take_along_axis(rho, piece[None].astype(np.intp), axis=0)[0], piece

    def _stationary(self, multiplier: float, full: FloatArray) -> FloatArray:
        """Where the derivative of cost + λ · energy is zero, bounds apart.

        Up to ρ = s_min · full the clock stays at its least and energy is linear; beyond, s = ρ / full and
        energy is cubic: 3aρ² + 2cρ = 2c − b with a = λτα / full².
        """
        b, c = self.worth.per_step[:, None], self.worth.left_out
        price = multiplier * self.step_joules
        corner = np.minimum(self.worth.least_speed, 1.0) * full
        slope = b + price * self.worth.least_speed**2
        slow = 1.0 - slope / (2.0 * c) if c > 0 else np.where(slope < 0, np.inf, -np.inf)
        if self.worth.least_speed == 1.0:
            return np.asarray(slow)
        with np.errstate(divide="ignore", invalid="ignore"):
            a = price / full**2
            drive = np.maximum(2.0 * c - b, 0.0)
            fast = np.where(a > 0, drive / (c + np.sqrt(c * c + 3.0 * a * drive)), np.inf)
        return np.asarray(np.where(slow <= corner, slow, np.maximum(np.nan_to_num(fast, nan=0.0), corner)))

    def _full(self, theta: FloatArray) -> FloatArray:
        """The ρ that fills the time limit at full clock."""
        return np.asarray((self.seconds - theta * self.upload_seconds) / self.step_seconds)

    def _speed(self, rho: FloatArray, full: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.clip(np.where(full > 0, rho / full, 1.0), self.worth.least_speed, 1.0))

    def _joules(self, rho: FloatArray, full: FloatArray, theta: FloatArray) -> FloatArray:
        return np.asarray(self.step_joules * rho * self._speed(rho, full) ** 2 + theta * self.upload_joules)

    def _affordable(self, full: FloatArray, theta: FloatArray) -> FloatArray:
        """The largest ρ that the battery pays for."""
        if np.isinf(self.battery).all():
            return np.full_like(full, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.maximum(self.battery - theta * self.upload_joules, 0.0) / self.step_joules
            slow = steps / self.worth.least_speed**2
            fast = np.cbrt(steps * full**2)
        corner = self.worth.least_speed * full
        cubic = np.minimum(np.maximum(fast, corner), np.maximum(steps, full))
        affordable = np.where(slow <= corner, slow, cubic)
        return np.asarray(np.nan_to_num(affordable, nan=np.inf, posinf=np.inf))
