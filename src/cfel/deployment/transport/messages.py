"""Messages: a JSON header and a body of bytes, cut into pieces for the wire and put together again.

    "CFEL"  version u16  header bytes u32  body bytes u64  SHA-256 of the body  header      (first piece)
    body, in pieces of at most `CHUNK_BYTES`                                                (the others)

Numbers are little-endian; nothing is pickled. Sizes are checked before anything is kept, and what comes in is
either a whole message or a refusal with its reason.
"""

import hashlib
import json
import struct
from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cfel.deployment.parameters import CHUNK_BYTES
from cfel.errors import RejectedError

PROTOCOL = 1
"""Version of everything said here; both ends have to speak the same."""

MOST_WHOLE = 2**53
"""Whole numbers up to here are the same as floats; JSON knows no bound, and a float has one."""

MOST_HEADER_BYTES = 3 * 1024 * 1024
_MAGIC = b"CFEL"
_START = struct.Struct("<4s H I Q 32s")


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What passes between two members.

    Attributes:
        header: JSON values.
        body: raw bytes, empty for most. Those of a message that came in are its receiver's to write to.
        digest: SHA-256 of the body, where it is known already: that of one that came in always is, and a
            body that goes to many need not be hashed for each.
        parts: in place of a body, one that goes to many and has been cut already.
    """

    header: Mapping[str, Any] = field(default_factory=dict)
    # Not shown: whoever puts a task or an error into words would print megabytes.
    body: bytes | bytearray = field(default=b"", repr=False)
    digest: bytes = field(default=b"", repr=False)
    parts: tuple[bytes, ...] = field(default=(), repr=False)

    def whole(self, name: str) -> int:
        """A whole number ≥ 0 of the header.

        Raises:
            RejectedError: it is missing or something else.
        """
        value = self.header.get(name)
        if type(value) is not int or not 0 <= value <= MOST_WHOLE:
            raise RejectedError(f"{name} = {value!r}: must be a whole number from 0 to {MOST_WHOLE}")
        return value

    def number(self, name: str) -> float:
        """A number of the header, NaN allowed.

        Raises:
            RejectedError: it is missing or something else.
        """
        value = self.header.get(name)
        if type(value) is int and abs(value) <= MOST_WHOLE:
            return float(value)
        if type(value) is not float:
            raise RejectedError(f"{name} = {value!r}: must be a number")
        return value

    def text(self, name: str) -> str:
        """A text of the header.

        Raises:
            RejectedError: it is missing or something else.
        """
        value = self.header.get(name)
        if not isinstance(value, str):
            raise RejectedError(f"{name} = {value!r}: must be text")
        return value


def cut(body: bytes | bytearray | memoryview) -> Iterator[bytes]:
    """A body in pieces for the wire."""
    view = memoryview(body)
    return (bytes(view[start : start + CHUNK_BYTES]) for start in range(0, len(view), CHUNK_BYTES))


def pieces(message: Message) -> Iterator[bytes]:
    """The message for the wire."""
    header = json.dumps(message.header, separators=(",", ":")).encode()
    length = sum(map(len, message.parts)) or len(message.body)
    digest = message.digest or hashlib.sha256(b"".join(message.parts) or message.body).digest()
    yield _START.pack(_MAGIC, PROTOCOL, len(header), length, digest) + header
    yield from message.parts or cut(message.body)


async def put_together(
    received: AsyncIterable[bytes], most_bytes: int, on_size: Callable[[int], None] = lambda _: None
) -> Message:
    """The message that `pieces` cut.

    Args:
        received: the pieces, in order.
        most_bytes: largest body to accept.
        on_size: told how many bytes of body are announced, before they come; may refuse them.

    Raises:
        RejectedError: it is none, damaged, too large, or of another version.
    """
    header: dict[str, Any] | None = None
    parts: list[bytes] = []
    got, length, digest, found = 0, 0, b"", hashlib.sha256()
    async for piece in received:
        if header is None:
            header, length, digest = _started(piece, most_bytes)
            on_size(length)
            continue
        got += len(piece)
        if got > length:
            raise RejectedError(f"more than the {length} bytes announced")
        parts.append(piece)
        found.update(piece)
    if header is None:
        raise RejectedError("an empty message")
    if got != length:
        raise RejectedError(f"cut short: {got} of {length} bytes")
    if found.digest() != digest:
        raise RejectedError("damaged: the SHA-256 of its body is another")
    return Message(header, bytearray().join(parts), digest)


def _started(piece: bytes, most_bytes: int) -> tuple[dict[str, Any], int, bytes]:
    if len(piece) < _START.size:
        raise RejectedError(f"{len(piece)} bytes that are not the start of a message")
    magic, version, header_bytes, length, digest = _START.unpack_from(piece)
    if magic != _MAGIC:
        raise RejectedError("not a message of cfel")
    if version != PROTOCOL:
        raise RejectedError(f"protocol version {version}, only {PROTOCOL} is spoken here")
    if header_bytes > MOST_HEADER_BYTES or length > most_bytes:
        raise RejectedError(f"too large: {header_bytes} + {length} bytes, at most {most_bytes} are accepted")
    if len(piece) != _START.size + header_bytes:
        raise RejectedError(f"header of {len(piece) - _START.size} bytes, {header_bytes} were announced")
    return _header(piece[_START.size :]), length, digest


def _header(content: bytes) -> dict[str, Any]:
    try:
        header = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RejectedError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise RejectedError(f"header is a {type(header).__name__}, not an object")
    return header
