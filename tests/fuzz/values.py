"""Values that a type accepts, drawn from the type itself: a new kind of message needs nothing here."""

import random
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from cfel.deployment.protocol.messages import Body

_DEPTH = 12


def make_value(draw: random.Random, kind: Any, depth: int = 0) -> Any:
    """A value that `kind` accepts, or nearly; as MessagePack knows it: tables, lists, numbers, texts."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _make_bounded(draw, arguments[0], arguments[1:], depth)
    if origin in (Union, types.UnionType):
        chosen = [each for each in arguments if each is not type(None)]
        absent = len(chosen) < len(arguments) and (depth > _DEPTH or draw.random() < 0.3)
        return None if absent else make_value(draw, draw.choice(chosen), depth + 1)
    if origin is Literal:
        return draw.choice(arguments)
    if origin is np.ndarray:
        return _make_array(draw, kind)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return [make_value(draw, each, depth + 1) for each in arguments]
    if origin in (tuple, list):
        return [make_value(draw, arguments[0], depth + 1) for _ in range(draw.randrange(4))]
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        places = range(draw.randrange(3))
        return {
            _key(make_value(draw, arguments[0], depth)): make_value(draw, arguments[1], depth) for _ in places
        }
    if is_dataclass(origin):
        # What its parameter stands for: a model's SHA-256, in an order.
        return _make_table(draw, origin, depth) | {"model": make_value(draw, arguments[0], depth)}
    return _make_plain(draw, kind, depth)


def _make_plain(draw: random.Random, kind: Any, depth: int) -> Any:
    if kind is bool:
        return draw.random() < 0.5
    if kind is int:
        return draw.choice((0, 1, 2, 5, 1000))
    if kind is float:
        return draw.choice((0.0, 0.5, 1.0, 3.25, 1e9))
    if kind is str:
        return draw.choice(("", "x", "clock", "idle", "training", "0" * 64, "0" * 64, "edge-0"))
    if kind is bytes:
        return draw.randbytes(8)
    # No sender has functions in its messages.
    if kind in (Body, type(None), Any, object) or isinstance(kind, TypeVar) or get_origin(kind) is Callable:
        return None
    if isinstance(kind, type) and issubclass(kind, tuple):
        return [make_value(draw, each, depth + 1) for each in get_type_hints(kind).values()]
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        return _make_table(draw, kind, depth)
    raise TypeError(f"no values of {kind} are known here")


def _make_table(draw: random.Random, kind: Any, depth: int) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    names = kind.__struct_fields__ if hasattr(kind, "__struct_fields__") else [f.name for f in fields(kind)]
    table = {name: make_value(draw, hints[name], depth + 1) for name in names}
    # What is checked by code and not by its type.
    table |= {name: "ab" * 32 for name in table if "sha256" in name}
    tag = getattr(getattr(kind, "__struct_config__", None), "tag", None)
    return table if tag is None else {kind.__struct_config__.tag_field: tag, **table}


def _make_bounded(draw: random.Random, kind: Any, bounds: tuple[Any, ...], depth: int) -> Any:
    for bound in bounds:
        if isinstance(bound, msgspec.Meta) and bound.pattern is not None:
            return draw.choice(("0123456789abcdef" * 4, "f" * 64, "0" * 64))
        if isinstance(bound, msgspec.Meta) and kind is float:
            return draw.choice((0.25, 0.5, 1.0))
        if isinstance(bound, msgspec.Meta) and kind is str:
            return "clock"
    return make_value(draw, kind, depth)


def _make_array(draw: random.Random, kind: Any) -> list[Any]:
    """As the codec writes an array: its type, its shape and its bytes."""
    wanted = [part for part in get_args(get_args(kind)[1]) if part is not Any]
    dtype = np.dtype(wanted[0]) if wanted else np.dtype(draw.choice(("<f8", "<i4")))
    numbers = np.array([draw.choice((0, 1, 1, 2)) for _ in range(3)]).astype(dtype)
    return [numbers.dtype.str, list(numbers.shape), numbers.tobytes()]


def _key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
