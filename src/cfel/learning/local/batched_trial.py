"""Tries whether a model can be trained side by side, before a run relies on it.

`torch.func.vmap` supports most layers, but not all of them, and some (recurrent ones) would ignore the
parameters they are given. So a trial trains a device for two steps both ways and compares.
"""

import warnings
from dataclasses import replace

import torch

from cfel.errors import CfelError, DivergedError
from cfel.learning.compression.compressors import compressor
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.local.batched import device_updates_batched
from cfel.learning.local.parameters import TrainingParameters
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import device_update
from cfel.learning.task import DeviceData, Task

# Of the length of an update: float32 leaves about 1e-5 after two steps.
_MOST_DIFFERENCE = 0.01


def find_obstacle(
    task: Task, training: TrainingParameters, model: FlatModel, data: DeviceData, device: str = "cpu"
) -> str | None:
    """Why devices cannot be trained side by side, or None if they can.

    Args:
        task: what is learned.
        training: how devices train.
        model: to start from.
        data: the samples of one device.
        device: torch device.
    """
    alike = replace(training, error_feedback=False)
    workspace = Workspace(task, alike, compressor("none"), device)
    if workspace.local.algorithm != "sgd":
        return f"the algorithm {workspace.local.algorithm!r} trains one device at a time"
    if workspace.local.precision != "float32":
        return f"local.precision = {workspace.local.precision!r} is for one device at a time"
    if workspace.flat.buffers.numel():
        return "the batch-norm statistics of the model would change with padded batches"
    if workspace.flat.behaviour.is_random:
        return "the model draws random numbers (dropout)"
    orders = [DeviceOrder(0, 0, 0, number, 1.0, 1.0, 2, model) for number in range(2)]
    try:
        alone = [device_update(order, data, DeviceState(), workspace) for order in orders]
        together = _train_together(orders, data, workspace)
    except DivergedError:
        return None  # the run itself says so, with device and round
    if isinstance(together, str):
        return together
    if any(_differ(one, two) for (one, _), (two, _) in zip(alone, together, strict=True)):
        return "torch.func.vmap computes other gradients for the model"
    return None


def _train_together(
    orders: list[DeviceOrder], data: DeviceData, workspace: Workspace
) -> list[tuple[DeviceReport, DeviceState]] | str:
    """The devices' reports, or why there are none."""
    count = len(orders)
    try:
        with warnings.catch_warnings():
            # Torch warns where it has to compute row by row, which is slower than one device at a time.
            warnings.filterwarnings("error", "There is a performance drop", UserWarning)
            return device_updates_batched(orders, [data] * count, [DeviceState()] * count, workspace)
    except CfelError:
        raise
    except Exception as error:  # noqa: BLE001 — user-defined code in vmap fails in many ways
        return f"torch.func.vmap does not support the model ({_first_sentence(error)})"


def _differ(one: DeviceReport, two: DeviceReport) -> bool:
    first, second = (torch.zeros(report.update.size) for report in (one, two))
    one.update.add_to(first, 1.0)
    two.update.add_to(second, 1.0)
    return float((first - second).norm()) > _MOST_DIFFERENCE * float(first.norm())


def _first_sentence(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
