"""TOML as it stands in the files of a run directory, which may be anybody's.

Python's reader needs time and memory with the square of the length of a dotted key: 200 kB of `a.a.a…` take
minutes and 9 GB. No key of an experiment has more than a few parts.
"""

import re
import tomllib
from typing import Any

from cfel.errors import InputError

MOST_CHARACTERS = 16 * 1024 * 1024
MOST_PARTS = 32
"""Of a dotted key."""

_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """The document that the text describes.

    Raises:
        InputError: it is no TOML, or beyond the limits above.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{len(text)} characters of TOML, at most {MOST_CHARACTERS} are read")
    if _LONG_KEY.search(text):
        raise InputError(f"a key of more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(str(error)) from error
