"""Whether data, labels and scores fit each other: what is checked once, before the first round.

Torch would find the same mistakes in the middle of a run, and would not name the data.
"""

import torch
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.data.dataset import DataSet

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
            raise InputError(
                f"{what}: {part} targets are {_name_type(labels)}; class labels must be whole numbers of "
                "type int64: convert them with .long(). For anything but classes, define a `cfel.Task`"
            )
        numbers = labels.long()
        row = _find_row((numbers >= 0) & (numbers < data.classes) | (numbers == IGNORED))
        if row is not None:
            raise InputError(
                f"{what}: {part} targets: row {row} holds label {_show_row(labels[row])}; with "
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


def _show_row(labels: Tensor) -> str:
    return str(labels.item()) if labels.dim() == 0 else str(labels.tolist())


def _name_type(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")
