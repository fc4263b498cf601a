"""One kind of device: how fast it computes and sends, and what that costs; the figures are in `library`."""

import math
from dataclasses import dataclass

from cfel import validation


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """One kind of device.

    Attributes:
        name: how a fleet refers to it.
        flops_per_second: sustained floating point operations per second.
        compute_watts: power drawn while computing.
        radio_watts: power drawn while sending.
        uplink_bits_per_second: sustained upload rate.
        source: where the figures come from, in words.
        clock_static: share of a step's energy that a slower clock does not save, in [0, 1].
        clock_exponent: γ ≥ 0 of the rest, which falls with the clock as s^γ. The defaults are in the middle
            of what power profiles of phones show: at half the clock a step takes 0.47 of the energy.
        battery_joules: a full battery; infinity for mains power.
    """

    name: str
    flops_per_second: float
    compute_watts: float
    radio_watts: float
    uplink_bits_per_second: float
    source: str
    clock_static: float = 0.3
    clock_exponent: float = 2.0
    battery_joules: float = math.inf

    def __post_init__(self) -> None:
        validation.check_text("device class: name", self.name)
        place = f"device class {self.name!r}"
        for field in ("flops_per_second", "uplink_bits_per_second"):
            validation.check_number(f"{place}: {field}", getattr(self, field), above=0)
        for field in ("compute_watts", "radio_watts", "clock_exponent"):
            validation.check_number(f"{place}: {field}", getattr(self, field), least=0)
        validation.check_number(f"{place}: clock_static", self.clock_static, least=0, most=1)
        validation.check_number(f"{place}: battery_joules", self.battery_joules, above=0, finite=False)
