"""Messages between nodes: typed values as bytes, and bytes as pieces on the wire.

    "CFEL"  version u16  header bytes u32  body bytes u64  SHA-256 of the body  header      (first piece)
    body, in pieces of at most `CHUNK_BYTES`                                                (the others)

Numbers are little-endian. Sizes are checked before anything is kept. The header is a request or an answer in
MessagePack by msgspec, NumPy arrays as raw numbers; nothing is pickled. Types, ranges and lengths are checked
while decoding, so code behind it works with valid values only, here and where nodes read their disks. What is
not valid is a `RejectedError` that names the field, its value and what is expected there.
"""

import hashlib
import re
import reprlib
import struct
import sys
from collections.abc import AsyncIterable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar, get_args

import msgspec
import numpy as np

from cfel.deployment.parameters import CHUNK_BYTES
from cfel.errors import InputError, RejectedError, VersionError
from cfel.wording import shorten

PROTOCOL_VERSION = 7
"""Version of frames and of all requests and answers; docs/protocol.md says what may change with it."""
OLDEST_VERSION = PROTOCOL_VERSION - 1
"""The other version that a node speaks: a federation can be upgraded node by node."""

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
    version: int = PROTOCOL_VERSION


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
    yield _START.pack(_MAGIC, message.version, len(header), len(body), body.digest) + header
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
        RejectedError: it is not a message, damaged or too large.
        VersionError: it is of a version that this node does not speak.
    """
    header: bytes | None = None
    content, length, digest, found = bytearray(), 0, b"", hashlib.sha256()
    version = PROTOCOL_VERSION
    async for piece in received:
        if header is None:
            header, length, digest, version = _read_start(piece, most_bytes, most_header_bytes)
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
    return Message(header, Body(digest, (content,)), version)


def check_version(version: int) -> None:
    """Raises a `VersionError` unless this node speaks a version of the protocol."""
    if not OLDEST_VERSION <= version <= PROTOCOL_VERSION:
        raise VersionError(
            f"protocol version {version}, this node speaks {OLDEST_VERSION} and {PROTOCOL_VERSION}: upgrade "
            "the older node, one version at a time"
        )


def _read_start(piece: bytes, most_bytes: int, most_header_bytes: int) -> tuple[bytes, int, bytes, int]:
    if len(piece) < _START.size:
        raise RejectedError(f"{len(piece)} bytes that are not the start of a message")
    magic, version, header_bytes, length, digest = _START.unpack_from(piece)
    if magic != _MAGIC:
        raise RejectedError("not a message of cfel")
    check_version(version)
    if header_bytes > most_header_bytes or length > most_bytes:
        most = f"{most_header_bytes} + {most_bytes}"
        raise RejectedError(f"too large: {header_bytes} + {length} bytes, at most {most} are accepted")
    if len(piece) != _START.size + header_bytes:
        raise RejectedError(f"header of {len(piece) - _START.size} bytes, {header_bytes} were announced")
    return piece[_START.size :], length, digest, version


MOST_WHOLE = 2**53
"""Whole numbers up to here are exact as floats, too."""

_LARGEST = sys.float_info.max
# A NaN fails every comparison, so these bounds also reject what is not finite.
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_WHOLE)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST_WHOLE)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Version = Annotated[str, msgspec.Meta(max_length=40)]
Instance = Annotated[str, msgspec.Meta(max_length=16)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

Value = TypeVar("Value")

_MAX_REASON = 1000
_ARRAYS = ("<f8", "<i8", "<i4", "|b1")
_FIELD_ERROR = re.compile(r"(?P<expected>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)
_WRONG_FIELD = re.compile(r"Object (missing required|contains unknown) field `(?P<name>[^`]*)`")


def encode(value: object) -> bytes:
    """Encodes a value; bodies in it are left out, as they travel beside it."""
    return msgspec.msgpack.encode(value, enc_hook=_encode_special)


def decode(content: bytes, kind: type[Value], body: Body = NO_BODY) -> Value:
    """Decodes and checks what `encode` wrote.

    Args:
        content: the bytes.
        kind: the type that is expected.
        body: what takes the place of a `Body` in the type.

    Raises:
        RejectedError: the bytes are no such value; the reason names the field and the value.
    """
    try:
        return msgspec.msgpack.decode(content, type=kind, dec_hook=partial(_decode_special, body))
    except msgspec.ValidationError as error:
        # Values can be as long as the message; a log line must stay short.
        raise RejectedError(shorten(_describe(error, content), _MAX_REASON)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RejectedError(f"not MessagePack: {error}") from error


def to_message(value: object) -> Message:
    """A request or an answer as a message."""
    # At most one field of a request or an answer is a body.
    names = getattr(value, "__struct_fields__", ())
    bodies = [each for name in names if isinstance(each := getattr(value, name), Body)]
    return Message(encode(value), bodies[0] if bodies else NO_BODY)


def from_message(message: Message, kind: type[Value]) -> Value:
    """The request or answer in a message.

    Raises:
        RejectedError: it is none; see `decode`.
    """
    return decode(message.header, kind, message.body)


def _encode_special(value: object) -> object:
    if isinstance(value, np.ndarray):
        # Little-endian whatever the machine is.
        numbers = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return numbers.dtype.str, numbers.shape, numbers.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Body):
        return None
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _decode_special(body: Body, kind: Any, value: Any) -> Any:  # noqa: ANN401 — whatever came in
    if kind is Body:
        return body
    try:
        dtype, shape, content = msgspec.convert(value, tuple[str, tuple[Count, ...], bytes])
    except msgspec.ValidationError as error:
        raise ValueError("an array must be its type, its shape and its bytes") from error
    wanted = [part for part in get_args(get_args(kind)[1]) if part is not Any]
    if dtype not in _ARRAYS or (wanted and np.dtype(dtype) != np.dtype(wanted[0])):
        raise ValueError(f"an array of {dtype} is not expected here")
    return np.frombuffer(content, dtype=dtype).reshape(shape).copy()


def _describe(error: msgspec.ValidationError, content: bytes) -> str:
    """Which field is wrong, its value, and what is expected."""
    if isinstance(error.__cause__, InputError):
        return str(error.__cause__)  # a check of our own, which names its field
    found = _FIELD_ERROR.fullmatch(str(error))
    path = "" if found is None else (found["path"] or "")
    reason = str(error) if found is None else found["expected"]
    wrong = _WRONG_FIELD.fullmatch(reason)
    if wrong is not None:
        problem = "missing" if wrong[1].startswith("missing") else "unknown"
        return f"{path}.{wrong['name']}: is {problem}".lstrip(".")
    try:
        value = _look_up(msgspec.msgpack.decode(content), path)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = content  # damaged behind the field, or nested beyond all bounds
    return f"{path.lstrip('.') or 'header'} = {reprlib.repr(value)}: {reason}"


def _look_up(value: Any, path: str) -> Any:  # noqa: ANN401 — any decoded value
    """The value at a path as `.state.finished[2].work[0]`, or as far as it can be followed."""
    # `[...]` stands for a value of a dictionary whose key is not known.
    for name, place in re.findall(r"\.(\w+)|\[(\d+)\]", path.split("[...]")[0]):
        try:
            value = value[name or int(place)]
        except (KeyError, IndexError, TypeError):
            return value
    return value
