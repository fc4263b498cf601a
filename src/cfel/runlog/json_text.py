"""JSON as it stands in the files of a run directory, which may be anybody's.

Stricter than Python's own reader: no NaN or infinity, no half of a surrogate pair, which could not be written
out again, and no text that would take all of the memory: `[],[],…` takes twenty times its length.
"""

import json
import re
from typing import Any

from cfel.errors import InputError

MOST_CHARACTERS = 64 * 1024 * 1024
"""Beyond what a fleet of a million devices, or one with a thousand clusters, needs."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str, *, finite: bool = True) -> Any:  # noqa: ANN401 — any value of a JSON document
    """The value that the text describes.

    Args:
        text: the document.
        finite: whether NaN and infinity are rejected.

    Raises:
        InputError: it is no JSON, one of the values above, or too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{len(text)} characters of JSON, at most {MOST_CHARACTERS} are read")
    try:
        value = json.loads(text, parse_constant=_reject if finite else None)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error
    return value


def _reject(word: str) -> None:
    raise ValueError(f"{word} is not a value of JSON")
