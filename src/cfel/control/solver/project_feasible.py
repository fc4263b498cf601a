"""Takes back what rounding put over a limit.

A solver computes θ as what a limit leaves beside ρ. Where that is a small difference of large numbers, the
plan can exceed the limit by more than the limit's own rounding. Such a plan is moved towards the lower
bounds, which keep every limit, just as far as needed. All other plans stay as they are.
"""

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.feasible_limits import Limits

# An excess below this share of a limit is left alone.
ROUNDING = 1e-10


def project_feasible(
    problem: RoundProblem, limits: Limits, rho: FloatArray, theta: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Moves a plan within its bounds and limits: first device by device, then all together for the energy."""
    rho = np.clip(rho, problem.rho_min, problem.rho_max)
    theta = np.clip(theta, problem.theta_min, problem.theta_max)
    if _fits(problem, limits, rho, theta):
        return rho, theta
    least = problem.joules(problem.rho_min, problem.theta_min)
    least_seconds = problem.seconds(problem.rho_min, problem.theta_min)
    kept = _share_to_keep(problem.seconds(rho, theta), least_seconds, limits.seconds)
    if limits.battery is not None:
        kept = np.minimum(kept, _share_to_keep(problem.joules(rho, theta), least, limits.battery))
    rho, theta = _shrink(problem, rho, theta, kept)
    total, spent = float(least.sum()), float(problem.joules(rho, theta).sum())
    return _shrink(
        problem, rho, theta, _share_to_keep(np.array(spent), np.array(total), np.array(limits.joules))
    )


def _fits(problem: RoundProblem, limits: Limits, rho: FloatArray, theta: FloatArray) -> bool:
    joules, wider = problem.joules(rho, theta), 1.0 + ROUNDING
    return bool(
        joules.sum() <= limits.joules * wider
        and (problem.seconds(rho, theta) <= limits.seconds * wider).all()
        and (limits.battery is None or (joules <= limits.battery * wider).all())
    )


def _share_to_keep(used: FloatArray, least: FloatArray, allowed: FloatArray) -> FloatArray:
    """How much of what exceeds the least use may stay, 0 … 1."""
    over = used > allowed * (1.0 + ROUNDING)
    room = np.subtract(allowed, least, out=np.zeros_like(used), where=over)
    return np.divide(room, used - least, out=np.ones_like(used), where=over)


def _shrink(
    problem: RoundProblem, rho: FloatArray, theta: FloatArray, kept: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Moves a plan towards the lower bounds; costs are linear in ρ and θ and shrink by the same share."""
    rho_min, theta_min = problem.rho_min, problem.theta_min
    return rho_min + kept * (rho - rho_min), theta_min + kept * (theta - theta_min)
