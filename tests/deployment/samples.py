"""A record and a plan table, as small as they can be."""

from typing import Any

import numpy as np

from cfel.runlog import PlanTable, RoundRecord

RECORD = RoundRecord(
    round=1,
    seconds=1.0,
    joules=1.0,
    seconds_expected=1.0,
    joules_expected=1.0,
    seconds_realised=1.0,
    joules_realised=1.0,
    rho_mean=0.5,
    theta_mean=0.5,
    sigma2=1.0,
    g2=1.0,
    wall_seconds=1.0,
    accuracy=None,
    loss=None,
    gap=None,
    feasible=True,
    wire_bytes=1,
    model_sha256="0" * 64,
)


def table(**changes: Any) -> PlanTable:
    """A table with one row."""
    names = ("rho", "theta", "mu", "alpha", "nu", "power", "steps", "seconds", "joules")
    columns: dict[str, Any] = dict.fromkeys((*names, "edge_round", "device", "cluster"), np.zeros(1))
    return PlanTable(**{"round": 1, **columns, **changes})
