"""Loads a device's samples from a Python function that its configuration names; they stay on the device.

    def samples(path: Path | None) -> tuple[Tensor, Tensor]:      # inputs, targets; one entry per sample

They must fit the experiment's data: same shape, same classes, images scaled the same way.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.task import DeviceData, check_batches, check_task
from cfel.plugins import ANY_CODE, resolve
from cfel.world import World


def load_samples(name: str, path: Path | None, world: World) -> DeviceData:
    """Returns all samples of the function as the data of one device.

    Args:
        name: "module:function", or an entry point of the group `cfel.samples`.
        path: its argument.
        world: what is run; its model must accept the samples.

    Raises:
        InputError: there is no such path or function, it fails, or its samples do not fit the experiment.
    """
    what = f"data = {name!r}"
    found = _call(what, resolve("samples", name, {}, ("path",), code=ANY_CODE), path)
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(x, Tensor) for x in found):
        raise InputError(f"{what}: must return two tensors, inputs and targets, not {type(found).__name__}")
    inputs, targets = found
    like = world.task.data
    _check_part(f"{what}: inputs", inputs, like.train_inputs)
    _check_part(f"{what}: targets", targets, like.train_targets)
    _check_classes(what, targets, like.classes)
    # The test set stays the experiment's, so that accuracy means the same for every device.
    data = replace(like, name=name, train_inputs=inputs, train_targets=targets, train_writers=None)
    task = replace(world.task, data=data)
    check_task(what, task)
    check_batches(task.build(), world.training.batch, [len(inputs)])
    return DeviceData(data, np.arange(len(inputs)))


def _call(what: str, function: Callable[[Path | None], object], path: Path | None) -> object:
    if path is not None and not path.exists():
        raise InputError(f"data_path = {str(path)!r}: does not exist")
    try:
        return function(path)
    except (OSError, ValueError, KeyError, EOFError) as error:
        called_with = "without a data_path" if path is None else f"with data_path = {str(path)!r}"
        raise InputError(f"{what} failed {called_with}: {type(error).__name__}: {error}") from error


def _check_part(what: str, given: Tensor, like: Tensor) -> None:
    wanted, shape = tuple(like.shape[1:]), tuple(given.shape[1:])
    if given.ndim == 0 or shape != wanted or given.dtype != like.dtype:
        raise InputError(
            f"{what}: samples of shape {shape} and type {given.dtype}, the experiment's have shape {wanted} "
            f"and type {like.dtype}"
        )


def _check_classes(what: str, targets: Tensor, classes: int) -> None:
    if targets.is_floating_point() or not len(targets):
        return
    low, high = int(torch.min(targets)), int(torch.max(targets))
    if low < 0 or high >= classes:
        raise InputError(f"{what}: targets from {low} to {high}, the experiment's are 0 to {classes - 1}")
