"""Messages changed at random: each is decoded, or rejected with a reason; nothing else happens."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np
import torch

from cfel.deployment.edge.checks import UploadLimits, verify_upload
from cfel.deployment.payloads import make_upload, read_model
from cfel.deployment.protocol.calls import answer_type
from cfel.deployment.protocol.device_requests import UploadRequest
from cfel.deployment.protocol.edge_requests import METHODS
from cfel.deployment.protocol.messages import Body, Message, decode, encode, join_message, split_message
from cfel.errors import RejectedError
from cfel.learning.compressors import BUILTIN, Compressor, TopKInBits, compressor
from cfel.learning.device_messages import DeviceOrder, DeviceReport, Order
from cfel.learning.models.flat import FlatModel
from cfel.system.value_bits import ValueBits
from tests.fuzz.mutations import change_bytes, change_document
from tests.fuzz.values import make_value

MAX_BODY = 1 << 16
_SIZE = 300
_IN_BITS = tuple(TopKInBits(ValueBits((bits,))) for bits in (4, 8, 16))
_COMPRESSORS: tuple[Compressor, ...] = (*(compressor(kind) for kind in sorted(BUILTIN)), *_IN_BITS)


@cache
def kinds() -> tuple[Any, ...]:
    """Every request and every answer."""
    return tuple(kind for method in METHODS for kind in (method, answer_type(method)))


def try_case(draw: random.Random) -> None:
    """Makes one case and tries it; raises what is not caught."""
    function: Callable[[random.Random], None] = draw.choice(
        (_try_value, _try_value, _try_pieces, _try_upload)
    )
    try:
        function(draw)
    except RejectedError as error:
        if len(str(error)) > 2000:
            raise AssertionError(f"a reason of {len(str(error))} characters") from error


def _try_value(draw: random.Random) -> None:
    """A request or an answer with some of its values changed, some of its bytes, or both."""
    kind = draw.choice(kinds())
    value = make_value(draw, kind)
    if draw.random() < 0.7:
        value = change_document(draw, value)
    try:
        content = msgspec.msgpack.encode(value)
    except (OverflowError, TypeError, ValueError, RecursionError):
        # MessagePack has no such numbers.
        return
    if draw.random() < 0.4:
        content = change_bytes(draw, content)
    decode(content, kind)


def _try_pieces(draw: random.Random) -> None:
    """A message in pieces, of which some are changed, lost, doubled or in another order."""
    message = Message(draw.randbytes(draw.randrange(200)), Body.hash(draw.randbytes(draw.randrange(300))))
    parts = list(split_message(message))
    for _ in range(draw.randrange(3)):
        place = draw.randrange(len(parts) or 1)
        match draw.randrange(4):
            case 0 if parts:
                parts[place] = change_bytes(draw, parts[place])
            case 1:
                parts[place : place + 1] = []
            case 2:
                parts[place:place] = parts[place : place + 1]
            case _:
                draw.shuffle(parts)

    async def send() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    asyncio.run(join_message(send(), MAX_BODY))


def _try_upload(draw: random.Random) -> None:
    """An upload whose update is changed; what passes the checks is added to a model."""
    order = _make_order(draw)
    report = DeviceReport(
        device=0,
        update=draw.choice(_COMPRESSORS)(_vector(draw, _SIZE), draw.choice((0.01, 0.3, 1.0)), 7),
        buffers=_vector(draw, order.model.buffers.numel()),
        estimates=None,
        steps=1,
        loss=0.5,
        samples=3,
    )
    upload = make_upload(report, order)
    content = change_bytes(draw, bytes(upload.content.join()))
    header = encode(upload)
    received = decode(header, UploadRequest, Body.hash(content))
    verified = verify_upload(received, order, UploadLimits(draw.choice((None, 1.0))))
    verified.update.add_to(torch.zeros(_SIZE), 1.0)
    read_model(content, order.model)


def _make_order(draw: random.Random) -> DeviceOrder:
    model = FlatModel(torch.zeros(_SIZE), torch.zeros(draw.choice((0, 5))))
    return Order(seed=0, global_round=1, edge_round=0, device=0, rho=1.0, theta=0.5, tau=2, model=model)


def _vector(draw: random.Random, size: int) -> torch.Tensor:
    numbers = np.random.default_rng(draw.randrange(2**32)).standard_normal(size)
    return torch.from_numpy(numbers.astype(np.float32))
