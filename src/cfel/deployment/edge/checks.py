"""The checks that uploads of devices, and models of other edge servers, pass before an edge server uses them.

Form and ranges are checked while decoding (`protocol.device_requests`), the caller by its certificate. Here
an upload is compared with the order it answers, and its update is unpacked and looked at.

Bounds on lengths are far beyond what training does, so that no honest node ever meets them, and far below
where float32 ends: whatever passes can be added, averaged and trained on without an overflow. They keep
absurd numbers out, not clever ones; against those there are `deployment.clip_norm` and `[aggregation]`.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cfel.deployment.payloads import read_vector
from cfel.deployment.protocol.device_requests import UploadRequest
from cfel.errors import InputError, RejectedError
from cfel.learning.compressors import Update
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.edge import ScaledUpdate, norm, update_norm
from cfel.learning.local.estimates import Estimates, check_loss
from cfel.learning.models.flat import FlatModel
from cfel.learning.packing import unpack_update

MOST_LENGTHS = 100.0
"""The longest update, relative to the model, or to a vector of ones if that is longer."""

MOST_BUFFER_LENGTHS = 1e6
"""The same for batch-norm statistics: they start at 0 and 1, and variances of raw inputs can be large."""

MOST_VALUE = 1e38
"""The largest parameter: two that are farther apart would have no finite difference."""


@dataclass(frozen=True, slots=True, eq=False)
class UploadLimits:
    """What uploads of an experiment must be like.

    Attributes:
        clip_norm: a longer update is scaled down to this norm.
        kept_entries: at how many shares θ the energy of the largest entries was asked.
        variances: which of the model's statistics are variances; empty for none.
    """

    clip_norm: float | None = None
    kept_entries: int = 0
    variances: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))


NO_LIMITS = UploadLimits()


def verify_upload(
    upload: UploadRequest, order: DeviceOrder, limits: UploadLimits = NO_LIMITS
) -> DeviceReport:
    """Checks an upload and returns the report in it.

    Args:
        upload: what arrived.
        order: what its sender was asked; the sender is known by its certificate.
        limits: those of the experiment.

    Raises:
        RejectedError: it is of another round, damaged or out of range, or its update is not finite once it is
            decoded, or absurdly long.
    """
    asked = (order.global_round, order.edge_round)
    if upload.round != asked:
        raise RejectedError(f"upload of round {upload.round}, asked was {asked}")
    if upload.steps > order.tau:
        raise RejectedError(f"steps = {upload.steps}: at most {order.tau} were asked")
    if upload.estimates is not None:
        _check_shares(upload.estimates, limits.kept_entries)
    expected = order.model.buffers.numel()
    if upload.buffers != expected:
        raise RejectedError(f"buffers = {upload.buffers}: the model has {expected}")
    content, split = memoryview(upload.content.join()), 4 * expected
    # A copy: a view would keep the whole upload in memory until the round ends.
    buffers = read_vector(bytearray(content[:split]))
    if buffers.numel() != expected:
        raise RejectedError(f"buffers: {buffers.numel()} numbers, {expected} expected")
    try:
        check_loss(upload.loss, upload.steps)
        update = unpack_update(content[split:], order.model.parameters.numel())
    except InputError as error:
        raise RejectedError(str(error)) from error
    check_update(update, buffers, order.model, limits.variances)
    return DeviceReport(
        device=order.device,
        update=update if limits.clip_norm is None else clip_update(update, limits.clip_norm),
        buffers=buffers,
        estimates=upload.estimates,
        steps=upload.steps,
        loss=upload.loss,
        samples=upload.samples,
    )


def clip_update(update: Update, clip_norm: float) -> Update:
    """The update itself, or scaled down to a Euclidean norm of `clip_norm` if it is longer."""
    length = update_norm(update)
    return update if length <= clip_norm else ScaledUpdate(update, clip_norm / length)


def _check_shares(estimates: Estimates, entries: int) -> None:
    shares = estimates.kept_energy
    if not all(0 <= share <= 1 for share in shares):
        raise RejectedError(f"kept_energy = {shares!r}: must be a list of numbers from 0 to 1")
    if len(shares) != entries:
        raise RejectedError(f"kept_energy: {len(shares)} numbers, {entries} were asked")


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


def is_usable(model: FlatModel) -> bool:
    """Whether a model is finite, and so is its difference from any other such model.

    Updates that pass, one after the other, reach any number. A device that sent them would stop its edge
    server: it cannot issue a model whose difference from the last one is infinite.
    """
    return model.is_finite() and bool(torch.linalg.vector_norm(model.parameters, torch.inf) <= MOST_VALUE)


def _check_length(name: str, length: float, own: Tensor, most_lengths: float) -> None:
    if not math.isfinite(length):
        raise RejectedError(f"{name}: not all of them finite")
    least = most_lengths * math.sqrt(own.numel())
    # The model itself is measured where it matters only: it is ten times as long as what most devices send.
    if length > least and length > (most := max(least, most_lengths * norm(own))):
        raise RejectedError(f"{name}: of length {length:.3g}, beyond the bound of {most:.3g}")
