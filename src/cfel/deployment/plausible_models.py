"""How far an update, or another edge server's model, may be from an edge server's own model.

The bounds are far beyond what training does, so that no honest node ever meets them, and far below where
float32 ends: whatever passes can be added, averaged and trained on without an overflow. They keep absurd
numbers out, not clever ones; against those there are `deployment.clip_norm` and `[aggregation]`.
"""

import math

from torch import Tensor

from cfel.errors import RejectedError
from cfel.learning.compressors import Update
from cfel.learning.edge import norm, update_norm
from cfel.learning.models.flat import FlatModel

MOST_LENGTHS = 100.0
"""The longest update, relative to the model, or to a vector of ones if that is longer."""

MOST_BUFFER_LENGTHS = 1e6
"""The same for batch-norm statistics: they start at 0 and 1, and variances of raw inputs can be large."""


def check_update(update: Update, buffers: Tensor, model: FlatModel, variances: Tensor) -> None:
    """Checks the decoded update and the batch-norm statistics of a device.

    Args:
        update: what the device sent.
        buffers: the same.
        model: what it started from.
        variances: which of the buffers are variances; empty for none.

    Raises:
        RejectedError: they are not finite, or absurdly far from the model, or a variance is negative.
    """
    _check_length("update", update_norm(update), model.parameters, MOST_LENGTHS)
    _check_length("buffers", norm(buffers - model.buffers), model.buffers, MOST_BUFFER_LENGTHS)
    # Its root would make every output NaN, and the mean of a cluster need not be positive either.
    if variances.numel() and bool((buffers[variances] < 0).any()):
        raise RejectedError(f"buffers: a variance of {float(buffers[variances].min()):.3g}")


def check_model(model: FlatModel, own: FlatModel) -> None:
    """Checks the model of another edge server against an edge server's own.

    Raises:
        RejectedError: it is not finite, or absurdly far from the edge server's own.
    """
    difference = model.parameters - own.parameters
    _check_length("parameters", norm(difference), own.parameters, MOST_LENGTHS)
    _check_length("buffers", norm(model.buffers - own.buffers), own.buffers, MOST_BUFFER_LENGTHS)
    _check_length("memory", norm(model.memory - own.memory), own.memory, MOST_LENGTHS)


def _check_length(name: str, length: float, own: Tensor, most_lengths: float) -> None:
    if not math.isfinite(length):
        raise RejectedError(f"{name}: not all of them finite")
    most = most_lengths * max(norm(own), math.sqrt(own.numel()))
    if length > most:
        raise RejectedError(f"{name}: of length {length:.3g}, beyond the bound of {most:.3g}")
