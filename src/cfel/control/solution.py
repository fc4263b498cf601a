"""An answer to a `RoundProblem` that proves itself.

A `Solution` trusts the solver for ρ, θ and the lower bound only. Objective, energy and times are computed
again from the problem itself, and a plan that breaks a limit the solver did not report raises an error.
"""

from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.limits import Limits
from cfel.control.problem import RoundProblem
from cfel.errors import CfelError

# How much a limit may be exceeded by rounding, relative to the limit.
ROUNDING = 1e-8


class SolverDefectError(CfelError):
    """A solver returned a plan that breaks its own limits: a defect of cfel, never of the input."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """How much every device computes and sends in one edge round, and how good that is.

    Attributes:
        rho: probability of each local step, per device.
        theta: share of the update that is sent, per device.
        objective: the P2 sum over devices.
        lower_bound: no plan within the caps (after stretching) has a smaller objective.
        feasible: whether every cap was met as asked.
        violations: what could not be met, in words; empty when feasible.
        device_seconds, device_joules: expected cost of every device.
        time_cap: seconds per cluster that the plan keeps to (stretched where necessary).
        energy_cap: joules that the plan keeps to.
        multiplier: what one more joule would be worth in units of the objective; 0 when energy is plentiful.
        method: "joint" or "alternating".
        iterations: passes of Algorithm 3; 0 for "joint".
    """

    rho: FloatArray
    theta: FloatArray
    objective: float
    lower_bound: float
    feasible: bool
    violations: tuple[str, ...]
    device_seconds: FloatArray
    device_joules: FloatArray
    time_cap: FloatArray
    energy_cap: float
    multiplier: float
    method: str
    iterations: int = 0

    @property
    def gap(self) -> float:
        """How much worse than the optimum this can be at most: (objective − bound) / abs(bound)."""
        distance = self.objective - self.lower_bound
        return distance / abs(self.lower_bound) if self.lower_bound else (np.inf if distance else 0.0)

    @property
    def joules(self) -> float:
        """Expected energy of all devices together."""
        return float(self.device_joules.sum())

    @property
    def seconds(self) -> float:
        """Expected time of the slowest device."""
        return float(self.device_seconds.max())


def prove(
    problem: RoundProblem,
    limits: Limits,
    rho: FloatArray,
    theta: FloatArray,
    *,
    lower_bound: float,
    multiplier: float,
    method: str,
    iterations: int = 0,
) -> Solution:
    """Checks a plan against every limit and builds its solution.

    Raises:
        SolverDefectError: the plan breaks a limit.
    """
    # Rounding may leave a variable outside its bounds by a last bit.
    rho = np.clip(rho, problem.rho_min, problem.rho_max)
    theta = np.clip(theta, problem.theta_min, problem.theta_max)
    seconds, joules = problem.seconds(rho, theta), problem.joules(rho, theta)
    reject_excess("seconds", seconds, limits.seconds)
    reject_excess("joules", np.array([joules.sum()]), np.array([limits.joules]))
    if limits.battery is not None:
        reject_excess("battery", joules, limits.battery)
    objective = problem.objective(rho, theta)
    return Solution(
        rho=rho,
        theta=theta,
        objective=objective,
        # Both are rounded, so the bound may end up above the objective it bounds.
        lower_bound=min(lower_bound, objective),
        feasible=not limits.violations,
        violations=limits.violations,
        device_seconds=seconds,
        device_joules=joules,
        time_cap=limits.time_cap,
        energy_cap=limits.joules,
        multiplier=multiplier,
        method=method,
        iterations=iterations,
    )


def reject_excess(what: str, used: FloatArray, allowed: FloatArray) -> None:
    """Raises `SolverDefectError` where a plan uses more than it may, beyond rounding."""
    excess = used > allowed * (1.0 + ROUNDING)
    # A NaN exceeds nothing, so it has to be looked for.
    if excess.any() or np.isnan(used).any():
        first = int(np.argmax(excess))
        raise SolverDefectError(f"plan uses {used[first]!r} {what} of {allowed[first]!r} at entry {first}")
