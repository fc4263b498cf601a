"""Schedules of the learning rate: the share of `local.learning_rate` that is used after a share of the run.

    constant  1
    linear    from 1 down to `final_rate`
    cosine    the same along half a cosine: slow at first and at the end
    step      times `decay_factor` at each of the shares `decay_at`

With `warmup`, the rate first rises linearly, from a tenth. Pure functions: how far a run has come is up to
`rounds.orders`.
"""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine", "step"]
ScheduleBy = Literal["rounds", "budget"]

FIRST_RATE = 0.1
"""Of a warm-up. It does not start at zero, as the first round would then learn nothing."""


def decay_rate(
    schedule: Schedule, used: float, *, final: float, at: tuple[float, ...], factor: float
) -> float:
    """The share of the learning rate, without warm-up.

    Args:
        schedule: see the top of the module.
        used: share of the run that is over, in [0, 1].
        final: for `linear` and `cosine`.
        at: for `step`.
        factor: for `step`.
    """
    match schedule:
        case "linear":
            return final + (1 - final) * (1 - used)
        case "cosine":
            return final + (1 - final) * (1 + math.cos(math.pi * used)) / 2
        case "step":
            return math.prod(factor for share in at if used >= share)
        case _:
            return 1.0


def warm_up(used: float, warmup: float) -> float:
    """What a warm-up over the share `warmup` of the run leaves of the rate."""
    return 1.0 if used >= warmup else FIRST_RATE + (1 - FIRST_RATE) * used / warmup
