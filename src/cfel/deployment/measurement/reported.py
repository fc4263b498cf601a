"""What a device tells of its own speed and energy, and the checks it passes before anybody plans with it.

A device is believed within bounds: who lies about its seconds or joules is not found out here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cfel import validation
from cfel.deployment.measurement.meters import DeviceCosts
from cfel.deployment.transport.messages import Message
from cfel.errors import InputError, RefusedError

FIELD = "measured"
"""Where it stands in the header of an upload or of estimates."""

MOST_SECONDS = 1e7
MOST_JOULES = 1e9
MOST_WATTS = 1e6
MOST_SOURCE_CHARACTERS = 40
_MOST = {
    "mu": MOST_SECONDS,
    "alpha": MOST_JOULES,
    "nu": MOST_SECONDS,
    "power": MOST_WATTS,
    "seconds": MOST_SECONDS,
    "joules": MOST_JOULES,
}


@dataclass(frozen=True, slots=True)
class Reported:
    """One device's newest measurements.

    Attributes:
        mu: seconds per local step, > 0.
        alpha: joules per local step.
        nu: seconds to upload one full model.
        power: watts while sending.
        seconds: its training in this edge round.
        joules: likewise, with what it measured before and has not told yet.
        time_source: where its seconds come from: "clock", or "model" for those not measured yet.
        energy_source: where its joules come from: a counter's name, or "model".
    """

    mu: float
    alpha: float
    nu: float
    power: float
    seconds: float
    joules: float
    time_source: str
    energy_source: str

    def __post_init__(self) -> None:
        validation.check_number(f"{FIELD}.mu", self.mu, above=0, most=_MOST["mu"])
        for name, most in _MOST.items():
            validation.check_number(f"{FIELD}.{name}", getattr(self, name), least=0, most=most)
        for name in ("time_source", "energy_source"):
            text = validation.check_text(f"{FIELD}.{name}", getattr(self, name))
            if len(text) > MOST_SOURCE_CHARACTERS:
                raise InputError(f"{FIELD}.{name}: {len(text)} characters, at most {MOST_SOURCE_CHARACTERS}")

    @property
    def in_words(self) -> str:
        """Where seconds and joules come from."""
        return f"time: {self.time_source}, energy: {self.energy_source}"


def reported(costs: DeviceCosts, seconds: float, joules: float) -> Reported:
    """What a device tells of what it found.

    Args:
        costs: per step and upload, and where they come from.
        seconds: of the training just done.
        joules: of the same.
    """
    source = costs.mu_source if costs.mu_source == costs.nu_source else "clock and model"
    return Reported(costs.mu, costs.alpha, costs.nu, costs.power, seconds, joules, source, costs.alpha_source)


def as_header(told: Reported) -> dict[str, Any]:
    """For the header of a message."""
    return {FIELD: asdict(told)}


def reported_in(message: Message) -> Reported | None:
    """A device's measurements; None if it told none.

    Raises:
        RefusedError: they are incomplete, unknown, not finite or out of bounds; the reason names the field.
    """
    values = message.header.get(FIELD)
    if values is None:
        return None
    names = [entry.name for entry in fields(Reported)]
    if not isinstance(values, Mapping):
        raise RefusedError(f"{FIELD} = {values!r}: must be an object")
    for name in (*names, *values):
        if name not in values or name not in names:
            raise RefusedError(f"{FIELD}.{name}: {'is missing' if name in names else 'is unknown'}")
    try:
        return Reported(**values)
    except (InputError, OverflowError) as error:
        raise RefusedError(f"{FIELD}: {error}" if isinstance(error, OverflowError) else str(error)) from error
