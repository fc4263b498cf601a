"""Grammar of messages and pages: numbers with their nouns, values of any kind. Sentences stay elsewhere."""

import math
import re

_MAX_SHOWN = 200
# Control characters, separators of lines, changes of the writing direction, and halves of surrogate pairs.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plural(count: int, noun: str) -> str:
    """A number with its noun, which has a plural in -s: "1 round", "2 rounds", "10,000 devices"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_amount(value: float, places: int = 0) -> str:
    """A time, an energy or a percentage: at least three significant digits and so many decimal places.

    "2,199", "383", "56.1", "0.0663".
    """
    if not math.isfinite(value) or 0 < abs(value) < 1e-4:
        return f"{value:.3g}"
    leading = math.floor(math.log10(abs(value))) if value else 2
    return f"{value:,.{max(places, 2 - leading)}f}"


def show(value: object) -> str:
    """A value as an error message shows it: not longer than a few lines, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # Python does not write out whole numbers of thousands of digits.
        return f"a huge {type(value).__name__}"
    return shorten(text)


def shorten(text: str, most: int = _MAX_SHOWN) -> str:
    """The text, or as many of its first characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def escape_control(text: str) -> str:
    """Spells out control characters, with which a file or a peer could draw on the terminal."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
