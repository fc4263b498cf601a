"""Cooperative federated edge learning under time and energy budgets.

    import cfel

    plan = cfel.plan("devices.csv", time_cap=450, energy_cap=300)
    result = cfel.run(cfel.Experiment(scheme="hcef_plus", rounds={"global": 4}), out="runs/first")

The names in `__all__` are the public interface; `docs/guides/python.md` explains them. They are imported on
first use: `import cfel` itself imports none of them, and planning needs NumPy but no torch.
"""

from typing import TYPE_CHECKING

from cfel.extras import import_on_use

if TYPE_CHECKING:
    from cfel.api.plan import FleetPlan, plan
    from cfel.api.results import Comparison, RunResult, Sweep, Tuning
    from cfel.api.runs import Simulation, compare, load, run, simulate, sweep
    from cfel.api.tuning import tune
    from cfel.control.problem import RoundProblem, Solution
    from cfel.control.solve import solve
    from cfel.errors import BudgetWarning, CfelError, InputError
    from cfel.experiment.experiment import Experiment
    from cfel.extras import MissingExtraError
    from cfel.learning.data.dataset import DataSet
    from cfel.learning.task import Task
    from cfel.metric import Metric
    from cfel.report.figures import Picture
    from cfel.runlog.records import RoundRecord

__version__ = "0.1.0"

__all__ = [
    "BudgetWarning",
    "CfelError",
    "Comparison",
    "DataSet",
    "Experiment",
    "FleetPlan",
    "InputError",
    "Metric",
    "MissingExtraError",
    "Picture",
    "RoundProblem",
    "RoundRecord",
    "RunResult",
    "Simulation",
    "Solution",
    "Sweep",
    "Task",
    "Tuning",
    "compare",
    "load",
    "plan",
    "run",
    "simulate",
    "solve",
    "sweep",
    "tune",
]

_NAMES = {
    "api.plan": ("FleetPlan", "plan"),
    "api.results": ("Comparison", "RunResult", "Sweep", "Tuning"),
    "api.runs": ("Simulation", "compare", "load", "run", "simulate", "sweep"),
    "api.tuning": ("tune",),
    "control.problem": ("RoundProblem", "Solution"),
    "control.solve": ("solve",),
    "errors": ("BudgetWarning", "CfelError", "InputError"),
    "experiment.experiment": ("Experiment",),
    "extras": ("MissingExtraError",),
    "learning.data.dataset": ("DataSet",),
    "learning.task": ("Task",),
    "metric": ("Metric",),
    "report.figures": ("Picture",),
    "runlog.records": ("RoundRecord",),
}

if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    __getattr__, __dir__ = import_on_use(__name__, _NAMES)
