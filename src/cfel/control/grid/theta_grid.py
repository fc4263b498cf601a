"""What devices can choose from in HCEF+: θ from a short list, and a clock that may slow down.

P2 is linear in θ because the paper bounds what top-k drops by (1 − θ)‖x‖². Real updates are far more
compressible. By how much can be measured, but a measured curve κ(θ) is not linear. So θ is chosen from a
list, and for each θᵢ of the list only ρ is left:

    cost(ρ) = bᵢρ + c(1 − ρ)²         bᵢ: per step, depends on θᵢ; c: for steps left out
    energy(ρ) = ταρs² + pθᵢν          s: share of the clock, the least that meets the time limit

Both are convex in ρ, and at a price of energy a device's best ρ has a closed form for every θᵢ. A device that
would finish early slows its clock down instead: time ∝ 1/s, energy of a step ∝ s² (the paper's μ ∝ 1/f and
α ∝ f²). `docs/hcef-plus.md` has the derivation.

A `ThetaGrid` responds to prices exactly as a `PricedFleet` does, so `search_energy_price` works on both.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import FloatArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.feasible_limits import SLACK, Limits
from cfel.control.solver.priced_fleet import BLOCK, Choices, Response

_PER_DEVICE = (
    *("step_seconds", "step_joules", "upload_seconds", "upload_joules"),
    *("seconds", "battery", "low", "high"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """What to minimise, per device, with the list of θ it is given for.

    Attributes:
        theta: the shares to choose from, ascending, in (0, 1].
        per_step: bᵢ for each of them; negative where a step is progress.
        left_out: c ≥ 0, weight of (1 − ρ)².
        least_speed: s_min, the smallest share of the clock, in (0, 1]; 1 for a fixed clock.
    """

    theta: FloatArray
    per_step: FloatArray
    left_out: float
    least_speed: float

    def costs(self, choice: NDArray[Any], rho: FloatArray) -> FloatArray:
        """Objective of every device."""
        return np.asarray(self.per_step[choice] * rho + self.left_out * (1.0 - rho) ** 2)


@dataclass(frozen=True, slots=True, eq=False)
class ThetaGrid:
    """The devices of a round and the θ each may take; arrays have one entry per device.

    Attributes:
        objective: what to minimise, and the list of θ.
        step_seconds: τμ at full clock.
        step_joules: τα at full clock.
        upload_seconds: ν.
        upload_joules: pν.
        seconds: the device's time limit.
        battery: the device's energy limit.
        low, high: bounds of ρ.
        only: the one entry of the list that each device is kept on, or `None`.
    """

    objective: Objective
    step_seconds: FloatArray
    step_joules: FloatArray
    upload_seconds: FloatArray
    upload_joules: FloatArray
    seconds: FloatArray
    battery: FloatArray
    low: FloatArray
    high: FloatArray
    only: Choices | None = None

    @classmethod
    def from_problem(cls, problem: RoundProblem, limits: Limits, objective: Objective) -> "ThetaGrid":
        """Builds the grid of a round under limits it can meet."""
        unlimited = np.full(problem.devices, np.inf)
        return cls(
            objective,
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

    def take(self, which: slice) -> "ThetaGrid":
        """Selects some devices."""
        only = None if self.only is None else self.only[which]
        return replace(self, only=only, **{name: getattr(self, name)[which] for name in _PER_DEVICE})

    def sample(self, stride: int) -> "ThetaGrid":
        """Takes one device in `stride`."""
        return self.take(slice(None, None, stride))

    def hold(self, choice: Choices) -> "ThetaGrid":
        """Keeps every device on one θ, which leaves a convex problem."""
        return replace(self, only=choice)

    def respond(self, price: float) -> Response:
        """Finds every device's exact minimum of objective + λ · energy."""
        parts = [self.take(block)._respond_block(price) for block in self._blocks()]
        rho, choice = (np.concatenate(each) for each in zip(*parts, strict=True))
        joules = float(self.joules(choice, rho).sum())
        return Response(price, rho, choice, joules, float(self.objective.costs(choice, rho).sum()))

    def spend_least(self) -> Response:
        """Puts every device at its least energy: the response to an infinite price."""
        return self.respond(np.inf)

    def joules(self, choice: Choices, rho: FloatArray) -> FloatArray:
        """Energy of every device."""
        theta = self.objective.theta[choice]
        return self._joules(rho, self._full(theta), theta)

    def speed(self, choice: Choices, rho: FloatArray) -> FloatArray:
        """Share of the clock of every device: the least that meets its time limit."""
        return self._speed(rho, self._full(self.objective.theta[choice]))

    def _blocks(self) -> list[slice]:
        return [slice(start, start + BLOCK) for start in range(0, self.size, BLOCK)]

    def _respond_block(self, price: float) -> tuple[FloatArray, Choices]:
        """ρ and the entry of the list of each device, the best at a price (infinite: the least energy)."""
        theta = self.objective.theta[:, None]
        full = self._full(theta)
        possible = full >= self.low * (1 - SLACK)
        # The smallest θ at the lower bound of ρ is within the limits: `find_feasible_limits` made them so.
        possible[0] = True
        high = np.maximum(np.minimum(self.high, full), self.low)
        high = np.clip(self._affordable(full, theta), self.low, high)
        if np.isinf(price):
            rho = np.broadcast_to(self.low, full.shape)
            total = self._joules(rho, full, theta)
        else:
            rho = np.clip(self._stationary(price, full), self.low, high)
            cost = self.objective.per_step[:, None] * rho + self.objective.left_out * (1.0 - rho) ** 2
            total = cost + price * self._joules(rho, full, theta)
        total = np.where(possible, total, np.inf)
        choice = total.argmin(axis=0).astype(np.int8) if self.only is None else self.only
        return np.take_along_axis(rho, choice[None].astype(np.intp), axis=0)[0], choice

    def _stationary(self, price: float, full: FloatArray) -> FloatArray:
        """Where the derivative of cost + λ · energy is zero, bounds apart.

        Up to ρ = s_min · full the clock stays at its least and energy is linear; beyond, s = ρ / full and
        energy is cubic: 3aρ² + 2cρ = 2c − b with a = λτα / full².
        """
        b, c, s_min = self.objective.per_step[:, None], self.objective.left_out, self.objective.least_speed
        step_price = price * self.step_joules
        corner = np.minimum(s_min, 1.0) * full
        slope = b + step_price * s_min**2
        slow = 1.0 - slope / (2.0 * c) if c > 0 else np.where(slope < 0, np.inf, -np.inf)
        if s_min == 1.0:
            return np.asarray(slow)
        with np.errstate(divide="ignore", invalid="ignore"):
            a = step_price / full**2
            drive = np.maximum(2.0 * c - b, 0.0)
            # The quadratic formula with its numerator rationalised: exact also where a is tiny.
            fast = np.where(a > 0, drive / (c + np.sqrt(c * c + 3.0 * a * drive)), np.inf)
        return np.asarray(np.where(slow <= corner, slow, np.maximum(np.nan_to_num(fast, nan=0.0), corner)))

    def _full(self, theta: FloatArray) -> FloatArray:
        """The ρ that fills the time limit at full clock."""
        return np.asarray((self.seconds - theta * self.upload_seconds) / self.step_seconds)

    def _speed(self, rho: FloatArray, full: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.clip(np.where(full > 0, rho / full, 1.0), self.objective.least_speed, 1.0))

    def _joules(self, rho: FloatArray, full: FloatArray, theta: FloatArray) -> FloatArray:
        return np.asarray(self.step_joules * rho * self._speed(rho, full) ** 2 + theta * self.upload_joules)

    def _affordable(self, full: FloatArray, theta: FloatArray) -> FloatArray:
        """The largest ρ that the battery pays for: linear up to the corner, a cube root beyond."""
        if np.isinf(self.battery).all():
            return np.full_like(full, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.maximum(self.battery - theta * self.upload_joules, 0.0) / self.step_joules
            slow = steps / self.objective.least_speed**2
            fast = np.cbrt(steps * full**2)
        corner = self.objective.least_speed * full
        cubic = np.minimum(np.maximum(fast, corner), np.maximum(steps, full))
        affordable = np.where(slow <= corner, slow, cubic)
        return np.asarray(np.nan_to_num(affordable, nan=np.inf, posinf=np.inf))
