"""What a scheme asks of devices beyond ρ and θ: how they step, what they keep, what they measure.

A scheme's `Habits` go before the experiment's own choices, so that schemes compared with one another can each
train as they are meant to; what is left `None` stays as the experiment says.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Habits:
    """How devices work under a scheme.

    Attributes:
        steps: "bernoulli" or "systematic"; None for the experiment's.
        error_feedback: whether devices keep what compression dropped; None for the experiment's.
        kept_energy_at: shares θ at which every report tells the energy that the largest entries carry.
    """

    steps: Literal["bernoulli", "systematic"] | None = None
    error_feedback: bool | None = None
    kept_energy_at: tuple[float, ...] = ()
