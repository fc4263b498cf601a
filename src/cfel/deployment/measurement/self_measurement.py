"""A device measures itself while it works: the meter, the experiment's model behind it, and what is told."""

import logging
from collections.abc import Callable
from typing import Any

from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.deployment.measurement.meters import DeviceCosts, DeviceMeter, Mark, Measurements
from cfel.deployment.measurement.reported import as_header, reported
from cfel.learning.device_messages import DeviceOrder
from cfel.world import World

_LOG = logging.getLogger(__name__)


class SelfMeasurement:
    """One device's.

    Args:
        world: what is run; its model of this device stands in for what cannot be measured.
        number: which device.
        now: a clock that only runs forward.
        energy: the host's counter, or None if it has none.
        known: what an earlier process of the same device found out.
        tells: whether anybody wants to know; else nothing is told, kept or logged.
    """

    def __init__(
        self,
        world: World,
        number: int,
        now: Callable[[], float],
        energy: EnergyCounter | None,
        known: Measurements | None,
        *,
        tells: bool = True,
    ) -> None:
        self._world, self._number, self._tells = world, number, tells
        self._meter = DeviceMeter(now, energy, known)
        self._untold_joules = 0.0
        if tells:
            source = "the experiment's model" if energy is None else energy.source
            _LOG.info("measures its own seconds; joules come from %s", source)

    @property
    def known(self) -> Measurements | None:
        """All that was measured so far, to be kept."""
        return self._meter.measured if self._tells else None

    def begin(self) -> Mark:
        """The start of training, estimating or an upload."""
        return self._meter.begin()

    def estimated(self, order: DeviceOrder, since: Mark) -> dict[str, Any]:
        """What to tell with estimates: each of their gradients is nearly a step."""
        seconds, joules = self._meter.trained(since, self._world.local.fresh_batches)
        if not self._tells:
            return {}
        self._untold_joules += joules or 0.0
        return as_header(reported(self._costs(order), seconds, 0.0))

    def trained(self, order: DeviceOrder, since: Mark, steps: int) -> dict[str, Any]:
        """What to tell with an upload, once the steps are taken."""
        seconds, joules = self._meter.trained(since, steps)
        if not self._tells:
            return {}
        costs = self._costs(order)
        spent = steps * costs.alpha if joules is None else joules
        told = as_header(reported(costs, seconds, spent + self._untold_joules))
        self._untold_joules = 0.0
        _LOG.info("round (%d, %d): %s", order.global_round, order.edge_round, costs.in_words())
        return told

    def sent(self, since: Mark, bits: int) -> None:
        """A call was answered; what was learned from it is told with the next upload.

        Args:
            since: its beginning.
            bits: of its body; 0 for estimates, which show what a call takes without one.
        """
        if bits:
            self._meter.uploaded(since, bits)
        else:
            self._meter.called(since)

    def _costs(self, order: DeviceOrder) -> DeviceCosts:
        """What is measured where it is, the experiment's model elsewhere."""
        bits = 32.0 * self._world.start.parameters.numel()
        at = (order.global_round, order.edge_round)
        model = self._world.fleet.conditions(self._world.seed, *at, self._world.model_bits)
        n = self._number
        modelled = DeviceCosts(
            float(model.mu[n]), float(model.alpha[n]), float(model.nu[n]), float(model.power[n])
        )
        return self._meter.measured.costs(modelled, bits)
