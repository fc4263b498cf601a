"""Messages: whole, or rejected with a reason."""

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Iterable

import pytest

from cfel.deployment.parameters import CHUNK_BYTES
from cfel.deployment.transport.messages import (
    PROTOCOL_VERSION,
    Body,
    Message,
    cut,
    join_message,
    split_message,
)
from cfel.errors import RejectedError


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
            "protocol version 6",
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
