"""A data set in memory, frozen: inputs and targets for training and testing, and how to scale them.

It does not load files (the loaders beside it do) and does not say which device holds which samples
(`partition` does).
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cfel.arrays import BoolArray, IntArray
from cfel.errors import InputError
from cfel.seeding import make_generator


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Per-channel mean and standard deviation of inputs after scaling bytes to [0, 1]."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation) or not self.mean:
            raise InputError(f"normalisation: {len(self.mean)} means and {len(self.deviation)} deviations")
        if min(self.deviation) <= 0:
            raise InputError(f"normalisation.deviation: must be positive, got {self.deviation}")


def scale_inputs(inputs: Tensor, normalisation: Normalisation | None) -> Tensor:
    """Scales a batch for a model: bytes become normalised float32, other dtypes stay."""
    if inputs.dtype != torch.uint8:
        return inputs
    if normalisation is None:
        return inputs.to(torch.float32).mul_(1 / 255)
    # (x/255 − mean)/deviation as one multiplication and one addition.
    scale = torch.tensor(normalisation.deviation, device=inputs.device).mul_(255).reciprocal_()
    shift = torch.tensor(normalisation.mean, device=inputs.device).mul_(scale).mul_(-255)
    trailing = (1,) * (inputs.dim() - 2)
    return inputs.to(torch.float32).mul_(scale.view(-1, *trailing)).add_(shift.view(-1, *trailing))


@dataclass(frozen=True, slots=True)
class DataSet:
    """Everything a task learns from."""

    name: str  # for messages
    # Samples × input shape; uint8 images are scaled to [0, 1] and normalised batch by batch, other dtypes
    # reach the model unchanged.
    train_inputs: Tensor
    train_targets: Tensor  # one target (or row of targets) per sample
    test_inputs: Tensor  # like `train_inputs`
    test_targets: Tensor  # like `train_targets`
    classes: int  # number of classes, or the model's number of outputs where there are none
    normalisation: Normalisation | None = None  # for uint8 images; None means bytes / 255
    train_writers: IntArray | None = None  # who wrote each training sample, or None if unknown
    test_writers: IntArray | None = None  # likewise for the test samples

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            inputs, targets = self._check_tensor(f"{part}_inputs"), self._check_tensor(f"{part}_targets")
            writers = getattr(self, f"{part}_writers")
            if len(inputs) == 0 or len(inputs) != len(targets):
                raise InputError(f"{self.name}: {len(inputs)} {part} inputs and {len(targets)} targets")
            if writers is not None and len(writers) != len(inputs):
                raise InputError(f"{self.name}: {len(inputs)} {part} inputs and {len(writers)} writers")
        if self.classes < 1:
            raise InputError(f"{self.name}: classes must be at least 1, got {self.classes}")
        if self.train_inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise InputError(
                f"{self.name}: train inputs of shape {tuple(self.train_inputs.shape[1:])}, "
                f"test inputs of shape {tuple(self.test_inputs.shape[1:])}"
            )

    def _check_tensor(self, part: str) -> Tensor:
        found = getattr(self, part)
        if not isinstance(found, Tensor):
            raise InputError(
                f"{self.name}: {part} is a {type(found).__name__}; must be a torch tensor, which "
                "torch.from_numpy makes of an array of numbers"
            )
        return found

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train_inputs.shape[1:])

    def scale(self, inputs: Tensor) -> Tensor:
        """Scales a batch for the model: bytes become normalised float32, other dtypes stay."""
        return scale_inputs(inputs, self.normalisation)

    def select_writers(self, writers: IntArray, *, of_tests: bool = True) -> "DataSet":
        """Selects the samples of the given writers, for training and, with `of_tests`, for testing."""
        if self.train_writers is None or self.test_writers is None:
            raise InputError(f"{self.name}: it names no writers")
        train = np.flatnonzero(np.isin(self.train_writers, writers))
        chosen = replace(
            self,
            train_inputs=self.train_inputs[torch.from_numpy(train)],
            train_targets=self.train_targets[torch.from_numpy(train)],
            train_writers=self.train_writers[train],
        )
        if not of_tests:
            return chosen
        test = np.flatnonzero(np.isin(self.test_writers, writers))
        return replace(
            chosen,
            test_inputs=self.test_inputs[torch.from_numpy(test)],
            test_targets=self.test_targets[torch.from_numpy(test)],
            test_writers=self.test_writers[test],
        )


def choose_test_tenth(groups: IntArray, *, last: bool = False) -> BoolArray:
    """Marks a tenth (rounded up) of each group's samples for testing; none of a group with one sample.

    The choice does not depend on the experiment's seed: everyone tests on the same samples, random ones or,
    for samples that overlap their neighbours, the last ones.
    """
    # The stream's name is part of the result: another name would choose other samples.
    order = make_generator(0, "femnist split").permutation(len(groups))
    order = np.arange(len(groups))[::-1] if last else order
    order = order[np.argsort(groups[order], kind="stable")]
    counts = np.bincount(groups)
    rank = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = np.where(counts > 1, np.ceil(counts * 0.1), 0).astype(np.int64)
    test = np.zeros(len(groups), dtype=np.bool_)
    test[order] = rank < np.repeat(kept, counts)
    return test


def make_class_targets(labels: NDArray[np.integer] | Tensor, classes: int, where: str) -> Tensor:
    """Converts labels, each in 0 … classes − 1, to an int64 tensor; an error names `where` and the row."""
    values = np.asarray(labels)
    bad = np.flatnonzero((values < 0) | (values >= classes))
    if bad.size:
        raise InputError(f"{where}: row {bad[0]} holds label {values[bad[0]]}, allowed are 0 … {classes - 1}")
    return torch.from_numpy(values.astype(np.int64))
