"""Messages: a header and a body, both bytes, cut into pieces for the wire and joined again.

    "CFEL"  version u16  header bytes u32  body bytes u64  SHA-256 of the body  header      (first piece)
    body, in pieces of at most `CHUNK_BYTES`                                                (the others)

Numbers are little-endian. Sizes are checked before anything is kept: a receiver gets a whole message, or a
`RejectedError` that says what is wrong with it. What a header means is the business of `protocol`.
"""

import hashlib
import struct
from collections.abc import AsyncIterable, Callable, Iterator
from dataclasses import dataclass, field

from cfel.deployment.parameters import CHUNK_BYTES
from cfel.errors import RejectedError

PROTOCOL_VERSION = 5
"""Version of frames and of all requests and answers; both ends must have the same."""

MOST_HEADER_BYTES = 3 * 1024 * 1024
"""Between edge servers, whose commands carry the state of the whole fleet."""
SMALL_HEADER_BYTES = 64 * 1024
"""From devices and operators: decoding megabytes would keep an edge server from its other callers."""
_MAGIC = b"CFEL"
_START = struct.Struct("<4s H I Q 32s")

Bytes = bytes | bytearray | memoryview


class Body:
    """The bytes that travel beside a header: a model, or an upload.

    Not a dataclass, so that no codec or log line takes it for one and copies megabytes.

    Args:
        digest: SHA-256 of all parts.
        parts: the bytes, in order.

    Attributes:
        digest, parts: as given. The parts of a received body are one `bytearray` that the receiver may keep
            and write to.
    """

    __slots__ = ("digest", "parts")

    def __init__(self, digest: bytes = hashlib.sha256().digest(), parts: tuple[Bytes, ...] = ()) -> None:
        self.digest, self.parts = digest, parts

    @classmethod
    def hash(cls, *parts: Bytes) -> "Body":
        """Makes a body; hashes its bytes, which takes a while for a large model."""
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return cls(digest.digest(), parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def join(self) -> bytes | bytearray:
        """The bytes in one piece; copied, unless they are in one piece already."""
        if len(self.parts) == 1 and not isinstance(self.parts[0], memoryview):
            return self.parts[0]
        return bytearray().join(self.parts)


NO_BODY = Body()


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What passes between two nodes."""

    header: bytes = field(default=b"", repr=False)
    body: Body = NO_BODY


def cut(*parts: Bytes) -> Iterator[bytes]:
    """Cuts bytes into pieces for the wire; a small piece of `bytes` is not copied."""
    for part in parts:
        if isinstance(part, bytes) and 0 < len(part) <= CHUNK_BYTES:
            yield part
        else:
            view = memoryview(part)
            yield from (bytes(view[at : at + CHUNK_BYTES]) for at in range(0, len(view), CHUNK_BYTES))


def split_message(message: Message) -> Iterator[bytes]:
    """The pieces of a message, made one by one."""
    header, body = message.header, message.body
    yield _START.pack(_MAGIC, PROTOCOL_VERSION, len(header), len(body), body.digest) + header
    yield from cut(*body.parts)


async def join_message(
    received: AsyncIterable[bytes],
    most_bytes: int,
    on_size: Callable[[int], None] = lambda _: None,
    most_header_bytes: int = MOST_HEADER_BYTES,
) -> Message:
    """Joins the pieces that `split_message` made.

    Args:
        received: the pieces, in order.
        most_bytes: largest body to accept.
        on_size: called with the announced size of the body before the body is read; may reject it.
        most_header_bytes: largest header to accept.

    Raises:
        RejectedError: it is not a message, damaged, too large, or of another version.
    """
    header: bytes | None = None
    content, length, digest, found = bytearray(), 0, b"", hashlib.sha256()
    async for piece in received:
        if header is None:
            header, length, digest = _read_start(piece, most_bytes, most_header_bytes)
            on_size(length)
            continue
        if not piece:
            raise RejectedError("an empty piece")  # they could go on for ever
        if len(content) + len(piece) > length:
            raise RejectedError(f"more than the {length} bytes announced")
        content += piece
        found.update(piece)
    if header is None:
        raise RejectedError("an empty message")
    if len(content) != length:
        raise RejectedError(f"cut short: {len(content)} of {length} bytes")
    if found.digest() != digest:
        raise RejectedError("damaged: the SHA-256 of its body is another")
    return Message(header, Body(digest, (content,)))


def _read_start(piece: bytes, most_bytes: int, most_header_bytes: int) -> tuple[bytes, int, bytes]:
    if len(piece) < _START.size:
        raise RejectedError(f"{len(piece)} bytes that are not the start of a message")
    magic, version, header_bytes, length, digest = _START.unpack_from(piece)
    if magic != _MAGIC:
        raise RejectedError("not a message of cfel")
    if version != PROTOCOL_VERSION:
        raise RejectedError(
            f"protocol version {version}, this node speaks only {PROTOCOL_VERSION}: install the same version "
            "of cfel on all nodes"
        )
    if header_bytes > most_header_bytes or length > most_bytes:
        most = f"{most_header_bytes} + {most_bytes}"
        raise RejectedError(f"too large: {header_bytes} + {length} bytes, at most {most} are accepted")
    if len(piece) != _START.size + header_bytes:
        raise RejectedError(f"header of {len(piece) - _START.size} bytes, {header_bytes} were announced")
    return piece[_START.size :], length, digest
