"""Typed values as bytes: MessagePack by msgspec, NumPy arrays as raw numbers; nothing is pickled.

The one codec of a deployment: for requests and answers, and for what nodes keep on their disks. Types, ranges
and lengths are checked while decoding, so code behind it works with valid values only. A value that is not
valid is rejected with its field, its value and what is expected there.
"""

import re
import reprlib
import sys
from functools import partial
from typing import Annotated, Any, TypeVar, get_args

import msgspec
import numpy as np

from cfel.deployment.transport.messages import NO_BODY, Body, Message
from cfel.errors import InputError, RejectedError
from cfel.wording import shorten

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
    return Message(encode(value), *bodies)


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
