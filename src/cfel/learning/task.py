"""A task: what is learned. Data, model, loss, metric and augmentation in one frozen value.

The default is classification with cross-entropy and accuracy. For regression, next-character prediction and
the like, a user-defined function ("module:function") builds another `Task`. Loss and metric return one value
*per sample*, and the caller takes the mean, so that batches can be cut, padded and weighted. The training
itself is in `local`, the work of a device in a round in `device`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cfel.errors import CfelError, InputError
from cfel.learning.data.dataset import DataSet
from cfel.learning.data.images import Augmentation
from cfel.learning.models.builders import ModelBuilder
from cfel.learning.models.flat import FlatModel, FlatModule, SharedPart, observe_behaviour
from cfel.learning.torch_state import seed_generator
from cfel.metric import Metric, describe_metric
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, call_part, check_result, resolve
from cfel.seeding import make_key

LABEL_TYPES = (torch.int64, torch.uint8)
"""What torch's cross-entropy takes as class labels."""

IGNORED = -100
"""The label that torch's cross-entropy leaves out, as in padded sequences."""


def check_labels(what: str, data: DataSet) -> None:
    """Raises an `InputError` unless the targets can be class labels: whole numbers from 0 to classes − 1."""
    for part in ("train", "test"):
        labels: Tensor = getattr(data, f"{part}_targets")
        if labels.is_floating_point() and labels.dim() > 1:
            # Probabilities of classes; the loss takes them.
            continue
        if labels.dtype not in LABEL_TYPES:
            given = str(labels.dtype).removeprefix("torch.")
            raise InputError(
                f"{what}: {part} targets are {given}; class labels must be whole numbers of "
                "type int64: convert them with .long(). For anything but classes, define a `cfel.Task`"
            )
        numbers = labels.long()
        row = _find_row((numbers >= 0) & (numbers < data.classes) | (numbers == IGNORED))
        if row is not None:
            raise InputError(
                f"{what}: {part} targets: row {row} holds label {labels[row].tolist()}; with "
                f"{data.classes} classes, labels are 0 … {data.classes - 1}"
            )


def check_scores(what: str, outputs: object, targets: Tensor, classes: int) -> None:
    """Raises an `InputError` unless the model gives one score per class."""
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"{what}: its model returns a {type(outputs).__name__}; must be one tensor of {classes} scores "
            "per sample. For anything else, define a `cfel.Task` with its own loss"
        )
    shape = tuple(outputs.shape[1:])
    if (targets.dim() == 1 and len(shape) != 1) or not shape or shape[0] < classes:
        raise InputError(
            f"{what}: its model returns outputs of shape {shape} per sample; must be ({classes},), one score "
            f"for each of the labels 0 … {classes - 1}"
        )


def check_finite(what: str, data: DataSet, module: nn.Module) -> None:
    """Raises an `InputError` for inputs that are not finite, unless the module, in evaluation mode, copes."""
    for part in ("train", "test"):
        inputs: Tensor = getattr(data, f"{part}_inputs")
        row = _find_row(torch.isfinite(inputs)) if inputs.is_floating_point() else None
        if row is None:
            continue
        with torch.no_grad():
            outputs = module(inputs[[row, row]])
        if isinstance(outputs, Tensor) and not torch.isfinite(outputs).all():
            bad = inputs[row][~torch.isfinite(inputs[row])][0].item()
            raise InputError(
                f"{what}: {part} inputs: row {row} holds {bad}, and so do the model's outputs; leave such "
                "rows out or fill in numbers"
            )


def _find_row(good: Tensor) -> int | None:
    """The first row in which something is not good."""
    rows = good.flatten(1).all(1) if good.dim() > 1 else good
    return None if bool(rows.all()) else int(rows.to(torch.uint8).argmin())


PerSample: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) of a batch → one float per sample."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The usual loss for classification, per sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the highest score is that of the target, else 0."""
    return (outputs.argmax(1) == targets).to(torch.float32)


ACCURACY_METRIC = Metric(function=accuracy)
"""Accuracy as the metric of a task."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned.

    Attributes:
        data: training and test samples.
        model: builds the module from (input shape, classes).
        loss: per sample, differentiable.
        metric: per sample; a `Metric` says its name, its unit and which direction is better. Of a plain
            function larger is better, and it has no unit.
        augment: changes a training batch, or None.
        seed: of the module's first values; an experiment sets its own seed.
        metrics: further metrics by their own names, per sample, likewise; they are only recorded.
        personal: patterns of the names of tensors that stay on devices; an experiment may set its own.
    """

    data: DataSet
    model: ModelBuilder
    loss: PerSample = cross_entropy
    metric: PerSample = ACCURACY_METRIC
    augment: Augmentation | None = None
    seed: int = 0
    personal: tuple[str, ...] = ()
    metrics: Mapping[str, PerSample] = field(default_factory=dict)

    @property
    def described_metrics(self) -> tuple[Metric, ...]:
        """Name, unit and direction of the metric, then of the further ones under their own names."""
        own = (replace(describe_metric(each), name=name) for name, each in self.metrics.items())
        return tuple(replace(each, function=None) for each in (describe_metric(self.metric), *own))

    def build(self, device: torch.device | str = "cpu") -> FlatModule:
        """Builds a module of this task with its first values; a function of the task alone."""
        module = _build_module(self.model, self.data.input_shape, self.data.classes, self.seed)
        behaviour = observe_behaviour(module, self.load_two_samples()[0])
        return FlatModule(module, device, behaviour, self.personal)

    def load_two_samples(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the first and the last training sample, to try parts on."""
        places = torch.tensor([0, len(self.data.train_targets) - 1])
        inputs = self.data.train_inputs.index_select(0, places)
        return self.data.scale(inputs), self.data.train_targets.index_select(0, places)


def initial_model(task: Task, seed: int) -> FlatModel:
    """The model every edge server starts from; a function of the task and the seed alone."""
    return replace(task, seed=seed).build().read()


def measure_model(
    model: ModelBuilder, input_shape: tuple[int, ...], classes: int, personal: Sequence[str] = ()
) -> SharedPart:
    """Builds the model and counts what devices share of it; no data is needed."""
    return FlatModule(_build_module(model, input_shape, classes, 0), personal=personal).shared


def load_custom_task(name: str, path: Path | None = None, code: CodePolicy = BUILT_IN_ONLY) -> Task:
    """A task from outside: an entry point `cfel.task` or "module:function", called with the data's path."""
    place = "without data.path" if path is None else f"with data.path = {str(path)!r}"
    builder = resolve("task", name, {}, ("path",), code=code)
    task: Task = call_part(f"task {name!r}, called {place},", builder, path)
    check_result(f"task {name!r}", task, Task)
    check_task(f"task {name!r}", task)
    return task


def check_task(what: str, task: Task) -> None:
    """Runs two samples through model, loss and metric, to find parts that do not fit before training."""
    if task.loss is cross_entropy:
        check_labels(what, task.data)
    inputs, targets = task.load_two_samples()
    part = "model"
    try:
        flat = task.build()
        with seed_generator(0):
            outputs = flat.module.train()(inputs)
            if task.loss is cross_entropy:
                check_scores(what, outputs, targets, task.data.classes)
            own = [(f"metric {name!r}", function) for name, function in task.metrics.items()]
            for part, function in (("loss", task.loss), ("metric", task.metric), *own):
                found = function(outputs, targets)
                _check_per_sample(f"{what}: {part}", found, len(targets))
                if part == "loss":
                    _check_gradient(what, found, flat)
            part = "model"
            flat.module.eval()(inputs)
            check_finite(what, task.data, flat.module)
    except CfelError:
        raise
    except Exception as error:
        shape = tuple(inputs.shape)
        hint = "; the inputs are float64: convert them with .float()" if inputs.dtype == torch.float64 else ""
        raise InputError(f"{what}: its {part} fails on a batch of shape {shape}: {error}{hint}") from error


def _check_gradient(what: str, losses: Tensor, flat: FlatModule) -> None:
    if not losses.requires_grad:
        raise InputError(
            f"{what}: its loss does not depend on a trained parameter; train one that the outputs depend on, "
            "and compute them without detach() and no_grad()"
        )
    torch.autograd.grad(losses.mean(), flat.leaves, materialize_grads=True)


def check_batches(flat: FlatModule, batch: int, samples: Sequence[int]) -> None:
    """Checks that the model can be trained on every device's batches."""
    least = flat.behaviour.least_batch
    if min(batch, *samples) >= least:
        return
    whose = "data.batch = 1" if batch < least else f"device {int(np.argmin(samples))} has one sample"
    raise InputError(
        f"model: it cannot be trained on one sample (batch norm), but {whose}; give every device at least "
        "two, or use group norm or layer norm"
    )


def _check_per_sample(what: str, values: object, samples: int) -> None:
    if not isinstance(values, Tensor) or tuple(values.shape) != (samples,):
        found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise InputError(f"{what} must return one number per sample, {samples} in all, got {found}")


def _build_module(model: ModelBuilder, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    with seed_generator(make_key(seed, "initial model")):
        module = model(input_shape, classes)
    if not isinstance(module, nn.Module):
        raise InputError(f"model: the builder returned a {type(module).__name__}, not a torch module")
    if any(isinstance(each, nn.UninitializedParameter) for each in module.parameters()):
        raise InputError(
            "model: a lazy layer has no shape yet; call the module on one batch where it is built"
        )
    return module


@dataclass(frozen=True, slots=True)
class DeviceData:
    """The samples of one device: some of a data set's training samples."""

    data: DataSet
    indices: np.ndarray[tuple[int], np.dtype[np.int64]]

    def __post_init__(self) -> None:
        if self.indices.ndim != 1 or self.indices.size == 0:
            raise InputError(f"a device needs at least one sample, got indices of shape {self.indices.shape}")

    @property
    def samples(self) -> int:
        return int(self.indices.size)
