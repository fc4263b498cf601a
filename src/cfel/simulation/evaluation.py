"""What is measured after a global round: edge models, devices, and the models that devices keep.

Where a part of the model is personal, an edge model cannot be evaluated alone: accuracy is then the mean over
devices of their own models. Plans and costs do not depend on any of this.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from cfel.arrays import FloatArray
from cfel.learning.device_accuracy import measure_devices, summarise_devices
from cfel.learning.device_messages import DeviceState
from cfel.learning.evaluate import Evaluation, choose_test_samples
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.models.flat import FlatModel
from cfel.learning.models.personal import complete_model
from cfel.rounds.edge_models import mean_model
from cfel.rounds.ending import is_evaluated
from cfel.rounds.parameters import SimulationParameters
from cfel.rounds.records import mean_metric
from cfel.runlog import RoundRecord
from cfel.simulation.executors import Executor
from cfel.simulation.state import RunState
from cfel.world import World

# Whole models of devices that are made at a time.
_AT_ONCE = 16


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

    def add_to(self, record: RoundRecord, *, per_device: bool) -> RoundRecord:
        """The record with these values.

        Args:
            record: without them.
            per_device: whether edge models are recorded per device.
        """
        record = replace(record, metrics=dict(self.metrics))
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


def evaluate_round(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState
) -> RoundScores:
    """Evaluates the models of a round; empty when the round is not evaluated."""
    if not is_evaluated(world.setting, parameters, state.control):
        return RoundScores()
    data, samples = world.task.data, parameters.evaluate_samples or None
    places = choose_test_samples(len(data.test_targets), samples, world.setting.seed).numpy()
    measure = partial(measure_devices, data, world.data, places)
    models = [world.edge_rules.read_average(model) for model in state.models]
    if parameters.evaluate_on == "mean":
        models = [mean_model(world.setting.fleet.sizes, dict(enumerate(models)))]
    # Where all devices share one model, its number is 0.
    number = [i if len(models) > 1 else 0 for i in world.setting.fleet.cluster.tolist()]
    personal = losses = None
    if own := _evaluate_personal(world, executor, parameters, state.devices, [models[i] for i in number]):
        personal = measure([each.per_sample for each in own])
        losses = measure([each.losses for each in own])
        if world.new_device.memory:
            found = summarise_devices(personal)
            metrics = {
                name: float(np.nanmean(measure([each.metrics[name] for each in own])))
                for name in world.task.metrics
            }
            return RoundScores(None if found is None else found.mean, None, personal, losses, metrics)
    edges = executor.run_evaluations(models, parameters.evaluate_samples)
    return RoundScores(
        _average(world, [each.metric for each in edges]),
        lambda: measure([edges[i].per_sample for i in number]),
        personal,
        losses,
        {
            name: _average(world, [float(each.metrics[name].mean()) for each in edges])
            for name in world.task.metrics
        },
    )


def _average(world: World, values: Sequence[float]) -> float:
    """The mean over devices of a value per edge model, or of the one model that all share."""
    return values[0] if len(values) == 1 else mean_metric(world.setting, values)


def _evaluate_personal(
    world: World,
    executor: Executor,
    parameters: SimulationParameters,
    devices: Sequence[DeviceState],
    models: Sequence[FlatModel],
) -> list[Evaluation]:
    """Every device's own model; empty where devices have none.

    Args:
        world: what is run.
        executor: where models are evaluated.
        parameters: how many test samples.
        devices: what each remembers.
        models: the edge model of each.
    """
    name = find_algorithm(world.training).personal_model
    if name is None and not world.new_device.memory:
        return []
    found: list[Evaluation] = []
    for start in range(0, len(devices), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        own = [find_own_model(*each, name) for each in zip(models[part], devices[part], strict=True)]
        found += executor.run_evaluations(own, parameters.evaluate_samples)
    return found


def find_own_model(model: FlatModel, device: DeviceState, name: str | None) -> FlatModel:
    """The model that a device uses itself.

    Args:
        model: of its edge server.
        device: what it remembers.
        name: of the whole model that its algorithm keeps; None if it keeps a part, or nothing.
    """
    if name is None:
        return complete_model(model, device.memory)
    # A device that has not taken part yet has nothing but the edge model.
    return FlatModel(device.memory[name], model.buffers) if name in device.memory else model
