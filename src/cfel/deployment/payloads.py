"""Models, their differences, and uploads as message bodies.

Whether an upload is valid is checked in `edge.checks`.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cfel.deployment.host import Compute
from cfel.deployment.protocol.device_requests import MeasurementReport, Round, UploadRequest
from cfel.deployment.protocol.messages import Body, Bytes, cut
from cfel.errors import InputError, RejectedError
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.differences import Differences, Published, add_difference
from cfel.learning.models.flat import FlatModel
from cfel.learning.packing import pack_update, unpack_update

# Less is hashed faster than a thread is started.
_QUICK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class EncodedModel:
    """A model with its bytes, cut and hashed once however many nodes fetch it."""

    model: FlatModel
    body: Body

    @classmethod
    def encode(cls, model: FlatModel) -> "EncodedModel":
        """Cuts and hashes a model; to be called off the event loop."""
        return cls(model, Body(model.sha256(), tuple(cut(*model_views(model)))))

    @property
    def sha256(self) -> str:
        """The model's name."""
        return self.body.digest.hex()


def _slice_pieces(pieces: Iterable[Bytes], offset: int, most_bytes: int) -> Iterator[memoryview]:
    end = offset + most_bytes
    for piece in pieces:
        if cut_out := memoryview(piece)[max(0, offset) : max(0, end)]:
            yield cut_out
        offset, end = offset - len(piece), end - len(piece)


class EncodedModels:
    """The newest models of an edge server, encoded; one goes to many devices and neighbours.

    Args:
        compute: where they are encoded.
        most: how many. Two are the present model, and the one before the last gossip step, for neighbours
            that ask late.
    """

    def __init__(self, compute: Compute, most: int = 2) -> None:
        self._compute = compute
        self._newest: deque[EncodedModel] = deque(maxlen=most)
        self._busy = asyncio.Lock()

    async def get(self, model: FlatModel) -> EncodedModel:
        """The encoded form of this very model; encodes it when it is new."""
        async with self._busy:
            for known in self._newest:
                if known.model is model:
                    return known
            self._newest.append(await self._compute.run_aside(lambda: EncodedModel.encode(model)))
            return self._newest[-1]

    async def part(self, whole: Body, offset: int, most_bytes: int) -> Body:
        """Some bytes of a model or of a difference, from an offset on."""
        # The usual case: all of it, whose digest is known already.
        if offset == 0 and most_bytes >= len(whole):
            return whole
        pieces = tuple(_slice_pieces(whole.parts, offset, most_bytes))
        if most_bytes < _QUICK_BYTES:
            return Body.hash(*pieces)
        return await self._compute.run_aside(lambda: Body.hash(*pieces))


def model_views(model: FlatModel) -> tuple[memoryview, ...]:
    """The bytes of all vectors where they are, parameters first."""
    return tuple(_view(part) for part in model.parts)


def model_size(model: FlatModel) -> int:
    """How many bytes a model has."""
    return 4 * sum(part.numel() for part in model.parts)


def read_model(content: bytes | bytearray, like: FlatModel) -> FlatModel:
    """The model with these bytes.

    Args:
        content: its bytes; the model keeps a `bytearray`, which must not be used again.
        like: any model of the same shape.

    Raises:
        RejectedError: it has another length.
    """
    expected = model_size(like)
    if len(content) != expected:
        raise RejectedError(f"a model of {len(content)} bytes, {expected} expected")
    view, parts, start = memoryview(content), [], 0
    for part in like.parts:
        parts.append(read_vector(view[start : start + 4 * part.numel()]))
        start += 4 * part.numel()
    return FlatModel(*parts)


def read_vector(content: bytes | bytearray | memoryview) -> Tensor:
    """The float32 numbers in these bytes; copied only if the bytes cannot be written to.

    Raises:
        RejectedError: the length is not that of whole numbers.
    """
    try:
        values = np.frombuffer(content, dtype="<f4")
    except ValueError as error:
        raise RejectedError(f"{len(content)} bytes are not a vector of float32") from error
    return torch.from_numpy(values.astype(np.float32, copy=not values.flags.writeable))


def pack_difference(published: Published) -> bytes:
    """Statistics and memory as they are, then the difference."""
    _, *rest = model_views(published.model)
    return b"".join((*rest, pack_update(published.update)))


def read_difference(content: bytes | bytearray, known: FlatModel) -> FlatModel:
    """The public or issued model that a difference leads to.

    Raises:
        RejectedError: it is no difference of such a model.
    """
    view, rest, start = memoryview(content), [], 0
    for part in (known.buffers, known.memory):
        end = start + 4 * part.numel()
        # A copy: a view would keep the whole content in memory.
        rest.append(read_vector(bytearray(view[start:end])))
        if rest[-1].numel() != part.numel():
            raise RejectedError(f"a difference of {len(content)} bytes is too short")
        start = end
    try:
        update = unpack_update(view[start:], known.parameters.numel())
    except InputError as error:
        raise RejectedError(str(error)) from error
    return add_difference(known, update, FlatModel(known.parameters, *rest))


class Step(NamedTuple):
    """A difference from one issued model, named by its SHA-256, to the next."""

    known: str
    difference: Body


def count_difference_bytes(differences: Differences, like: FlatModel) -> int:
    """How many bytes a difference has, whatever is in it."""
    return len(pack_difference(differences.publish(like, like, 0)))


def most_upload_bytes(start: FlatModel) -> int:
    """No upload is larger: dense values, a bitmap, scales, buffers and some room for headers."""
    return 5 * start.parameters.numel() + 4 * start.buffers.numel() + 4096


def make_upload(
    report: DeviceReport,
    order: DeviceOrder,
    measured: MeasurementReport | None = None,
    unused: Sequence[Round] = (),
) -> UploadRequest:
    """A device's report as the request that carries it."""
    return UploadRequest(
        round=(order.global_round, order.edge_round),
        steps=report.steps,
        loss=report.loss,
        samples=report.samples,
        buffers=report.buffers.numel(),
        content=Body.hash(b"".join((_view(report.buffers), pack_update(report.update)))),
        estimates=report.estimates,
        measured=measured,
        unused=tuple(unused),
    )


def _view(values: Tensor) -> memoryview:
    return values.numpy().astype("<f4", copy=False).view(np.uint8).data
