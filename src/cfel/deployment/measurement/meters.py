"""Measures a device's speed and energy: μ, α, ν and the radio's watts, each with its source; and its reports.

Each value is a quotient of two sums (seconds by steps, bits by seconds). Old rounds count less and less, and
a round of fifty steps counts more than one of two. A value that has not been measured comes from the
experiment's model, and its source says so. The report's ranges are checked where it arrives
(`protocol.device_requests`). A device that lies within those ranges is not detected here.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from cfel import validation
from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.deployment.protocol.device_requests import MeasurementReport
from cfel.errors import InputError
from cfel.learning.device_messages import DeviceOrder
from cfel.world import World

KEEP = 0.7
"""Weight of all earlier rounds against a new one: the last six rounds make up 90 % of an estimate."""
LEAST_SENDING = 0.1
"""The least share of an upload's time that counts as sending."""
MODEL = "model"
"""Source of a number that comes from the experiment's model."""
CLOCK = "clock"
"""Source of a number that comes from measured seconds."""


@dataclass(frozen=True, slots=True)
class RunningRatio:
    """How much of one thing per unit of another; recent rounds count more."""

    amount: float = 0.0
    units: float = 0.0

    def add(self, amount: float, units: float) -> "RunningRatio":
        """Adds one round; a round without units changes nothing."""
        if units <= 0:
            return self
        return RunningRatio(KEEP * self.amount + amount, KEEP * self.units + units)

    @property
    def value(self) -> float | None:
        """The quotient, or None before the first round."""
        return self.amount / self.units if self.units else None


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """What computing and sending cost one device, and the source of each number.

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
        """The costs as text, for a log line."""
        return (
            f"{self.mu:.4g} s/step ({self.mu_source}), {self.alpha:.4g} J/step ({self.alpha_source}), "
            f"{self.nu:.4g} s/upload ({self.nu_source}), {self.power:.4g} W sending ({self.power_source})"
        )


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything a device has measured so far, to be stored across restarts.

    Attributes:
        seconds_per_step, joules_per_step: of training.
        bits_per_second, watts_sending: of uploads.
        energy_source: name of the counter that gave the joules, or "model".
        call_seconds: the shortest time of a call without a body; None before the first.
    """

    seconds_per_step: RunningRatio = RunningRatio()
    joules_per_step: RunningRatio = RunningRatio()
    bits_per_second: RunningRatio = RunningRatio()
    watts_sending: RunningRatio = RunningRatio()
    energy_source: str = MODEL
    call_seconds: float | None = None

    def costs(self, model: DeviceCosts, model_bits: float) -> DeviceCosts:
        """Measured costs where they exist, the model's elsewhere.

        Args:
            model: this device in the experiment's model.
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
    """The moment at which a measurement began."""

    seconds: float


class DeviceMeter:
    """Measures one device while it works.

    Training and uploads must not overlap: the host has one energy counter for both.

    Args:
        now: a monotonic clock.
        energy: the host's counter, or None if it has none.
        measured: what an earlier process of the same device measured.
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
        """Marks the start of training or of an upload."""
        mark = Mark(self._now())
        # Counters give joules since the last reading: read now, so that idle time is not counted.
        self._joules(mark.seconds)
        return mark

    def add_training(self, since: Mark, steps: float) -> tuple[float, float | None]:
        """Adds `steps` local steps taken since `begin`, in steps on full batches.

        Returns:
            The seconds they took, and the joules if the host counts them.
        """
        seconds, joules = self._elapsed(since)
        self.measured = replace(
            self.measured, seconds_per_step=self.measured.seconds_per_step.add(seconds, steps)
        )
        if joules is not None:
            spent = self.measured.joules_per_step.add(joules, steps)
            self.measured = replace(self.measured, joules_per_step=spent)
        return seconds, joules

    def add_call(self, since: Mark) -> None:
        """Adds a call without a body that was answered since `begin`."""
        seconds, _ = self._elapsed(since)
        # The shortest one: anything beyond it was waiting, not the call itself.
        least = self.measured.call_seconds
        self.measured = replace(self.measured, call_seconds=seconds if least is None else min(least, seconds))

    def add_upload(self, since: Mark, bits: int) -> None:
        """Adds an upload of `bits` that was answered since `begin`."""
        seconds, joules = self._elapsed(since)
        # The fixed time of a call must not count as sending: ν scales this upload to a full model, and the
        # fixed part would be scaled with it.
        sending = max(seconds - (self.measured.call_seconds or 0.0), LEAST_SENDING * seconds)
        self.measured = replace(
            self.measured, bits_per_second=self.measured.bits_per_second.add(bits, sending)
        )
        if joules is not None:
            spent = self.measured.watts_sending.add(joules, seconds)
            self.measured = replace(self.measured, watts_sending=spent)

    def _elapsed(self, since: Mark) -> tuple[float, float | None]:
        now = self._now()
        if now < since.seconds:
            raise InputError(f"now = {now}: the clock ran backwards from {since.seconds}")
        return now - since.seconds, self._joules(now)

    def _joules(self, now: float) -> float | None:
        return None if self._energy is None else self._energy.joules(now)


_LOG = logging.getLogger(__name__)


def build_report(costs: DeviceCosts, seconds: float, joules: float) -> MeasurementReport:
    """Builds a device's report.

    Args:
        costs: per step and upload, and where they come from.
        seconds: time of the training that just ended.
        joules: energy of the same training.
    """
    source = costs.mu_source if costs.mu_source == costs.nu_source else "clock and model"
    return MeasurementReport(
        costs.mu, costs.alpha, costs.nu, costs.power, seconds, joules, source, costs.alpha_source
    )


class SelfMeasurement:
    """Measures one device and builds its reports.

    Args:
        world: what is run; its model of this device stands in for what cannot be measured.
        number: which device.
        now: a monotonic clock.
        energy: the host's counter, or None if it has none.
        known: what an earlier process of the same device measured.
        enabled: whether the experiment uses measurements; if not, nothing is reported, stored or logged.
    """

    def __init__(
        self,
        world: World,
        number: int,
        now: Callable[[], float],
        energy: EnergyCounter | None,
        known: Measurements | None,
        *,
        enabled: bool = True,
    ) -> None:
        self._world, self._number, self._enabled = world, number, enabled
        self._meter = DeviceMeter(now, energy, known)
        self._unreported_joules = 0.0
        if enabled:
            source = "the experiment's model" if energy is None else energy.source
            _LOG.info("measuring seconds by the clock; joules come from %s", source)

    @property
    def known(self) -> Measurements | None:
        """Everything measured so far, to be stored."""
        return self._meter.measured if self._enabled else None

    def begin(self) -> Mark:
        """Marks the start of training, estimating or an upload."""
        return self._meter.begin()

    def finish_estimates(self, order: DeviceOrder, since: Mark) -> MeasurementReport | None:
        """Ends the measurement of estimates; returns the report to send with them, if any."""
        # Each gradient of an estimate costs about as much as one local step.
        seconds, joules = self._meter.add_training(since, self._world.training.local.fresh_batches)
        if not self._enabled:
            return None
        # The upload's report replaces this one, so it also carries the energy of the estimates.
        self._unreported_joules += joules or 0.0
        return build_report(self._costs(order), seconds, 0.0)

    def finish_training(self, order: DeviceOrder, since: Mark, steps: float) -> MeasurementReport | None:
        """Ends the measurement of a training; returns the report to send with its upload, if any."""
        seconds, joules = self._meter.add_training(since, steps)
        if not self._enabled:
            return None
        costs = self._costs(order)
        spent = steps * costs.alpha if joules is None else joules
        report = build_report(costs, seconds, spent + self._unreported_joules)
        self._unreported_joules = 0.0
        _LOG.info("round (%d, %d): %s", order.global_round, order.edge_round, costs.in_words())
        return report

    def finish_call(self, since: Mark, bits: int) -> None:
        """Ends the measurement of a call; its result is part of the next report.

        Args:
            since: when the call began.
            bits: size of its body; 0 for estimates, which show how long a call takes without a body.
        """
        if bits:
            self._meter.add_upload(since, bits)
        else:
            self._meter.add_call(since)

    def _costs(self, order: DeviceOrder) -> DeviceCosts:
        """Measured costs where they exist, the experiment's model elsewhere."""
        bits = 32.0 * self._world.start.parameters.numel() * self._world.setting.upload_share
        at = (order.global_round, order.edge_round)
        model = self._world.setting.conditions(*at)
        n = self._number
        modelled = DeviceCosts(
            float(model.mu[n]), float(model.alpha[n]), float(model.nu[n]), float(model.power[n])
        )
        return self._meter.measured.costs(modelled, bits)
