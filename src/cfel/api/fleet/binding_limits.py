"""What keeps each device from doing more: the first question people ask about a plan."""

import numpy as np
from numpy.typing import NDArray

from cfel.control import RoundProblem, Solution

# How close to a limit counts as touching it.
TOUCH = 1e-6

MEANING = {
    "full": "at its upper bounds",
    "time": "its cluster's time cap is used up",
    "battery": "its own battery is used up",
    "energy": "the common energy cap is worth more elsewhere",
    "noise": "more steps would add more noise than progress",
    "floor": "at its lower bounds",
    "scheme": "the scheme asks for no more",
    "idle": "left out of this round by the scheme",
}


def find_scheme_limits(problem: RoundProblem, solution: Solution) -> NDArray[np.str_]:
    """The same of a plan by another scheme than HCEF: only the scheme itself knows what energy is worth."""
    rho, theta = solution.rho, solution.theta
    drained = np.zeros(problem.devices, dtype=bool)
    if problem.battery is not None:
        drained = solution.device_joules >= problem.battery * (1 - TOUCH)
    timed = solution.device_seconds >= solution.time_cap[problem.cluster] * (1 - TOUCH)
    return np.select(
        [(rho == 0) & (theta == 0), (rho >= 1 - TOUCH) & (theta >= 1 - TOUCH), drained, timed],
        ["idle", "full", "battery", "time"],
        default="scheme",
    )


def find_binding_limits(problem: RoundProblem, solution: Solution) -> NDArray[np.str_]:
    """Finds what limits each device; returns one word of `MEANING` per device."""
    rho, theta = solution.rho, solution.theta
    cap = solution.time_cap[problem.cluster]
    timed = solution.device_seconds >= cap * (1 - TOUCH)
    full = (rho >= problem.rho_max - TOUCH) & (theta >= problem.theta_max - TOUCH)
    floor = (rho <= problem.rho_min + TOUCH) & (theta <= problem.theta_min + TOUCH)
    drained = np.zeros(problem.devices, dtype=bool)
    if problem.battery is not None:
        drained = solution.device_joules >= problem.battery * (1 - TOUCH)
    priced = (solution.multiplier > 0) & (problem.joules(problem.rho_max, problem.theta_max) > 0)
    # A device over a cap that could not be met is at its lower bounds for that reason, not held by the cap.
    late = floor & (solution.device_seconds > cap * (1 + TOUCH))
    return np.select(
        [full, drained, late, timed, floor, priced],
        ["full", "battery", "floor", "time", "floor", "energy"],
        default="noise",
    )
