"""What is measured after a global round, and how it gets into the record, in simulations and deployments.

Models are evaluated elsewhere: by the simulator's executors, or by the edge servers of a deployment.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.setting import Setting
from cfel.learning.device_accuracy import measure_devices, summarise_devices
from cfel.learning.evaluate import Evaluation, choose_test_samples
from cfel.rounds.parameters import SimulationParameters
from cfel.rounds.records import mean_metric
from cfel.runlog import RoundRecord
from cfel.world import World


@dataclass(frozen=True, slots=True, eq=False)
class RoundScores:
    """What was measured after a round.

    Attributes:
        accuracy: the task's metric; None when the round was not evaluated.
        devices: measures the edge models per device, on test samples like its own; None if it cannot.
        personal: the same of devices' own models; None where they have none.
        personal_losses: the task's loss of these.
        metrics: the task's further metrics, averaged like accuracy.
    """

    accuracy: float | None = None
    devices: Callable[[], FloatArray] | None = None
    personal: FloatArray | None = None
    personal_losses: FloatArray | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def add_to(self, record: RoundRecord, parameters: SimulationParameters, *, over: bool) -> RoundRecord:
        """The record with these values.

        Args:
            record: without them.
            parameters: when edge models are recorded per device.
            over: whether the run ends with this round.
        """
        record = replace(record, metrics=dict(self.metrics))
        per_device = parameters.device_accuracy in (("every", "end") if over else ("every",))
        found = summarise_devices(self.devices()) if per_device and self.devices is not None else None
        if found is not None:
            record = replace(
                record,
                device_accuracy_mean=found.mean,
                device_accuracy_worst=found.worst,
                device_accuracy_spread=found.spread,
            )
        own = None if self.personal is None else summarise_devices(self.personal)
        if own is None or self.personal_losses is None:
            return record
        return replace(
            record,
            personal_accuracy_mean=own.mean,
            personal_accuracy_worst=own.worst,
            personal_accuracy_spread=own.spread,
            personal_loss=float(np.nanmean(self.personal_losses)),
        )


def measure_each(
    world: World, parameters: SimulationParameters, devices: Sequence[int], values: Sequence[FloatArray]
) -> FloatArray:
    """A metric of some devices, on test samples like their own; NaN where there are none.

    Args:
        world: what is run.
        parameters: which test samples were evaluated.
        devices: their numbers.
        values: per device, the metric of its model for each evaluated sample.
    """
    data, samples = world.task.data, parameters.evaluate_samples or None
    places = choose_test_samples(len(data.test_targets), samples, world.setting.seed).numpy()
    return measure_devices(data, [world.data[n] for n in devices], places, values)


def take_means(evaluation: Evaluation) -> dict[str, float]:
    """The mean of each of the task's further metrics over the evaluated samples."""
    return {name: float(values.mean()) for name, values in evaluation.metrics.items()}


def average_metrics(
    setting: Setting, metrics: Mapping[int, Mapping[str, float]], names: Collection[str]
) -> dict[str, float]:
    """The task's further metrics, averaged over devices.

    Args:
        setting: the clusters' sizes.
        metrics: by cluster; some may be missing.
        names: of the metrics.
    """
    if not metrics:
        return {}
    by_cluster = [metrics.get(i) for i in range(setting.fleet.clusters)]
    return {
        name: mean_metric(setting, [0.0 if each is None else each[name] for each in by_cluster], metrics)
        for name in names
    }
