"""The checks that a device's upload has to pass before its edge server uses it.

Form and ranges are checked while decoding (`protocol.device_requests`), the caller by its certificate. Here
an upload is compared with the order it answers, and its update is unpacked and looked at.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cfel.deployment.payloads import read_vector
from cfel.deployment.plausible_models import check_update
from cfel.deployment.protocol.device_requests import UploadRequest
from cfel.errors import InputError, RejectedError
from cfel.learning.compressors import Update
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.edge import ScaledUpdate, update_norm
from cfel.learning.local.estimates import Estimates, check_loss
from cfel.learning.packing import unpack_update


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
    norm = update_norm(update)
    return update if norm <= clip_norm else ScaledUpdate(update, clip_norm / norm)


def _check_shares(estimates: Estimates, entries: int) -> None:
    shares = estimates.kept_energy
    if not all(0 <= share <= 1 for share in shares):
        raise RejectedError(f"kept_energy = {shares!r}: must be a list of numbers from 0 to 1")
    if len(shares) != entries:
        raise RejectedError(f"kept_energy: {len(shares)} numbers, {entries} were asked")
