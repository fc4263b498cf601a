"""A scheme of one's own: the devices of even and odd number take turns at working hard.

    cfel run examples/tiny.toml --set scheme.name=own_scheme:build

A scheme is a function from the experiment's `[scheme]` to a pair (init, plan). `plan` gets what was
remembered and what is seen at the start of an edge round, and gives everybody's ρ and θ and what to remember
next: plain JSON values, so that they can wait in a checkpoint. Here ρ is given by whose turn it is; θ is left
to the solver, which makes the budgets last where it can.
"""

from typing import Any

import numpy as np

from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters, State


def build(parameters: SchemeParameters) -> Scheme:
    """The scheme; `scheme.rho_min` is what those do whose turn it is not."""

    def plan(state: State, seen: Observation) -> tuple[RoundPlan, State]:
        turn: int = state["turn"]
        device = np.arange(seen.cluster.size)
        rho = np.where(device % 2 == turn % 2, 1.0, parameters.rho_min)
        bounds = Bounds(rho=(rho, rho), theta=(parameters.theta_min, 1.0))
        return plan_round(seen, parameters, bounds), {"turn": turn + 1}

    return Scheme(init=_first_turn, plan=plan)


def _first_turn() -> dict[str, Any]:
    return {"turn": 0}
