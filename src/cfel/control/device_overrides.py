"""What a scheme asks of devices beyond ρ and θ: how they step, what they keep, what they measure.

A scheme's `DeviceOverrides` take precedence over the experiment file, so that every scheme of a comparison
trains the way it is meant to. A field left at `None` keeps the experiment's setting.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DeviceOverrides:
    """Settings of the local training that a scheme overrides.

    Attributes:
        steps: "bernoulli", "systematic" or "whole"; None keeps the experiment's.
        error_feedback: whether devices keep what compression dropped; None keeps the experiment's.
        kept_energy_at: shares θ at which every report states how much energy the largest entries carry.
    """

    steps: Literal["bernoulli", "systematic", "whole"] | None = None
    error_feedback: bool | None = None
    kept_energy_at: tuple[float, ...] = ()
