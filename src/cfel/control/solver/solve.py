"""`solve`: from a `RoundProblem` to a `Solution`, by either method, with the same proof for both.

The steps are listed in the package's docstring; this module puts them in order and checks the arguments.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from cfel.arrays import FloatArray
from cfel.control.problem import RoundProblem
from cfel.control.solution import Solution, prove
from cfel.control.solver.alternating import Stopping, solve_alternating
from cfel.control.solver.feasible_limits import Limits, find_feasible_limits
from cfel.control.solver.joint import solve_joint
from cfel.control.solver.project_feasible import project_feasible
from cfel.errors import InputError, unknown_name

Method = Literal["joint", "alternating"]
METHODS = ("joint", "alternating")


def solve(
    problem: RoundProblem,
    method: Method = "joint",
    start: tuple[ArrayLike, ArrayLike] | None = None,
    stopping: Stopping | None = None,
) -> Solution:
    """Decides how much every device computes and sends.

    Args:
        problem: what is known and what may be spent.
        method: "joint" finds the optimum up to a proven gap; "alternating" is the paper's Algorithm 3.
        start: ρ₀ and θ₀ of Algorithm 3, numbers or arrays; by default the upper bounds.
        stopping: when Algorithm 3 ends.

    Returns:
        A plan with its proof. Caps that cannot be met do not raise an error: see `Solution.violations`.
    """
    if method not in METHODS:
        raise InputError(unknown_name("method", method, METHODS))
    if method == "joint" and (start is not None or stopping is not None):
        raise InputError("start, stopping: only method='alternating' takes them")
    limits = find_feasible_limits(problem)
    if limits.forced:
        return _take_lower_bounds(problem, limits, method)
    # Algorithm 3 has no bound of its own; the joint solver's holds for every plan within the limits.
    certificate = solve_joint(problem, limits)
    rho, theta, iterations = certificate.rho, certificate.theta, 0
    if method == "alternating":
        begin = _read_start(problem, start)
        rho, theta, iterations = solve_alternating(problem, limits, begin, stopping or Stopping())
    rho, theta = project_feasible(problem, limits, rho, theta)
    return prove(
        problem,
        limits,
        rho,
        theta,
        lower_bound=certificate.lower_bound,
        multiplier=certificate.multiplier,
        method=method,
        iterations=iterations,
    )


def _take_lower_bounds(problem: RoundProblem, limits: Limits, method: str) -> Solution:
    """Returns the lower bounds, as the energy cap is out of reach."""
    # The limits allow the energy of the lower bounds, so the bound is over plans that use no more than these.
    rho, theta = problem.rho_min, problem.theta_min
    bound = solve_joint(problem, limits).lower_bound
    return prove(problem, limits, rho, theta, lower_bound=bound, multiplier=np.inf, method=method)


def _read_start(
    problem: RoundProblem, start: tuple[ArrayLike, ArrayLike] | None
) -> tuple[FloatArray, FloatArray]:
    if start is None:
        return problem.rho_max, problem.theta_max
    rho, theta = (
        _check_start(name, values, problem.devices)
        for name, values in zip(("rho", "theta"), start, strict=True)
    )
    return rho, theta


def _check_start(name: str, values: ArrayLike, devices: int) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        array = np.full(devices, array)
    if array.shape != (devices,) or not np.isfinite(array).all():
        raise InputError(f"start: {name}₀ must be a finite number or {devices} of them, got {values!r}")
    outside = np.flatnonzero((array < 0) | (array > 1))
    if outside.size:
        first = outside[0]
        raise InputError(f"start: {name}₀[{first}] = {array[first]}: must lie in [0, 1]")
    return array
