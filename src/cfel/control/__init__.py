"""How much each device does: the round's optimisation problem, its solution, and the schemes built on it.

    problem = RoundProblem(tau=5, sigma2=1.0, g2=1.0, mu=..., ...)
    solution = solve(problem)

This package works on numbers only: no tensors, no files, no clock. How P2 is solved: `control/solver/`.
"""

from cfel.control.caps import Budget, Rounds, round_caps
from cfel.control.gossip import Gossip
from cfel.control.problem import RoundProblem
from cfel.control.scheme import DeviceOverrides, Observation, RoundPlan, Scheme, SchemeParameters
from cfel.control.schemes import SCHEMES, build_scheme
from cfel.control.setting import Setting
from cfel.control.solution import Solution, SolverDefectError
from cfel.control.solver.alternating import Stopping
from cfel.control.solver.solve import solve
from cfel.control.theory import Bound, Landscape, omega1, theorem_1

__all__ = [
    "SCHEMES",
    "Bound",
    "Budget",
    "DeviceOverrides",
    "Gossip",
    "Landscape",
    "Observation",
    "RoundPlan",
    "RoundProblem",
    "Rounds",
    "Scheme",
    "SchemeParameters",
    "Setting",
    "Solution",
    "SolverDefectError",
    "Stopping",
    "build_scheme",
    "omega1",
    "round_caps",
    "solve",
    "theorem_1",
]
