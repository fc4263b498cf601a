"""How much each device does: the round's optimisation problem, its solution, and the schemes built on it.

    problem = RoundProblem(tau=5, sigma2=1.0, g2=1.0, mu=..., ...)
    solution = solve(problem)

This package works on numbers only: no tensors, no files, no wall clock. `solve` is the continuous solver (on
`segments`), `list_solver` the one that chooses from a list of pairs; both plan by adding curves (`curves`).
"""

from typing import TYPE_CHECKING

from cfel.control.caps import Budget, Rounds, round_caps
from cfel.control.problem import RoundProblem, Solution, SolverDefectError
from cfel.control.scheme import DeviceOverrides, Gossip, Observation, RoundPlan, Scheme, SchemeParameters
from cfel.control.schemes import SCHEMES, build_scheme
from cfel.control.solve import Stopping, solve
from cfel.control.theory import Bound, Landscape, omega1, theorem_1

if TYPE_CHECKING:
    from cfel.control.setting import Setting

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

if not TYPE_CHECKING:
    # Imported on first use: it needs graphs, which take a while to load and which planning a round does not.
    def __getattr__(name: str) -> object:
        if name != "Setting":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from cfel.control.setting import Setting

        return Setting
