"""JSON as it stands in the files of a run directory, which may be anybody's.

Stricter than Python's own reader: no NaN or infinity, and no half of a surrogate pair, which could not be
written out again.
"""

import json
import re
from typing import Any

from cfel.errors import InputError

_SURROGATE = re.compile(r"\\\\u[dD][89a-fA-F]")


def parse_json(text: str) -> Any:  # noqa: ANN401 — any value of a JSON document
    """The value that the text describes.

    Raises:
        InputError: it is no JSON, or one of the values above.
    """
    try:
        value = json.loads(text, parse_constant=_reject)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error
    return value


def _reject(word: str) -> None:
    raise ValueError(f"{word} is not a value of JSON")
