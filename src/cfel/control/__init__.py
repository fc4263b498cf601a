"""Who does how much: the round's optimisation problem, its solution, and the schemes built on it.

    problem = RoundProblem(tau=5, sigma2=1.0, g2=1.0, mu=..., ...)
    solution = solve(problem)

This package deals in numbers only: it knows no tensors, no files, no clock.
"""

from cfel.control.alternating import Stopping
from cfel.control.problem import RoundProblem
from cfel.control.solution import Solution, SolverDefectError
from cfel.control.solver import solve

__all__ = ["RoundProblem", "Solution", "SolverDefectError", "Stopping", "solve"]
