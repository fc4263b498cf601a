"""How a device measures itself while it works, and the report of it that its edge server checks.

Reports are checked for form and range only. A device that lies about its seconds or joules within those
bounds is not detected here.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cfel import validation
from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.deployment.measurement.meters import DeviceCosts, DeviceMeter, Mark, Measurements
from cfel.deployment.transport.messages import Message
from cfel.errors import InputError, RejectedError
from cfel.learning.device_messages import DeviceOrder
from cfel.world import World

_LOG = logging.getLogger(__name__)

FIELD = "measured"
"""Where the report stands in the header of an upload or of estimates."""

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
class MeasurementReport:
    """One device's newest measurements.

    Attributes:
        mu: seconds per local step, > 0.
        alpha: joules per local step.
        nu: seconds to upload one full model.
        power: watts while sending.
        seconds: its training time in this edge round.
        joules: its training energy, including energy measured earlier and not reported yet.
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
    def sources(self) -> str:
        """Where seconds and joules come from, for the status page."""
        return f"time: {self.time_source}, energy: {self.energy_source}"


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


def report_header(report: MeasurementReport) -> dict[str, Any]:
    """The report as part of a message's header."""
    return {FIELD: asdict(report)}


def read_report(message: Message) -> MeasurementReport | None:
    """Reads a device's report from a message; None if it has none.

    Raises:
        RejectedError: a field is missing, unknown, not finite or out of range; the reason names it.
    """
    values = message.header.get(FIELD)
    if values is None:
        return None
    names = [entry.name for entry in fields(MeasurementReport)]
    if not isinstance(values, Mapping):
        raise RejectedError(f"{FIELD} = {values!r}: must be an object")
    for name in (*names, *values):
        if name not in values or name not in names:
            raise RejectedError(f"{FIELD}.{name}: {'is missing' if name in names else 'is unknown'}")
    try:
        return MeasurementReport(**values)
    except InputError as error:
        raise RejectedError(str(error)) from error


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

    def finish_estimates(self, order: DeviceOrder, since: Mark) -> dict[str, Any]:
        """Ends the measurement of estimates; returns the header fields to send with them."""
        # Each gradient of an estimate costs about as much as one local step.
        seconds, joules = self._meter.add_training(since, self._world.local.fresh_batches)
        if not self._enabled:
            return {}
        # The upload's report replaces this one, so it also carries the energy of the estimates.
        self._unreported_joules += joules or 0.0
        return report_header(build_report(self._costs(order), seconds, 0.0))

    def finish_training(self, order: DeviceOrder, since: Mark, steps: int) -> dict[str, Any]:
        """Ends the measurement of a training; returns the header fields to send with its upload."""
        seconds, joules = self._meter.add_training(since, steps)
        if not self._enabled:
            return {}
        costs = self._costs(order)
        spent = steps * costs.alpha if joules is None else joules
        header = report_header(build_report(costs, seconds, spent + self._unreported_joules))
        self._unreported_joules = 0.0
        _LOG.info("round (%d, %d): %s", order.global_round, order.edge_round, costs.in_words())
        return header

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
        bits = 32.0 * self._world.start.parameters.numel()
        at = (order.global_round, order.edge_round)
        model = self._world.setting.conditions(*at)
        n = self._number
        modelled = DeviceCosts(
            float(model.mu[n]), float(model.alpha[n]), float(model.nu[n]), float(model.power[n])
        )
        return self._meter.measured.costs(modelled, bits)
