"""Messages: what is framed, encoded and decoded, and what is rejected."""

import asyncio
import hashlib
import math
import struct
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import numpy as np
import pytest

from cfel.arrays import BoolArray, FloatArray
from cfel.deployment.parameters import CHUNK_BYTES
from cfel.deployment.protocol.device_requests import EstimatesRequest, NextRequest, UploadRequest
from cfel.deployment.protocol.edge_requests import HelloAnswer
from cfel.deployment.protocol.messages import (
    PROTOCOL_VERSION,
    Amount,
    Body,
    Count,
    Digest,
    Message,
    Positive,
    Share,
    cut,
    decode,
    encode,
    join_message,
    split_message,
)
from cfel.errors import RejectedError
from cfel.learning.local.estimates import Estimates


async def _stream(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def back(parts: Iterable[bytes], most_bytes: int = 10 * CHUNK_BYTES) -> Message:
    return asyncio.run(join_message(_stream(parts), most_bytes))


def test_there_and_back() -> None:
    body = bytes(range(256)) * (2 * CHUNK_BYTES // 256) + b"end"
    parts = list(split_message(Message(b"header", Body.hash(body))))
    assert [len(part) for part in parts[1:]] == [CHUNK_BYTES, CHUNK_BYTES, 3]
    message = back(parts)
    assert message.body.join() == body
    assert message.header == b"header"


def test_a_body_that_is_cut_and_hashed_already_gives_the_same_bytes() -> None:
    body = bytes(range(256)) * (CHUNK_BYTES // 256) + b"end"
    whole = list(split_message(Message(b"header", Body.hash(body))))
    digest = hashlib.sha256(body).digest()
    assert list(split_message(Message(b"header", Body(digest, tuple(cut(body)))))) == whole
    assert list(split_message(Message(b"header", Body.hash(memoryview(body))))) == whole
    assert back(whole).body.digest == digest
    assert len(repr(back(whole))) < 150


LATER = struct.pack("<H", PROTOCOL_VERSION + 1)
GOOD = list(split_message(Message(b"header", Body.hash(b"body"))))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "empty"),
        ([b"garbage"], "not the start"),
        ([b"x" * 200], "not a message of cfel"),
        (
            [GOOD[0][:4] + struct.pack("<H", PROTOCOL_VERSION + 1) + GOOD[0][6:], GOOD[1]],
            f"protocol version {PROTOCOL_VERSION + 1}",
        ),
        ([GOOD[0]], "cut short: 0 of 4"),
        ([GOOD[0], b"bod"], "cut short: 3 of 4"),
        ([GOOD[0], b"body", b"more"], "more than the 4"),
        ([GOOD[0], b"bo", b"", b"dy"], "an empty piece"),
        ([GOOD[0], b"bodz"], "SHA-256"),
        ([GOOD[0] + b" ", GOOD[1]], "header of 7 bytes, 6 were announced"),
        (list(split_message(Message(b"", Body.hash(b"x" * 101)))), "too large"),
        ([GOOD[0][:6] + struct.pack("<I", 2**31) + GOOD[0][10:]], "too large"),
    ],
)
def test_rejected(parts: list[bytes], reason: str) -> None:
    with pytest.raises(RejectedError, match=reason):
        back(parts, most_bytes=100)


class Numbers(msgspec.Struct, frozen=True):
    """One field of each kind."""

    count: Count = 0
    positive: Positive = 1
    amount: Amount = 0.0
    share: Share = 0.0
    digest: Digest = "0" * 64
    any_float: float = 0.0
    nested: tuple[Estimates, ...] = ()


class Arrays(msgspec.Struct, frozen=True):
    """Vectors and a matrix."""

    floats: FloatArray
    flags: BoolArray


def test_numbers_come_back_to_the_last_bit() -> None:
    sent = Numbers(2**53, 7, 0.1 + 0.2, 5e-324, "a" * 64, math.inf, (Estimates(1e-300, -0.0, (0.1,)),))
    found = decode(encode(sent), Numbers)
    assert found == sent
    assert math.copysign(1, found.nested[0].g2) == -1
    assert math.isnan(decode(encode(Numbers(any_float=math.nan)), Numbers).any_float)


def test_arrays_come_back_to_the_last_bit() -> None:
    floats = np.array([[0.1, -0.0, math.nan], [math.inf, 5e-324, 1e308]])
    found = decode(encode(Arrays(floats, np.array([True, False]))), Arrays)
    assert found.floats.tobytes() == floats.tobytes()
    assert (found.floats.shape, found.flags.tolist()) == ((2, 3), [True, False])
    found.floats[0, 0] = 1.0  # the receiver's own


@pytest.mark.parametrize("value", [None, "1", 1.5, -1, True, [1], 2**53 + 1, 2**64 - 1])
def test_counts_are_whole_numbers(value: object) -> None:
    with pytest.raises(RejectedError, match="count = "):
        decode(encode({"count": value}), Numbers)


@pytest.mark.parametrize("name", ["amount", "share"])
@pytest.mark.parametrize("value", [None, "1", True, [1.0], math.nan, math.inf, -math.inf])
def test_numbers_are_finite_numbers(name: str, value: object) -> None:
    with pytest.raises(RejectedError, match=f"{name} = "):
        decode(encode({name: value}), Numbers)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"positive": 0}, "positive = 0: Expected `int` >= 1"),
        ({"amount": -0.5}, "amount = -0.5: Expected `float` >= 0.0"),
        ({"share": 1.5}, "share = 1.5: Expected `float` <= 1.0"),
        ({"digest": "../secret"}, "digest = '../secret'"),
        ({"nested": [{"sigma2": 1.0}]}, r"nested\[0\]\.g2: is missing"),
        ({"nested": [{"sigma2": 1.0, "g2": "x"}]}, r"nested\[0\]\.g2 = 'x'"),
        ([1, 2], "header = .1, 2.: Expected `object`, got `array`"),
    ],
)
def test_a_rejection_names_field_and_value(fields: object, reason: str) -> None:
    with pytest.raises(RejectedError, match=reason):
        decode(encode(fields), Numbers)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (["<f8", [3], bytes(16)], "floats = "),
        (["<f8", [2], bytes(15)], "floats = "),
        (["<f4", [2], bytes(8)], "an array of <f4 is not expected here"),
        (["|b1", [2], bytes(2)], "an array of |b1 is not expected here"),
        (["|O", [2], bytes(16)], "an array of |O is not expected here"),
        (["<f8", [-1], bytes(16)], "floats"),
        ([1.0, 2.0], "floats = "),
        ("text", "floats = 'text'"),
    ],
)
def test_what_is_no_such_array_is_rejected(array: object, reason: str) -> None:
    flags = ["|b1", [1], b"\1"]
    with pytest.raises(RejectedError) as rejection:
        decode(encode({"floats": array, "flags": flags}), Arrays)
    assert reason in str(rejection.value)


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x81", b"\x91" * 100_000, encode(Numbers())[:-1]])
def test_what_is_no_message_is_rejected(content: bytes) -> None:
    with pytest.raises(RejectedError, match=r"not MessagePack|header = "):
        decode(content, Numbers)


@pytest.mark.parametrize("change", [{"sigma2": -1.0}, {"sigma2": math.nan}, {"g2": math.inf}])
def test_estimates_are_checked_wherever_they_arrive(change: dict[str, float]) -> None:
    request = {"round": (0, 0), "estimates": {"sigma2": 1.0, "g2": 1.0, **change}}
    with pytest.raises(RejectedError, match=next(iter(change))):
        decode(encode(request), EstimatesRequest)


def test_a_body_travels_beside_its_request() -> None:
    body = Body.hash(b"update")
    sent = UploadRequest((1, 2), 3, math.nan, 4, 0, body, None)
    content = encode(sent)
    assert b"update" not in content
    found: Any = decode(content, UploadRequest, body)
    assert found.content is body
    assert (found.round, found.steps, found.samples) == ((1, 2), 3, 4)


def test_text_that_is_not_unicode_is_rejected() -> None:
    """Both where it is expected and behind another field that is wrong."""
    for content in (b"\x81\xa5known\xa2\xff\xfe", b"\x82\xa5known\x01\xa1x\xa2\xff\xfe"):
        with pytest.raises(RejectedError):
            decode(content, NextRequest)


def test_a_reason_is_short() -> None:
    content = encode({"over": False, "devices": {1: "x" * 100_000}})
    with pytest.raises(RejectedError) as rejected:
        decode(content, HelloAnswer)
    assert len(str(rejected.value)) < 1100
