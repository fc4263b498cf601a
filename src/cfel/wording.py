"""Grammar of messages and pages: numbers with their nouns, values of any kind. Sentences stay elsewhere."""

import math
import re

NOTHING = "–"
"""Stands for a number that is not known, or was not reached."""
NO_BREAK = "\N{NO-BREAK SPACE}"
"""Between a number and its unit, which must not be separated at the end of a line."""
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


def format_seconds(value: float | None, half_width: float | None = None) -> str:
    """Seconds, with half the width of their confidence interval if given."""
    return _format_interval(value, half_width, 1.0, "s")


def format_joules(value: float | None, half_width: float | None = None) -> str:
    for size, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if value is not None and abs(value) >= 10 * size:
            return _format_interval(value, half_width, size, unit)
    return _format_interval(value, half_width, 1.0, "J")


def format_gain(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}×"


def format_bytes(value: float | None) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value is not None and value >= size:
            return _format_interval(value, None, size, unit)
    return NOTHING if value is None else f"{value:.0f}{NO_BREAK}B"


def format_share(used: float | None, budget: float | None) -> str:
    """What was used of a budget, in per cent."""
    return NOTHING if used is None or not budget else f"{format_amount(100 * used / budget)}{NO_BREAK}%"


def _format_interval(value: float | None, half_width: float | None, size: float, unit: str) -> str:
    if value is None:
        return NOTHING
    text = format_amount(value / size)
    if half_width:
        text += f" ± {format_amount(half_width / size)}"
    return f"{text}{NO_BREAK}{unit}"


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
