"""Cooperative federated edge learning under time and energy budgets.

The package is a stack of small layers; `docs/architecture.md` draws it. The controller can be used on its
own: `from cfel.control import RoundProblem, solve`.
"""

__version__ = "0.1.0"
