"""Exports the trained model of a run directory to a file that other programs can read."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from cfel.durable import check_directory, translate_parse_errors
from cfel.errors import InputError, RunDirectoryError, StorageError, unknown_name
from cfel.experiment import Experiment, load_directory_experiment
from cfel.learning.device_messages import DeviceState
from cfel.learning.edge_update import EdgeRules, mean_model, read_edge_models
from cfel.learning.local.algorithms import build_algorithm
from cfel.learning.models.files import save_model, save_onnx
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import Task, initial_model
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.runlog import RunDirectory
from cfel.simulation.loop import find_own_model

if TYPE_CHECKING:
    from cfel.deployment.edge.state import EdgeState

FORMATS = (".onnx", ".safetensors")
_MAX_ATTEMPTS = 5
_RETRY_SECONDS = 0.1


def export_model(
    directory: Path,
    to: Path,
    edge: int | None = None,
    code: CodePolicy = BUILT_IN_ONLY,
    device: int | None = None,
) -> int:
    """Writes the model of a run's last checkpoint, or the current model of a deployment.

    Args:
        directory: a run directory, or the directory of a single edge server.
        to: the file to write; its suffix selects the format.
        edge: the edge server whose model to export; None for the consensus model.
        code: whether names in the run's experiment may stand for code from outside the package.
        device: the device whose own model to export; None for no device.

    Returns:
        The global round of the model.

    Raises:
        InputError: the format or the edge server is unknown, or the file cannot be written.
        RunDirectoryError: the directory holds no run, or the run has no checkpoint yet.
    """
    if to.suffix not in FORMATS:
        raise InputError(unknown_name("--to: suffix", to.suffix, FORMATS))
    run = RunDirectory.open(directory)
    experiment = load_directory_experiment(directory, code=code)
    task = experiment.load_task()
    number, model = load_any_model(run, experiment, task, edge, device)
    if to.suffix == ".onnx":
        save_onnx(to, model, task.build(), task.data.input_shape)
    else:
        save_model(to, model, task.build())
    return number


def load_trained_model(
    run: RunDirectory, task: Task, rules: EdgeRules, edge: int | None = None
) -> tuple[int, FlatModel]:
    """The last global round with its consensus model (clusters weighted by size), or with one edge model.

    Where edge servers average their models over rounds, these are the averages.
    """
    sizes = np.bincount(run.fleet().cluster)
    number, found = _load_models(run, len(sizes), rules.add_memory(initial_model(task, 0)))
    models = {i: rules.read_average(model) for i, model in found.items()}
    if edge is None:
        return number, mean_model(sizes, models)
    if edge not in models:
        raise InputError(f"edge = {edge}: the run has edge servers {', '.join(map(str, models))}")
    return number, models[edge]


def load_any_model(
    run: RunDirectory, experiment: Experiment, task: Task, edge: int | None, device: int | None
) -> tuple[int, FlatModel]:
    """The last global round with the consensus model, an edge model, or the model that a device keeps.

    Raises:
        InputError: there is no such edge server or device, or devices keep no models.
    """
    if device is None:
        return load_trained_model(run, task, experiment.build_parts().edge_rules, edge)
    cluster, checkpoint = run.fleet().cluster, run.checkpoint()
    if not 0 <= device < len(cluster):
        raise InputError(f"device = {device}: the run has devices 0 to {len(cluster) - 1}")
    if checkpoint is None:
        raise RunDirectoryError(f"{run.path}: no checkpoint; in a deployment, only devices have their models")
    name = build_algorithm(experiment.local, experiment.code).personal_model
    if name is None and not task.personal:
        raise InputError("device: devices keep no models of their own in this run; see model.personal")
    number, model = load_trained_model(run, task, experiment.build_parts().edge_rules, cluster[device])
    prefix = f"device/{device}/"
    memory = {
        key.removeprefix(prefix): torch.from_numpy(np.array(each))
        for key, each in checkpoint.tensors.items()
        if key.startswith(prefix)
    }
    return number, find_own_model(model, DeviceState(memory), name)


def load_module(
    run: RunDirectory, experiment: Experiment, edge: int | None = None, device: int | None = None
) -> nn.Module:
    """A trained model as a module of its task, in evaluation mode.

    Raises:
        InputError: a part of the model is personal, and no device is named.
    """
    task = experiment.load_task()
    flat = task.build()
    if task.personal and device is None:
        raise InputError("a part of the model is personal (model.personal): name the device, as in device=0")
    flat.load(load_any_model(run, experiment, task, edge, device)[1])
    return flat.module.eval()


def _load_models(run: RunDirectory, clusters: int, like: FlatModel) -> tuple[int, dict[int, FlatModel]]:
    """The round and its edge models: from a checkpoint, or else from the edge servers' state files."""
    checkpoint, directory = run.checkpoint(), run.path
    if checkpoint is not None:
        with translate_parse_errors(directory / "checkpoint"):
            return checkpoint.round, dict(enumerate(read_edge_models(checkpoint, clusters, like)))
    # A deployment's state; reading it needs a package that a simulation does not.
    from cfel.deployment.edge.state import EdgeDisk, EdgeState

    def load_state(place: Path) -> EdgeState:
        return _load_state(EdgeDisk(place, like).load)

    check_directory(directory / "nodes")
    places = {i: directory / "nodes" / f"edge-{i}" for i in range(clusters)}
    if EdgeDisk.holds_state(directory):
        places = {0: directory}
    found = {i: place for i, place in places.items() if EdgeDisk.holds_state(place)}
    if not found:
        raise RunDirectoryError(f"{directory}: the run has no checkpoint yet, so there is nothing to export")
    for place in found.values():
        check_directory(place)
    states = {i: load_state(place) for i, place in found.items()}
    # Edge servers may be one round apart; name the round that all of them have finished.
    return min(state.position[0] for state in states.values()), {i: each.model for i, each in states.items()}


def _load_state(load: "Callable[[], EdgeState]") -> "EdgeState":
    """The state of an edge server; retries, as a running server may replace a model file while we read."""
    for _ in range(_MAX_ATTEMPTS - 1):
        try:
            return load()
        except StorageError:
            time.sleep(_RETRY_SECONDS)
    return load()
