"""Messages: whole, or refused with a reason."""

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Iterable

import pytest

from cfel.deployment.parameters import CHUNK_BYTES
from cfel.deployment.transport.messages import PROTOCOL, Message, cut, pieces, put_together
from cfel.errors import RejectedError


async def _stream(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def back(parts: Iterable[bytes], most_bytes: int = 10 * CHUNK_BYTES) -> Message:
    return asyncio.run(put_together(_stream(parts), most_bytes))


def test_there_and_back() -> None:
    body = bytes(range(256)) * (2 * CHUNK_BYTES // 256) + b"end"
    parts = list(pieces(Message({"round": 3, "rho": 0.1, "loss": float("inf")}, body)))
    assert [len(part) for part in parts[1:]] == [CHUNK_BYTES, CHUNK_BYTES, 3]
    message = back(parts)
    assert message.body == body
    assert message.header == {"round": 3, "rho": 0.1, "loss": float("inf")}


def test_a_body_that_is_cut_and_hashed_already_gives_the_same_bytes() -> None:
    body = bytes(range(256)) * (CHUNK_BYTES // 256) + b"end"
    whole = list(pieces(Message({"round": 3}, body)))
    digest = hashlib.sha256(body).digest()
    assert list(pieces(Message({"round": 3}, digest=digest, parts=tuple(cut(body))))) == whole
    assert list(pieces(Message({"round": 3}, parts=tuple(cut(body))))) == whole
    assert back(whole).digest == digest
    assert len(repr(back(whole))) < 100


GOOD = list(pieces(Message({"round": 1}, b"body")))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "empty"),
        ([b"garbage"], "not the start"),
        ([b"x" * 200], "not a message of cfel"),
        ([GOOD[0][:4] + struct.pack("<H", PROTOCOL + 1) + GOOD[0][6:], GOOD[1]], "protocol version 2"),
        ([GOOD[0]], "cut short: 0 of 4"),
        ([GOOD[0], b"bod"], "cut short: 3 of 4"),
        ([GOOD[0], b"body", b"more"], "more than the 4"),
        ([GOOD[0], b"bodz"], "SHA-256"),
        ([GOOD[0] + b" ", GOOD[1]], "header of 12 bytes, 11 were announced"),
        ([GOOD[0][:-1] + b"x", GOOD[1]], "not JSON"),
        ([GOOD[0][:-11] + b"[1,2,3,4,5]", GOOD[1]], "list, not an object"),
        (list(pieces(Message({}, b"x" * 101))), "too large"),
        ([GOOD[0][:6] + struct.pack("<I", 2**31) + GOOD[0][10:]], "too large"),
    ],
)
def test_refused(parts: list[bytes], reason: str) -> None:
    with pytest.raises(RejectedError, match=reason):
        back(parts, most_bytes=100)


@pytest.mark.parametrize("value", [None, "1", 1.5, -1, True, [1], 2**53 + 1, 10**400])
def test_whole_numbers_are_whole(value: object) -> None:
    with pytest.raises(RejectedError, match="round"):
        Message({"round": value}).whole("round")


@pytest.mark.parametrize("value", [None, "1", True, [1.0], 10**400, -(10**400)])
def test_numbers_are_numbers_that_a_float_can_hold(value: object) -> None:
    """JSON has whole numbers of any size; one as a device's samples would end the round of everybody."""
    with pytest.raises(RejectedError, match="loss"):
        Message({"loss": value}).number("loss")
    assert Message({"loss": 3}).number("loss") == 3.0
