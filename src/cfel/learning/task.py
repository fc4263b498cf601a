"""A task: what is learned. Data, model, loss, metric and augmentation in one frozen value.

The default is classification with cross-entropy and accuracy. For regression, next-character prediction and
the like, a user-defined function ("module:function") builds another `Task`. Loss and metric return one value
*per sample*, and the caller takes the mean, so that batches can be cut, padded and weighted. The training
itself is in `local`, the work of a device in a round in `roles`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.data.augment import Augmentation
from cfel.learning.data.dataset import DataSet
from cfel.learning.models.builders import ModelBuilder
from cfel.learning.models.flat import FlatModel, FlatModule
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, check_result, resolve
from cfel.seeding import make_key

_GLOBAL_GENERATOR = Lock()

PerSample: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) of a batch → one float per sample."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The usual loss for classification, per sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the highest score is that of the target, else 0."""
    return (outputs.argmax(1) == targets).to(torch.float32)


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned.

    Attributes:
        data: training and test samples.
        model: builds the module from (input shape, classes).
        loss: per sample, differentiable.
        metric: per sample; reports call its mean accuracy, so larger must be better.
        augment: changes a training batch, or None.
    """

    data: DataSet
    model: ModelBuilder
    loss: PerSample = cross_entropy
    metric: PerSample = accuracy
    augment: Augmentation | None = None

    def build(self, device: torch.device | str = "cpu") -> FlatModule:
        """Builds a module of this task with unspecified values; load a model before use."""
        return FlatModule(_build_module(self.model, self.data.input_shape, self.data.classes, 0), device)


def initial_model(task: Task, seed: int) -> FlatModel:
    """The model every edge server starts from; a function of the task and the seed alone."""
    stream = make_key(seed, "initial model")
    return FlatModule(_build_module(task.model, task.data.input_shape, task.data.classes, stream)).read()


def count_parameters(model: ModelBuilder, input_shape: tuple[int, ...], classes: int) -> int:
    """Builds the model and counts its parameters; no data is needed."""
    return sum(values.numel() for values in _build_module(model, input_shape, classes, 0).parameters())


def load_custom_task(name: str, path: Path | None = None, code: CodePolicy = BUILT_IN_ONLY) -> Task:
    """A task from outside: an entry point `cfel.task` or "module:function", called with the data's path."""
    task: Task = resolve("task", name, {}, ("path",), code=code)(path)
    check_result(f"task {name!r}", task, Task)
    check_task(f"task {name!r}", task)
    return task


def check_task(what: str, task: Task) -> None:
    """Runs two samples through model, loss and metric, to find parts that do not fit before training.

    Raises:
        InputError: a part fails, or loss or metric do not return one number per sample.
    """
    # Evaluation mode: two samples are too few for batch-norm statistics.
    module, data = task.build().module.eval(), task.data
    inputs, targets = data.scale(data.train_inputs[:2]), data.train_targets[:2]
    part = "model"
    try:
        with torch.no_grad():
            outputs = module(inputs)
            for part, function in (("loss", task.loss), ("metric", task.metric)):
                _check_per_sample(f"{what}: {part}", function(outputs, targets), len(targets))
    except (RuntimeError, TypeError, IndexError, AttributeError) as error:
        shape = tuple(inputs.shape)
        raise InputError(f"{what}: its {part} fails on a batch of shape {shape}: {error}") from error


def _check_per_sample(what: str, values: object, samples: int) -> None:
    if not isinstance(values, Tensor) or tuple(values.shape) != (samples,):
        found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise InputError(f"{what} must return one number per sample, {samples} in all, got {found}")


def _build_module(model: ModelBuilder, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    # Layers draw from torch's global generator: build one module at a time, then restore the generator.
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        module = model(input_shape, classes)
    if not isinstance(module, nn.Module):
        raise InputError(f"model: the builder returned a {type(module).__name__}, not a torch module")
    return module


@dataclass(frozen=True, slots=True)
class DeviceData:
    """The samples of one device: some of a data set's training samples.

    Attributes:
        data: the data set.
        indices: the device's samples, at least one.
    """

    data: DataSet
    indices: np.ndarray[tuple[int], np.dtype[np.int64]]

    def __post_init__(self) -> None:
        if self.indices.ndim != 1 or self.indices.size == 0:
            raise InputError(f"a device needs at least one sample, got indices of shape {self.indices.shape}")

    @property
    def samples(self) -> int:
        """How many samples the device holds."""
        return int(self.indices.size)
