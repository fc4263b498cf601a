"""Schemes side by side without learning: what each would use of the budgets, and how well it was planned."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cfel.control import SCHEMES, Budget, Setting, build_scheme, rehearse
from cfel.experiment import Experiment, preset_experiment


@dataclass(frozen=True, slots=True)
class SchemeUse:
    """What a scheme would use over a whole run, on average over its random steps.

    Attributes:
        scheme: its name.
        seconds, joules: in all.
        seconds_share, joules_share: relative to the budgets; above 1 is overspent.
        rho, theta: means over devices and rounds.
        worst_gap: the largest proven distance from the optimum over all edge rounds.
        unmet_rounds: edge rounds in which some cap was out of reach.
    """

    scheme: str
    seconds: float
    joules: float
    seconds_share: float
    joules_share: float
    rho: float
    theta: float
    worst_gap: float
    unmet_rounds: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def compare_use(preset: str) -> list[SchemeUse]:
    """Every built-in scheme on a preset's fleet, under the same conditions and budgets."""
    experiment = preset_experiment(preset)
    setting, _ = experiment.setting()
    budget = experiment.budgets(setting)
    return [scheme_use(experiment, setting, budget, name) for name in SCHEMES]


def scheme_use(experiment: Experiment, setting: Setting, budget: Budget, name: str) -> SchemeUse:
    """One scheme's use of the budgets."""
    rounds = list(rehearse(setting, build_scheme(replace(experiment.scheme, name=name)), budget))
    plans = [plan for each in rounds for plan in each.plans]
    ledger = rounds[-1].ledger
    return SchemeUse(
        scheme=name,
        seconds=ledger.seconds,
        joules=ledger.joules,
        seconds_share=ledger.seconds / budget.seconds,
        joules_share=ledger.joules / budget.joules,
        rho=float(np.mean([plan.rho.mean() for plan in plans])),
        theta=float(np.mean([plan.theta.mean() for plan in plans])),
        worst_gap=max(plan.gap for plan in plans),
        unmet_rounds=sum(not plan.feasible for plan in plans),
    )
