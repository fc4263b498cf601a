"""A user-defined scheme: devices with even and odd numbers take turns at working hard.

    cfel run examples/tiny.toml --set scheme.name=custom_scheme:build

A scheme is a function that takes the experiment's `[scheme]` section and returns a pair (init, plan). In each
edge round, `plan` gets the scheme's state and an observation of the fleet. It returns ρ and θ for all devices
and the next state: plain JSON values, so that a checkpoint can hold them. Here the turn decides ρ. The solver
chooses θ so that the budgets last, where that is possible.
"""

from typing import Any

import numpy as np

from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters, State


def build(parameters: SchemeParameters) -> Scheme:
    """Builds the scheme; `scheme.rho_min` is the ρ of devices whose turn it is not."""

    def plan(state: State, seen: Observation) -> tuple[RoundPlan, State]:
        turn: int = state["turn"]
        device = np.arange(seen.cluster.size)
        rho = np.where(device % 2 == turn % 2, 1.0, parameters.rho_min)
        bounds = Bounds(rho=(rho, rho), theta=(parameters.theta_min, 1.0))
        return plan_round(seen, parameters, bounds), {"turn": turn + 1}

    return Scheme(init=_first_turn, plan=plan)


def _first_turn() -> dict[str, Any]:
    return {"turn": 0}
