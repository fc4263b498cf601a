"""Models and uploads as message bodies, and the checks that an upload has to pass before it is used."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfel.deployment.transport.messages import Message
from cfel.errors import InputError, RejectedError
from cfel.learning.aggregation import ScaledUpdate, update_norm
from cfel.learning.compression.compressors import Update
from cfel.learning.compression.packing import pack_update, unpack_update
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.local.estimates import Estimates, check_estimates
from cfel.learning.models.flat import FlatModel


def model_views(model: FlatModel) -> tuple[memoryview, memoryview]:
    """The bytes of both vectors where they are, parameters first."""
    return _view(model.parameters), _view(model.buffers)


def model_bytes(model: FlatModel) -> bytes:
    """Both vectors, parameters first."""
    return b"".join(model_views(model))


def model_size(model: FlatModel) -> int:
    """How many bytes `model_bytes` gives."""
    return 4 * (model.parameters.numel() + model.buffers.numel())


def model_from(body: bytes | bytearray, like: FlatModel) -> FlatModel:
    """The model that `model_bytes` wrote, of the same shape as `like`.

    Args:
        body: its bytes; if they can be written to, the model takes them over and they must not be used again.
        like: any model of the same shape.

    Raises:
        RejectedError: it has another length.
    """
    split, expected = 4 * like.parameters.numel(), model_size(like)
    if len(body) != expected:
        raise RejectedError(f"a model of {len(body)} bytes, {expected} expected")
    view = memoryview(body)
    return FlatModel(_vector(view[:split]), _vector(view[split:]))


def most_upload_bytes(start: FlatModel) -> int:
    """No upload is larger: dense values, a bitmap, scales, buffers and some room for headers."""
    return 5 * start.parameters.numel() + 4 * start.buffers.numel() + 4096


def upload(report: DeviceReport, order: DeviceOrder) -> Message:
    """A report for the wire."""
    known = report.estimates
    header = {
        "global_round": order.global_round,
        "edge_round": order.edge_round,
        "sigma2": None if known is None else known.sigma2,
        "g2": None if known is None else known.g2,
        "kept_energy": [] if known is None else list(known.kept_energy),
        "steps": report.steps,
        "loss": report.loss,
        "samples": report.samples,
        "buffers": report.buffers.numel(),
    }
    return Message(header, b"".join((_view(report.buffers), pack_update(report.update))))


def report_from(
    message: Message, order: DeviceOrder, clip_norm: float | None = None, kept_entries: int = 0
) -> DeviceReport:
    """The report in an upload, after every check.

    Args:
        message: what came in.
        order: what its sender was asked; the sender is who the certificate says.
        clip_norm: a longer update is scaled down to this norm.
        kept_entries: at how many shares θ the energy of the largest entries was asked.

    Raises:
        RejectedError: it is of another round, damaged, out of range or not finite.
    """
    asked = (order.global_round, order.edge_round)
    sent = (message.whole("global_round"), message.whole("edge_round"))
    if sent != asked:
        raise RejectedError(f"upload of round {sent}, asked was {asked}")
    split = 4 * order.model.buffers.numel()
    buffers = _finite("buffers", _vector(message.body[:split]), order.model.buffers.numel())
    try:
        update = unpack_update(message.body[split:], order.model.parameters.numel())
    except InputError as error:
        raise RejectedError(str(error)) from error
    for part in ("values", "scales"):
        values: Tensor | None = getattr(update, part, None)
        if values is not None:
            _finite(f"update.{part}", values, values.numel())
    steps = message.whole("steps")
    if steps > order.tau:
        raise RejectedError(f"steps = {steps}: at most {order.tau} were asked")
    samples = message.whole("samples")
    if not samples:
        raise RejectedError("samples = 0: a device holds at least one")
    estimates = estimates_in(message)
    if estimates is not None:
        shares = _shares(message.header.get("kept_energy"), kept_entries)
        estimates = replace(estimates, kept_energy=shares)
    return DeviceReport(
        device=order.device,
        update=update if clip_norm is None else clipped(update, clip_norm),
        buffers=buffers,
        estimates=estimates,
        steps=steps,
        loss=message.number("loss"),
        samples=samples,
    )


def estimates_in(message: Message) -> Estimates | None:
    """σ² and G² of a message: both, or none.

    Raises:
        RejectedError: they are no such numbers.
    """
    if message.header.get("sigma2") is None and message.header.get("g2") is None:
        return None
    try:
        return check_estimates(Estimates(message.number("sigma2"), message.number("g2")))
    except InputError as error:
        raise RejectedError(str(error)) from error


def given_estimates(message: Message) -> Estimates:
    """σ² and G² of a message that is about nothing else.

    Raises:
        RejectedError: they are missing, or no such numbers.
    """
    found = estimates_in(message)
    if found is None:
        raise RejectedError("sigma2 and g2 are missing")
    return found


def clipped(update: Update, clip_norm: float) -> Update:
    """The update itself, or scaled down to a Euclidean norm of `clip_norm` if it is longer."""
    norm = update_norm(update)
    return update if norm <= clip_norm else ScaledUpdate(update, clip_norm / norm)


def _shares(value: Any, entries: int) -> tuple[float, ...]:  # noqa: ANN401 — whatever came in
    if not isinstance(value, list) or not all(_is_share(each) for each in value):
        raise RejectedError(f"kept_energy = {value!r}: must be a list of numbers from 0 to 1")
    if len(value) != entries:
        raise RejectedError(f"kept_energy: {len(value)} numbers, {entries} were asked")
    return tuple(float(share) for share in value)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and 0 <= value <= 1


def _finite(name: str, values: Tensor, count: int) -> Tensor:
    if values.numel() != count:
        raise RejectedError(f"{name}: {values.numel()} numbers, {count} expected")
    if not bool(torch.isfinite(values).all()):
        raise RejectedError(f"{name}: not all of them finite")
    return values


def _view(values: Tensor) -> memoryview:
    return values.numpy().astype("<f4", copy=False).view(np.uint8).data


def _vector(content: bytes | bytearray | memoryview) -> Tensor:
    """The numbers, where they are if they may be written to there, otherwise a copy."""
    try:
        values = np.frombuffer(content, dtype="<f4")
    except ValueError as error:
        raise RejectedError(f"{len(content)} bytes are not a vector of float32") from error
    return torch.from_numpy(values.astype(np.float32, copy=not values.flags.writeable))
