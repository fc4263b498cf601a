"""Models and uploads as message bodies. Whether an upload is valid is checked in `edge.checks`."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cfel.deployment.host import Compute
from cfel.deployment.protocol.device_requests import MeasurementReport, Round, UploadRequest
from cfel.deployment.protocol.messages import Body, Bytes, cut
from cfel.errors import RejectedError
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.models.flat import FlatModel
from cfel.learning.packing import pack_update

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
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        # Two: the present model, and the one before the last gossip step, for neighbours that ask late.
        self._newest: deque[EncodedModel] = deque(maxlen=2)
        self._busy = asyncio.Lock()

    async def get(self, model: FlatModel) -> EncodedModel:
        """The encoded form of this very model; encodes it when it is new."""
        async with self._busy:
            for known in self._newest:
                if known.model is model:
                    return known
            self._newest.append(await self._compute.run_aside(lambda: EncodedModel.encode(model)))
            return self._newest[-1]

    async def part(self, encoded: EncodedModel, offset: int, most_bytes: int) -> Body:
        """Some bytes of a model, from an offset on."""
        # The usual case: the whole model, whose digest is known already.
        if offset == 0 and most_bytes >= len(encoded.body):
            return encoded.body
        pieces = tuple(_slice_pieces(encoded.body.parts, offset, most_bytes))
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
