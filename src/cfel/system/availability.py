"""Which devices can take part: some are absent for some global rounds, some batteries run out.

Applied on top of any condition model; a device that cannot take part costs nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray
from cfel.errors import InputError
from cfel.seeding import draw_uniforms


@dataclass(frozen=True, slots=True)
class Availability:
    """When devices are absent (`away` in the experiment file).

    Attributes:
        away_probability: chance of a device to miss a global round, drawn per device and global round.
        away: (device, from_round, to_round) triples; the device misses these global rounds, both included.
        file: intervals in which devices are there (`availability_trace`); None for always.
        round_seconds: seconds of the file's clock that a global round stands for.
    """

    away_probability: float = 0.0
    away: tuple[tuple[int, int, int], ...] = ()
    file: str | None = None
    round_seconds: float | None = None

    def __post_init__(self) -> None:
        validation.check_number("availability.away_probability", self.away_probability, least=0, most=1)
        given = enumerate(validation.check_list("availability.away", self.away))
        object.__setattr__(self, "away", tuple(_check_absence(i, triple) for i, triple in given))
        if self.file is not None:
            validation.check_text("availability.file", self.file)
        if self.round_seconds is not None:
            validation.check_number("availability.round_seconds", self.round_seconds, above=0)
        if (self.file is None) != (self.round_seconds is None):
            raise InputError("availability.file: needs round_seconds, and round_seconds needs a file")

    def check_devices(self, devices: int) -> None:
        """Raises an `InputError` if the absence of an unknown device is listed."""
        for i, (device, _, _) in enumerate(self.away):
            if device >= devices:
                raise InputError(
                    f"availability.away[{i}]: unknown device {device} (allowed: 0 to {devices - 1})"
                )

    def is_absent(self, seed: int, global_round: int, devices: int) -> BoolArray:
        """Whether each device misses this global round."""
        self.check_devices(devices)
        absent = np.zeros(devices, dtype=bool)
        # Streams are keyed by purpose, so leaving out this draw does not shift any other.
        if self.away_probability > 0:
            drawn = draw_uniforms(seed, "availability", (global_round,), devices, 1)[:, 0]
            absent = drawn < self.away_probability
        absent[[device for device, first, last in self.away if first <= global_round <= last]] = True
        return absent


def _check_absence(index: int, triple: object) -> tuple[int, int, int]:
    field = f"availability.away[{index}]"
    if not isinstance(triple, list | tuple) or len(triple) != 3:
        raise InputError(f"{field} = {triple!r}: must be device, first and last global round")
    device, first, last = (validation.check_whole(field, part, least=0) for part in triple)
    if first > last:
        raise InputError(f"{field} = {triple!r}: the first round must not be after the last")
    return device, first, last


def joules_left(battery_joules: ArrayLike, spent_joules: ArrayLike) -> FloatArray:
    """What each battery still holds, never below 0.

    Args:
        battery_joules: full charge per device, ≥ 0; infinity for a device on mains power.
        spent_joules: joules each device has spent so far, ≥ 0.
    """
    charge = validation.check_floats("battery", battery_joules, least=0, finite=False)
    spent = validation.check_floats("spent joules", spent_joules, length=charge.size, least=0)
    return np.maximum(charge - spent, 0.0)


def is_exhausted(battery_joules: ArrayLike, spent_joules: ArrayLike) -> BoolArray:
    """Whether each device's battery is empty (see `joules_left`)."""
    return np.asarray(joules_left(battery_joules, spent_joules) <= 0)
