"""A share of the training samples held out, to choose by instead of by the test set.

Learning rates and the like must not be chosen by test accuracy. So a share of every device's samples leaves
its training and takes the test set's place: spread evenly over the device's classes, drawn by the seed. The
real test samples are then not looked at by anybody.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from cfel.arrays import IntArray
from cfel.errors import InputError
from cfel.learning.data.dataset import DataSet
from cfel.seeding import generator


def hold_out(
    data: DataSet, shares: Sequence[IntArray], share: float, seed: int
) -> tuple[DataSet, list[IntArray]]:
    """The data set with held-out samples for its test set, and what each device keeps.

    Args:
        data: the data set.
        shares: training samples of each device.
        share: of each device's samples to hold out, in (0, 1); rounded to whole samples, and a device keeps
            at least one.
        seed: the experiment's.

    Raises:
        InputError: no device has a sample to spare.
    """
    draw = generator(seed, "held out")
    labels = _labels(data)
    taken = [_evenly(indices, labels, share, draw) for indices in shares]
    held = np.sort(np.concatenate(taken))
    if held.size == 0:
        raise InputError(f"data.held_out = {share}: no device has enough samples to spare one")
    places = torch.from_numpy(held)
    tested = replace(
        data,
        test_inputs=data.train_inputs[places],
        test_targets=data.train_targets[places],
        test_writers=None if data.train_writers is None else data.train_writers[held],
    )
    return tested, [np.setdiff1d(own, out) for own, out in zip(shares, taken, strict=True)]


def _evenly(own: IntArray, labels: IntArray, share: float, draw: np.random.Generator) -> IntArray:
    """Every so-manieth of a device's samples, sorted by class and shuffled within."""
    shuffled = draw.permutation(own)
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    count = min(round(share * own.size), own.size - 1)
    places = ((np.arange(count) + draw.random()) * own.size / max(count, 1)).astype(np.int64)
    return np.asarray(ordered[places])


def _labels(data: DataSet) -> IntArray:
    """Class labels, or zeros where targets are no classes."""
    targets = data.train_targets
    if targets.dim() != 1 or targets.is_floating_point():
        return np.zeros(len(targets), dtype=np.int64)
    return np.asarray(targets.numpy(), dtype=np.int64)
