"""How a device measures itself while it works, and the report it makes of it.

The report's ranges are checked where it arrives (`protocol.device_requests`). A device that lies about its
seconds or joules within those ranges is not detected.
"""

import logging
from collections.abc import Callable

from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.deployment.measurement.meters import DeviceCosts, DeviceMeter, Mark, Measurements
from cfel.deployment.protocol.device_requests import MeasurementReport
from cfel.learning.device_messages import DeviceOrder
from cfel.world import World

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
        bits = 32.0 * self._world.start.parameters.numel()
        at = (order.global_round, order.edge_round)
        model = self._world.setting.conditions(*at)
        n = self._number
        modelled = DeviceCosts(
            float(model.mu[n]), float(model.alpha[n]), float(model.nu[n]), float(model.power[n])
        )
        return self._meter.measured.costs(modelled, bits)
