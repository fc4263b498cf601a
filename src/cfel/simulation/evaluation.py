"""What is measured after a global round: edge models, devices, and the models that devices keep.

Where a part of the model is personal, an edge model cannot be evaluated alone: accuracy is then the mean over
devices of their own models. Plans and costs do not depend on any of this.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from cfel.learning.device_accuracy import summarise_devices
from cfel.learning.device_messages import DeviceState
from cfel.learning.evaluate import Evaluation
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.models.flat import FlatModel
from cfel.learning.models.personal import complete_model
from cfel.rounds.edge_models import mean_model
from cfel.rounds.ending import is_evaluated
from cfel.rounds.parameters import SimulationParameters
from cfel.rounds.records import mean_metric
from cfel.rounds.scores import RoundScores, average_metrics, measure_each, take_means
from cfel.simulation.executors import Executor
from cfel.simulation.state import RunState
from cfel.world import World

# Whole models of devices that are made at a time.
_AT_ONCE = 16


def evaluate_round(
    world: World, executor: Executor, parameters: SimulationParameters, state: RunState
) -> RoundScores:
    """Evaluates the models of a round; empty when the round is not evaluated."""
    if not is_evaluated(world.setting, parameters, state.control):
        return RoundScores()
    models = [world.edge_rules.read_average(model) for model in state.models]
    if parameters.evaluate_on == "mean":
        models = [mean_model(world.setting.fleet.sizes, dict(enumerate(models)))]
    # Where all devices share one model, its number is 0.
    number = [i if len(models) > 1 else 0 for i in world.setting.fleet.cluster.tolist()]
    measure = partial(measure_each, world, parameters, range(len(number)))
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
    means = [take_means(each) for each in edges]
    return RoundScores(
        edges[0].metric if len(edges) == 1 else mean_metric(world.setting, [each.metric for each in edges]),
        lambda: measure([edges[i].per_sample for i in number]),
        personal,
        losses,
        means[0]
        if len(means) == 1
        else average_metrics(world.setting, dict(enumerate(means)), world.task.metrics),
    )


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
