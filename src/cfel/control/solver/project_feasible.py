"""Takes back what rounding put over a limit.

A solver computes θ as what a limit leaves beside ρ. Where that is a small difference of large numbers, the
plan can exceed the limit by more than a rounding of the limit itself. Such a plan is drawn towards the lower
bounds, which keep every limit, just as far as needed; all others are left alone.
"""

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.feasible_limits import Limits

# An excess below this share of a limit is nobody's business.
ROUNDING = 1e-10


def trimmed(
    problem: RoundProblem, limits: Limits, rho: FloatArray, theta: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The plan within its bounds and limits: first device by device, then all together for the energy."""
    rho = np.clip(rho, problem.rho_min, problem.rho_max)
    theta = np.clip(theta, problem.theta_min, problem.theta_max)
    if _fits(problem, limits, rho, theta):
        return rho, theta
    least = problem.joules(problem.rho_min, problem.theta_min)
    least_seconds = problem.seconds(problem.rho_min, problem.theta_min)
    kept = _share(problem.seconds(rho, theta), least_seconds, limits.seconds)
    if limits.battery is not None:
        kept = np.minimum(kept, _share(problem.joules(rho, theta), least, limits.battery))
    rho, theta = _drawn(problem, rho, theta, kept)
    total, spent = float(least.sum()), float(problem.joules(rho, theta).sum())
    return _drawn(problem, rho, theta, _share(np.array(spent), np.array(total), np.array(limits.joules)))


def _fits(problem: RoundProblem, limits: Limits, rho: FloatArray, theta: FloatArray) -> bool:
    joules, wider = problem.joules(rho, theta), 1.0 + ROUNDING
    return bool(
        joules.sum() <= limits.joules * wider
        and (problem.seconds(rho, theta) <= limits.seconds * wider).all()
        and (limits.battery is None or (joules <= limits.battery * wider).all())
    )


def _share(used: FloatArray, least: FloatArray, allowed: FloatArray) -> FloatArray:
    """How much of what exceeds the least use may stay, 0 … 1."""
    over = used > allowed * (1.0 + ROUNDING)
    room = np.subtract(allowed, least, out=np.zeros_like(used), where=over)
    return np.divide(room, used - least, out=np.ones_like(used), where=over)


def _drawn(
    problem: RoundProblem, rho: FloatArray, theta: FloatArray, kept: FloatArray
) -> tuple[FloatArray, FloatArray]:
    rho_min, theta_min = problem.rho_min, problem.theta_min
    return rho_min + kept * (rho - rho_min), theta_min + kept * (theta - theta_min)
