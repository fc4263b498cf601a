"""Bodies in parts: sizes that follow the link, downloads that resume, uploads complete by their digest."""

import asyncio
import hashlib
from collections.abc import Callable

import pytest
import torch

from cfel.deployment.payloads import EncodedModel, EncodedModels
from cfel.deployment.protocol.device_requests import Round, UploadPartRequest, UploadRequest
from cfel.deployment.protocol.messages import NO_BODY, Body
from cfel.deployment.protocol.transfer import (
    FIRST_PART_BYTES,
    LEAST_PART_BYTES,
    MOST_PART_BYTES,
    Download,
    InvalidBodyError,
    PartSize,
    UploadParts,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError, UnreachableError
from cfel.learning.models.flat import FlatModel
from tests.support.inline_compute import InlineCompute

CONTENT = bytes(range(256)) * 1000
NAME = hashlib.sha256(CONTENT).hexdigest()
DEVICE = Identity("device", 4)


def test_a_part_takes_about_as_long_as_it_should() -> None:
    """At 25,000 bytes a second and 2 s a part has 50,000 bytes, whatever the last, smaller one took."""
    part = PartSize(2.0)
    assert part.bytes == FIRST_PART_BYTES
    for _ in range(5):
        part.adapt(part.bytes, part.bytes / 25_000)
    assert part.bytes == 50_000
    part.adapt(100, 1.0)
    assert part.bytes == 50_000
    part.shrink()
    assert part.bytes == 25_000


def test_sizes_have_bounds() -> None:
    part = PartSize(2.0)
    for _ in range(10):
        part.adapt(part.bytes, 1e-9)
    assert part.bytes == MOST_PART_BYTES
    for _ in range(40):
        part.shrink()
    assert part.bytes == LEAST_PART_BYTES


def download(ask: Callable[[int, int], Body], into: Download) -> bytearray:
    """What comes of a download whose parts are answered by a function."""

    async def answer(offset: int, most_bytes: int) -> Body:
        return ask(offset, most_bytes)

    return asyncio.run(into.complete(answer, PartSize(2.0), iter(range(1000)).__next__))


def test_a_body_that_comes_whole_is_kept_and_checked() -> None:
    """It is not copied; one with other bytes is refused by the digest that it arrived with."""
    whole, other = bytearray(CONTENT), bytearray(len(CONTENT))
    into = Download(NAME, len(CONTENT))
    size = PartSize(2.0)
    size.bytes = len(CONTENT)

    async def fetch(content: bytearray) -> bytearray:
        async def ask(_offset: int, _most_bytes: int) -> Body:
            return Body.hash(content)

        return await into.complete(ask, size, iter(range(1000)).__next__)

    with pytest.raises(InvalidBodyError):
        asyncio.run(fetch(other))
    assert into.held_bytes == 0
    assert asyncio.run(fetch(whole)) is whole


def test_a_download_resumes_where_it_broke() -> None:
    asked: list[int] = []

    def ask(offset: int, most_bytes: int) -> Body:
        asked.append(offset)
        if len(asked) in (3, 6):
            raise UnreachableError("broken")
        return Body.hash(CONTENT[offset : offset + most_bytes])

    into = Download(NAME, len(CONTENT))
    for _ in range(2):
        with pytest.raises(UnreachableError):
            download(ask, into)
    assert download(ask, into) == CONTENT
    assert asked[2] == asked[3] > FIRST_PART_BYTES
    assert len(set(asked)) == len(asked) - 2


def test_parts_asked_at_once_arrive_in_order_and_none_is_asked_twice() -> None:
    """Two are under way at any time; the next is asked for before the one before it has arrived."""
    under_way = most_under_way = 0
    asked: list[int] = []

    async def ask(offset: int, most_bytes: int) -> Body:
        nonlocal under_way, most_under_way
        asked.append(offset)
        under_way += 1
        most_under_way = max(most_under_way, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return Body.hash(CONTENT[offset : offset + most_bytes])

    into = Download(NAME, len(CONTENT))
    clock = iter(range(1000)).__next__
    assert asyncio.run(into.complete(ask, PartSize(2.0), clock, at_once=2)) == CONTENT
    assert most_under_way == 2
    assert len(set(asked)) == len(asked)


def test_a_part_that_arrived_is_kept_when_the_next_one_fails() -> None:
    async def ask(offset: int, most_bytes: int) -> Body:
        if offset:
            raise RejectedError("not wanted any more")
        await asyncio.sleep(0)
        return Body.hash(CONTENT[offset : offset + most_bytes])

    into = Download(NAME, len(CONTENT))
    with pytest.raises(RejectedError, match="not wanted"):
        asyncio.run(into.complete(ask, PartSize(2.0), iter(range(1000)).__next__, at_once=2))
    assert into.held_bytes == FIRST_PART_BYTES


def test_a_part_of_another_length_is_invalid() -> None:
    with pytest.raises(InvalidBodyError, match=r"7 bytes at byte 0 .*, 32768 were"):
        download(lambda _offset, _most: Body.hash(b"1234567"), Download(NAME, len(CONTENT)))


def test_a_download_of_other_bytes_starts_again() -> None:
    into = Download(NAME, len(CONTENT))
    with pytest.raises(InvalidBodyError, match="is another one"):
        download(lambda _offset, most: Body.hash(bytes(most)), into)
    assert into.held_bytes == 0


@pytest.mark.parametrize("most_bytes", [1, 7, 4096, 2 * 1024 * 1024, 5 * 1024 * 1024])
def test_parts_of_an_encoded_model_are_its_bytes(most_bytes: int) -> None:
    """The encoded form consists of pieces of 1 MiB; parts begin and end anywhere."""
    model = FlatModel(torch.arange(700_000, dtype=torch.float32), torch.arange(5.0))
    encoded = EncodedModel.encode(model)
    whole = bytes(encoded.body.join())

    async def parts() -> None:
        for offset in (0, 3, 1024 * 1024 - 2, 2 * 1024 * 1024, len(whole) - 1, len(whole), 2**40):
            part = await EncodedModels(InlineCompute()).part(encoded.body, offset, most_bytes)
            assert part.join() == whole[offset : offset + most_bytes]
            assert part.digest == hashlib.sha256(whole[offset : offset + most_bytes]).digest()

    asyncio.run(parts())


def uploads(accepted: bool = False) -> UploadParts:
    """At most 100 bytes are taken, of round (0, 0) only."""

    def find(caller: Identity, sent: Round) -> tuple[int, str | None]:
        if sent != (0, 0):
            raise RejectedError("another round")
        return caller.number, None if accepted else "order"

    return UploadParts(100, find)


def send(parts: UploadParts, offset: int, content: bytes, name: str, sent: Round = (0, 0)) -> int:
    """Sends a part; how much is held then."""
    request = UploadPartRequest(sent, name, offset, Body.hash(content))
    return asyncio.run(parts.add(DEVICE, request)).held


def upload(name: str | None) -> UploadRequest:
    return UploadRequest(
        round=(0, 0),
        steps=1,
        loss=0.0,
        samples=1,
        buffers=0,
        content=NO_BODY,
        estimates=None,
        content_sha256=name,
    )


def test_an_upload_in_parts_is_complete_by_its_digest() -> None:
    """A part that comes twice or too early changes nothing, and the answer says where to resume."""
    parts, name = uploads(), hashlib.sha256(b"abcdef").hexdigest()
    assert send(parts, 0, b"abc", name) == 3
    assert send(parts, 0, b"abc", name) == 3
    assert send(parts, 5, b"f", name) == 3
    assert send(parts, 0, b"", name) == 3
    with pytest.raises(RejectedError, match="missing, or other ones"):
        parts.complete(DEVICE.number, upload(name))
    assert send(parts, 3, b"def", name) == 6
    found = parts.complete(DEVICE.number, upload(name))
    assert found.content.join() == b"abcdef"
    assert parts.complete(DEVICE.number, upload(None)).content_sha256 is None


def test_another_upload_replaces_the_unfinished_one_and_a_round_forgets_all() -> None:
    parts, names = uploads(), [hashlib.sha256(each).hexdigest() for each in (b"abc", b"xyz")]
    assert send(parts, 0, b"ab", names[0]) == 2
    assert send(parts, 0, b"xyz", names[1]) == 3
    assert send(parts, 0, b"", names[0]) == 0
    parts.clear()
    with pytest.raises(RejectedError, match="missing"):
        parts.complete(DEVICE.number, upload(names[1]))


def test_parts_are_taken_only_of_an_upload_that_is_asked_and_within_its_size() -> None:
    with pytest.raises(RejectedError, match="another round"):
        send(uploads(), 0, b"abc", NAME, (1, 0))
    parts = uploads()
    assert send(parts, 0, bytes(60), NAME) == 60
    with pytest.raises(RejectedError, match="more than 100 bytes"):
        send(parts, 60, bytes(41), NAME)
    assert send(uploads(accepted=True), 10, b"abc", NAME) == 13
