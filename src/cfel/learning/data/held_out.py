"""Holds out a share of the training samples, to choose learning rates without the test set.

Learning rates and the like must not be chosen by test accuracy. So a share of every device's samples is not
trained on and replaces the test set. It is spread evenly over the device's classes and drawn with the seed.
The real test samples are not used at all.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from cfel.arrays import IntArray
from cfel.errors import InputError
from cfel.learning.data.dataset import DataSet
from cfel.seeding import make_generator


def hold_out(
    data: DataSet, shares: Sequence[IntArray], share: float, seed: int
) -> tuple[DataSet, list[IntArray]]:
    """Replaces the test set by held-out training samples.

    Args:
        data: the data set.
        shares: training samples of each device.
        share: of each device's samples to hold out, in (0, 1); rounded to whole samples, and a device keeps
            at least one.
        seed: the experiment's.

    Returns:
        The data set with the new test set, and the training samples that each device keeps.

    Raises:
        InputError: no device has a sample to spare.
    """
    # A stream of its own, so that holding out changes no other draw of the run.
    draw = make_generator(seed, "held out")
    labels = _class_labels(data)
    taken = [_draw_evenly(indices, labels, share, draw) for indices in shares]
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


def _draw_evenly(own: IntArray, labels: IntArray, share: float, draw: np.random.Generator) -> IntArray:
    """Draws every n-th of a device's samples, sorted by class and shuffled within each class."""
    shuffled = draw.permutation(own)
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    # A device must keep at least one sample to train on.
    count = min(round(share * own.size), own.size - 1)
    places = ((np.arange(count) + draw.random()) * own.size / max(count, 1)).astype(np.int64)
    return np.asarray(ordered[places])


def _class_labels(data: DataSet) -> IntArray:
    """Class labels, or zeros where targets are not classes."""
    targets = data.train_targets
    if targets.dim() != 1 or targets.is_floating_point():
        return np.zeros(len(targets), dtype=np.int64)
    return np.asarray(targets.numpy(), dtype=np.int64)
