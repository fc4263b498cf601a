"""A device's own speed and energy, measured: μ, α, ν and the radio's watts, each with where it comes from.

Each is a quotient of two sums (seconds by steps, bits by seconds) in which older rounds count less and less,
so that a round of two steps does not weigh as much as one of fifty. What has not been measured is the
experiment's model, and is said to be.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cfel import validation
from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.errors import InputError

KEEP = 0.7
"""Weight of everything before against one new round: the last six rounds make nine tenths of an estimate."""
LEAST_SENDING = 0.1
"""Share of an upload's time that is taken to be sending at least."""
MODEL = "model"
"""What is said of a number that comes from the experiment."""
CLOCK = "clock"
"""What is said of a number that comes from measured seconds."""


@dataclass(frozen=True, slots=True)
class RunningRatio:
    """How much of one thing per unit of another, the recent past before the distant."""

    amount: float = 0.0
    units: float = 0.0

    def after(self, amount: float, units: float) -> "RunningRatio":
        """With one more round; one without units tells nothing."""
        if units <= 0:
            return self
        return RunningRatio(KEEP * self.amount + amount, KEEP * self.units + units)

    @property
    def value(self) -> float | None:
        """The quotient, or None before the first round."""
        return self.amount / self.units if self.units else None


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """What computing and sending cost one device, and how that is known.

    Attributes:
        mu: seconds per local step, > 0.
        alpha: joules per local step, ≥ 0.
        nu: seconds to upload one full model, ≥ 0.
        power: watts while sending, ≥ 0.
        mu_source, alpha_source, nu_source, power_source: "clock", an energy counter's name, or "model".
    """

    mu: float
    alpha: float
    nu: float
    power: float
    mu_source: str = MODEL
    alpha_source: str = MODEL
    nu_source: str = MODEL
    power_source: str = MODEL

    def __post_init__(self) -> None:
        validation.check_number("mu", self.mu, above=0)
        for name in ("alpha", "nu", "power"):
            validation.check_number(name, getattr(self, name), least=0)

    def in_words(self) -> str:
        """For a log line or a status page."""
        return (
            f"{self.mu:.4g} s/step ({self.mu_source}), {self.alpha:.4g} J/step ({self.alpha_source}), "
            f"{self.nu:.4g} s/upload ({self.nu_source}), {self.power:.4g} W sending ({self.power_source})"
        )


@dataclass(frozen=True, slots=True)
class Measurements:
    """All that a device has measured so far; survives a restart if kept.

    Attributes:
        seconds_per_step, joules_per_step: of training.
        bits_per_second, watts_sending: of uploads.
        energy_source: name of the counter that gave the joules, or "model".
        call_seconds: the least that a call took which carried next to nothing; None before the first.
    """

    seconds_per_step: RunningRatio = RunningRatio()
    joules_per_step: RunningRatio = RunningRatio()
    bits_per_second: RunningRatio = RunningRatio()
    watts_sending: RunningRatio = RunningRatio()
    energy_source: str = MODEL
    call_seconds: float | None = None

    def costs(self, model: DeviceCosts, model_bits: float) -> DeviceCosts:
        """What is measured where it is, the model elsewhere.

        Args:
            model: what the experiment says of this device.
            model_bits: size of a full upload.
        """
        rate = self.bits_per_second.value
        measured = {
            "mu": (self.seconds_per_step.value, CLOCK),
            "alpha": (self.joules_per_step.value, self.energy_source),
            "nu": (None if not rate else model_bits / rate, CLOCK),
            "power": (self.watts_sending.value, self.energy_source),
        }
        known = {name: value for name, (value, _) in measured.items() if value is not None}
        sources = {f"{name}_source": measured[name][1] for name in known}
        return replace(model, **known, **sources)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment from which something is measured."""

    seconds: float


class DeviceMeter:
    """Measures one device while it works.

    Training and uploads must not overlap: the host has one counter for both.

    Args:
        now: a clock that only runs forward.
        energy: the host's counter, or None if it has none.
        measured: what an earlier process of the same device found out.
    """

    def __init__(
        self,
        now: Callable[[], float],
        energy: EnergyCounter | None,
        measured: Measurements | None = None,
    ) -> None:
        self._now, self._energy = now, energy
        source = MODEL if energy is None else energy.source
        self.measured = replace(measured or Measurements(), energy_source=source)

    def begin(self) -> Mark:
        """The start of some training, or of an upload."""
        mark = Mark(self._now())
        self._joules(mark.seconds)
        return mark

    def trained(self, since: Mark, steps: int) -> tuple[float, float | None]:
        """`steps` local steps have been taken since `begin`.

        Returns:
            Seconds and, where they are counted, joules that they took.
        """
        seconds, joules = self._passed(since)
        self.measured = replace(
            self.measured, seconds_per_step=self.measured.seconds_per_step.after(seconds, steps)
        )
        if joules is not None:
            spent = self.measured.joules_per_step.after(joules, steps)
            self.measured = replace(self.measured, joules_per_step=spent)
        return seconds, joules

    def called(self, since: Mark) -> None:
        """A call that carried next to nothing has been answered since `begin`."""
        seconds, _ = self._passed(since)
        least = self.measured.call_seconds
        self.measured = replace(self.measured, call_seconds=seconds if least is None else min(least, seconds))

    def uploaded(self, since: Mark, bits: int) -> None:
        """`bits` have been sent, and answered, since `begin`.

        What any call takes is not the bits' doing: counted as such, it would make a full upload look as many
        times too long as it is larger than this one.
        """
        seconds, joules = self._passed(since)
        sending = max(seconds - (self.measured.call_seconds or 0.0), LEAST_SENDING * seconds)
        self.measured = replace(
            self.measured, bits_per_second=self.measured.bits_per_second.after(bits, sending)
        )
        if joules is not None:
            spent = self.measured.watts_sending.after(joules, seconds)
            self.measured = replace(self.measured, watts_sending=spent)

    def _passed(self, since: Mark) -> tuple[float, float | None]:
        now = self._now()
        if now < since.seconds:
            raise InputError(f"now = {now}: the clock ran backwards from {since.seconds}")
        return now - since.seconds, self._joules(now)

    def _joules(self, now: float) -> float | None:
        return None if self._energy is None else self._energy.joules(now)
