"""An answer to a `RoundProblem` that proves itself.

Every solver makes a `Proposal`; `prove` turns it into a `Solution`. It trusts the solver for the plan and the
lower bound only. Energy and times are computed again from the problem itself, and a plan that breaks a limit
the solver did not report raises an error.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control.problem import Limits, RoundProblem, describe_too_costly, find_too_costly
from cfel.errors import CfelError

# How much a limit may be exceeded by rounding, relative to the limit.
ROUNDING = 1e-8


class SolverDefectError(CfelError):
    """A solver returned a plan that breaks its own limits: a defect of cfel, never of the input."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What a solver found; the fields are those of `Solution`.

    A solver with an objective of its own states its value; `None` stands for the problem's.
    """

    rho: FloatArray
    theta: FloatArray
    lower_bound: float
    multiplier: float
    method: str
    iterations: int = 0
    clock: FloatArray | None = None
    objective: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """How much every device computes and sends in one edge round, and how good that is.

    Attributes:
        rho: probability of each local step, per device; k/τ where steps are whole.
        theta: share of the update that is sent, per device.
        objective: the P2 sum over devices, or that of the list of pairs.
        lower_bound: no plan within the caps (after stretching) has a smaller objective; on a list of pairs,
            no plan on the list with this makespan and energy.
        feasible: whether every cap was met as asked.
        violations: what could not be met, in words; empty when feasible.
        device_seconds, device_joules: expected cost of every device.
        time_cap: seconds per cluster that the plan keeps to (stretched where necessary).
        energy_cap: joules that the plan keeps to.
        multiplier: what one more joule would be worth in units of the objective; 0 when energy is plentiful.
        method: "joint", "alternating" or "list".
        iterations: passes of Algorithm 3; 0 for other methods.
        clock: share of its full clock that every device runs at; `None` for full clocks.
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
    clock: FloatArray | None = None

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


def solve_without_too_costly(
    problem: RoundProblem, solver: Callable[[RoundProblem, BoolArray], Solution]
) -> Solution:
    """Solves a problem without the devices that alone put the energy cap out of reach (`find_too_costly`).

    They get ρ = θ = 0 and cost nothing; what is proven is proven for the others. The solver gets the problem
    of those, and which devices they are.
    """
    too_costly = find_too_costly(problem)
    if not too_costly.any():
        return solver(problem, ~too_costly)
    found = solver(problem.take(~too_costly), ~too_costly)

    def spread(values: FloatArray, missing: float = 0.0) -> FloatArray:
        whole = np.full(problem.devices, missing)
        whole[~too_costly] = values
        return whole

    return replace(
        found,
        rho=spread(found.rho),
        theta=spread(found.theta),
        feasible=False,
        violations=(*describe_too_costly(problem, too_costly), *found.violations),
        device_seconds=spread(found.device_seconds),
        device_joules=spread(found.device_joules),
        clock=None if found.clock is None else spread(found.clock, 1.0),
    )


def prove(problem: RoundProblem, limits: Limits, found: Proposal) -> Solution:
    """Checks a plan against every limit and builds its solution.

    Raises:
        SolverDefectError: the plan breaks a limit.
    """
    rho, theta = found.rho, found.theta
    seconds = problem.seconds(rho, theta, found.clock)
    joules = problem.joules(rho, theta, found.clock)
    _reject_excess("seconds", seconds, limits.seconds)
    _reject_excess("joules", np.array([joules.sum()]), np.array([limits.joules]))
    if limits.battery is not None:
        _reject_excess("battery", joules, limits.battery)
    objective = problem.objective(rho, theta) if found.objective is None else found.objective
    return Solution(
        rho=rho,
        theta=theta,
        objective=objective,
        # Both are rounded, so the bound may end up above the objective it bounds.
        lower_bound=min(found.lower_bound, objective),
        feasible=not limits.violations,
        violations=limits.violations,
        device_seconds=seconds,
        device_joules=joules,
        time_cap=limits.time_cap,
        energy_cap=limits.joules,
        multiplier=found.multiplier,
        method=found.method,
        iterations=found.iterations,
        clock=found.clock,
    )


def _reject_excess(what: str, used: FloatArray, allowed: FloatArray) -> None:
    """Raises `SolverDefectError` where a plan uses more than it may, beyond rounding."""
    excess = used > allowed * (1.0 + ROUNDING)
    # A NaN exceeds nothing, so it has to be looked for.
    if excess.any() or np.isnan(used).any():
        first = int(np.argmax(excess))
        raise SolverDefectError(f"plan uses {used[first]!r} {what} of {allowed[first]!r} at entry {first}")
