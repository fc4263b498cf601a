"""Random changes to bytes and to documents, drawn from a seeded generator: a case can be made again."""

import copy
import random
from collections.abc import Iterator, MutableMapping, MutableSequence
from typing import Any

NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63)),
    *(10**23, 10**400, -(10**400), 0.0, -0.0, 0.5, 1e-300, 1e100, 1e300, 1.7e308, -1.7e308),
    *(float("inf"), float("-inf"), float("nan"), "", "x", "0", "nan", "inf", "-1", "1e400", "a:b", "cef:x"),
    *("os:system", "../../x", "/etc/passwd", "\x00", "\x1b[31m", "<script>", "é" * 300, "x" * 5000, "²"),
    *([], {}, [[]], [{}], {"": None}, [None], [-1], [10**23], ["x"], {"x": 1}, [[1, 2], [3]], [float("nan")]),
)
"""Values that parsers forget."""


def draw_nasty(draw: random.Random) -> Any:
    """One of `NASTY`, as a copy: what is changed in one case must not show in the next."""
    return copy.deepcopy(draw.choice(NASTY))


def change_bytes(draw: random.Random, content: bytes) -> bytes:
    """The content with one to four changes: bits flipped, parts cut, doubled, overwritten or added."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(found) + 1)
        width = draw.choice((1, 2, 4, 8, 64, 4096))
        match draw.randrange(7):
            case 0 if found:
                found[place % len(found)] ^= 1 << draw.randrange(8)
            case 1:
                del found[place:]
            case 2:
                del found[place : place + width]
            case 3:
                found[place:place] = found[place : place + width]
            case 4:
                found[place : place + width] = draw.randbytes(width)
            case 5:
                found[place : place + width] = draw.choice((b"\x00", b"\xff", b"\x7f", b"9")) * width
            case _:
                found += draw.randbytes(width)
    return bytes(found)


def change_document(draw: random.Random, document: Any) -> Any:
    """The document with one to three of its values replaced, removed, doubled or added."""
    for _ in range(draw.randint(1, 3)):
        places = list(_places(document))
        if not places:
            return draw_nasty(draw)
        holder, key = draw.choice(places)
        match draw.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, holder[key])
            case 2 if isinstance(holder, dict):
                holder[draw.choice(("", "x", "round", "name", "speed"))] = draw_nasty(draw)
            case 3:
                holder[key] = _nested(draw.choice((3, 10, 100)))
            case 4 if isinstance(holder[key], int | float) and abs(holder[key]) < 2**64:
                holder[key] *= draw.choice((-1, 0, 2, 1e-3, 1e6))
            case _:
                holder[key] = draw_nasty(draw)
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in the document, as the list or table that holds it and its key there."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(document, MutableMapping):
        pairs = list(document.items())
    elif isinstance(document, MutableSequence):
        # The ends are enough: long lists hold the same kind of value.
        pairs = [(n, document[n]) for n in {0, 1, len(document) - 1} if 0 <= n < len(document)]
    for key, value in pairs:
        yield document, key
        yield from _places(value)


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found
