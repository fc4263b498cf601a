"""What simulator and deployment both know about a round: what is observed, ordered, counted and written down.

Pure functions of a `World` and of what a run has come to; no executor, clock or network. Who drives them is
above: `simulation` in virtual time, `runtime` on a network.
"""

from cfel.rounds.control import (
    beyond_belief,
    device_weights,
    known_estimates,
    observed,
    ordered,
    wants_estimates,
)
from cfel.rounds.costs import counted
from cfel.rounds.outcome import EdgeRoundOutcome, Spent, Work
from cfel.rounds.parameters import ENGINES, SimulationParameters, chosen_engine
from cfel.rounds.records import (
    is_evaluated,
    is_last,
    mean_metric,
    mean_model,
    plan_table,
    round_record,
)
from cfel.rounds.start import fleet_description, refuse_other_experiment

__all__ = [
    "ENGINES",
    "EdgeRoundOutcome",
    "SimulationParameters",
    "Spent",
    "Work",
    "beyond_belief",
    "chosen_engine",
    "counted",
    "device_weights",
    "fleet_description",
    "is_evaluated",
    "is_last",
    "known_estimates",
    "mean_metric",
    "mean_model",
    "observed",
    "ordered",
    "plan_table",
    "refuse_other_experiment",
    "round_record",
    "wants_estimates",
]
