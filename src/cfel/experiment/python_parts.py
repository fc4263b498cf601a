"""Parts of an experiment given as Python objects: modules, functions, arrays, data sets, schemes.

An object becomes what a name would have led to (a builder of models, a loader of data, …) and gets a name of
its own (`plugins.label_object`), so that an experiment made of objects is like any other from there on.
"""

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from cfel.control import Scheme
from cfel.errors import InputError
from cfel.experiment.sections import MAIN_KEYS, Table
from cfel.learning.data import DataSet
from cfel.learning.data.dataset import make_class_targets
from cfel.learning.task import Task
from cfel.plugins import label_object
from cfel.wording import show

DIGITS = 12
"""Of a digest in a label."""

Part: TypeAlias = object
"""A name, a function or another object that a section can be given as."""


def name_objects(section: str, given: object) -> tuple[Table, dict[str, object]]:
    """A section, given as a table or as the value of its main key, with names in the place of objects.

    Returns the table, and the objects by the names that stand for them.
    """
    table = dict(_to_table(section, given))
    objects: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, os.PathLike):
            table[key] = os.fspath(value)
        elif _is_object(section, key, value):
            part, digest = _convert(section, key, value)
            # The name is of what was given, not of the function that hands it out.
            kind = section if key in (MAIN_KEYS.get(section), "task") else f"{section}.{key}"
            table[key] = label_object(kind, value, digest)
            objects[table[key]] = part
    return table, objects


def _to_table(section: str, given: object) -> Table:
    if isinstance(given, Mapping):
        return given
    if isinstance(given, Task):
        return {"task": given}
    if section not in MAIN_KEYS:
        raise InputError(f"{section} = {show(given)}: must be a table, as in an experiment file")
    return {MAIN_KEYS[section]: given}


def _is_object(section: str, key: str, value: object) -> bool:
    if isinstance(value, str) or value is None:
        return False
    return callable(value) or (is_dataclass(value) and section != "fleet") or key == MAIN_KEYS.get(section)


def _convert(section: str, key: str, value: Any) -> tuple[Callable[..., object], str]:  # noqa: ANN401 — any object
    """The function that a name would have led to, and a digest of content where there is some."""
    if (section, key) == ("model", "name"):
        return _as_builder(value)
    if (section, key) == ("data", "name") and not callable(value):
        data = _as_data_set(value)
        return lambda _path: data, digest_tensors(_list_tensors(data))
    if (section, key) == ("data", "task") and isinstance(value, Task):
        return lambda _path: value, digest_tensors(_list_tensors(value.data))
    if isinstance(value, Scheme):
        return lambda _parameters: value, ""
    if not callable(value):
        raise InputError(f"{section}.{key} = {show(value)}: must be a name or a function")
    return value, ""


def _as_builder(value: object) -> tuple[Callable[..., object], str]:
    """A builder of models: a module is copied for every use, and a function may take no arguments."""
    if isinstance(value, nn.Module):
        return lambda _shape, _classes: deepcopy(value), digest_tensors(value.state_dict())
    if not callable(value):
        raise InputError(f"model.name = {show(value)}: must be a name, a torch module or a function")
    if _takes_nothing(value):
        return lambda _shape, _classes: value(), ""
    return value, ""


def _takes_nothing(function: Callable[..., object]) -> bool:
    """Whether a function must be called without arguments."""
    try:
        return not inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _as_data_set(value: object) -> DataSet:
    """A data set, from one or from (train, test), each a pair of arrays or a torch data set."""
    if isinstance(value, DataSet):
        return value
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InputError(
            f"data.name: is a {type(value).__name__}; must be a name, a DataSet, a function that returns one "
            "or (train, test), each a pair (inputs, targets) or a torch data set"
        )
    if not any(_is_half(half) for half in value):
        raise InputError(
            "data: is one pair of arrays; must be (train, test), each a pair (inputs, labels): "
            "data=((inputs, labels), (test_inputs, test_labels))"
        )
    (inputs, targets), (test_inputs, test_targets) = (
        _stack(part, half) for part, half in zip(("train", "test"), value, strict=True)
    )
    classes = 1 + max(int(targets.max()), int(test_targets.max()))
    return DataSet(
        "arrays",
        inputs,
        make_class_targets(targets, classes, "data.name: train targets"),
        test_inputs,
        make_class_targets(test_targets, classes, "data.name: test targets"),
        classes,
    )


def _is_half(half: object) -> bool:
    """Whether something can be the training or the test samples, and is not just an array."""
    return isinstance(half, tuple | list) or not hasattr(half, "shape")


def _stack(part: str, half: Any) -> tuple[Tensor, np.ndarray[Any, Any]]:  # noqa: ANN401 — arrays of any library
    """Inputs and class labels of one half, whichever form it has."""
    if not (isinstance(half, tuple | list) and len(half) == 2):
        half = _stack_samples(part, half)
    inputs, targets = half
    values, labels = _to_tensor(part, inputs), np.asarray(targets)
    if len(values) == 0 or labels.shape != (len(values),) or labels.dtype.kind not in "iub":
        raise InputError(
            f"data.name: {part} targets must be {len(values)} whole numbers, got {labels.dtype} of shape "
            f"{labels.shape}{_advise_labels(labels, len(values))}; for anything but classes, give a "
            "`cfel.Task`"
        )
    # Models are float32 throughout; bytes are scaled batch by batch.
    return values.float() if values.is_floating_point() else values, labels


def _to_tensor(part: str, inputs: Any) -> Tensor:  # noqa: ANN401 — arrays and frames of any library
    """Inputs as a tensor; a frame of pandas is an array of numbers."""
    if isinstance(inputs, Tensor):
        return inputs
    try:
        return torch.as_tensor(np.asarray(inputs))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"data.name: {part} inputs must be numbers, and all samples of one shape: {error}"
        ) from error


def _advise_labels(labels: np.ndarray[Any, Any], samples: int) -> str:
    """How to make class labels of something else."""
    if labels.size == samples and labels.ndim > 1:
        return "; flatten them with .ravel()"
    if labels.dtype.kind in "OUS":
        return "; number the classes, as np.unique(labels, return_inverse=True)[1] does"
    return "; convert them with .astype(int)" if labels.dtype.kind == "f" else ""


def _stack_samples(part: str, samples: Any) -> tuple[Tensor, list[int]]:  # noqa: ANN401 — a torch data set
    """All samples of a torch data set, as one tensor and its labels."""
    try:
        pairs: Sequence[tuple[Any, Any]] = [samples[index] for index in range(len(samples))]
        return torch.stack([torch.as_tensor(each) for each, _ in pairs]), [int(label) for _, label in pairs]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"data.name: {part}: a {type(samples).__name__} whose samples are not pairs of a tensor and a "
            f"label, all of one shape: {error}"
        ) from error


def _list_tensors(data: DataSet) -> dict[str, Tensor]:
    parts = ("train_inputs", "train_targets", "test_inputs", "test_targets")
    return {part: getattr(data, part) for part in parts}


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The first digits of the SHA-256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        # Counters of batch norm have no dimension, and cannot be viewed as bytes.
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:DIGITS]
