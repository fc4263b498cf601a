"""Checks for numbers, texts and arrays that come from outside: files, options, other processes.

Every `check_…` function returns the value in its final type, or raises an `InputError` that names the field,
the first bad index, the value and what is allowed. Data classes call these in `__post_init__`, so the code
behind them never checks again. This module does not know what the numbers mean.
"""

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cfel.arrays import BoolArray, FloatArray
from cfel.errors import InputError
from cfel.wording import escape_control, show

if TYPE_CHECKING:
    import pyarrow.parquet as pq


MAX_WHOLE = 2**53
"""Largest whole number that is accepted anywhere; beyond it a float is not exact any more."""

_Entry = TypeVar("_Entry", bound=np.generic)


def check_floats(
    field: str,
    values: ArrayLike,
    *,
    length: int | None = None,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    finite: bool = True,
) -> FloatArray:
    """Returns the values as a read-only float64 vector.

    Args:
        field: the name the user knows it by, for the error message.
        values: what was given.
        length: how many entries there must be; None for any number.
        above: every entry must be larger than this.
        least: every entry must be at least this.
        most: every entry must be at most this.
        finite: whether infinity is forbidden; NaN always is.
    """
    array = _vector(field, values, length)
    bad = find_outside(array, above=above, least=least, most=most, finite=finite)
    if bad is not None:
        allowed = describe_range(above=above, least=least, most=most, finite=finite)
        raise InputError(f"{field}[{bad}] = {array[bad]!s}: must be {allowed}")
    return make_read_only(array)


def find_outside(
    array: FloatArray,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    finite: bool = True,
) -> int | None:
    """Returns the index of the first entry out of range (see `check_floats`), or None."""
    good = np.isfinite(array) if finite else ~np.isnan(array)
    if above is not None:
        good &= array > above
    if least is not None:
        good &= array >= least
    if most is not None:
        good &= array <= most
    return None if good.all() else int(np.argmin(good))


def describe_range(
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    finite: bool = True,
    integral: bool = False,
) -> str:
    """Describes the range of `check_number` or `check_whole` in words, for an error message."""
    signs = ((">", above), ("≥", least), ("≤", most), ("<", below))
    limits = [f"{sign} {_write_limit(limit)}" for sign, limit in signs if limit is not None]
    kind = "a whole number" if integral else "a finite number" if finite else "a number"
    return " ".join([kind, " and ".join(limits)]).strip()


def _write_limit(limit: float) -> str:
    """Whole numbers with all their digits: 1,000,000 instead of 1e+06."""
    return f"{int(limit):,}" if abs(limit) <= MAX_WHOLE and limit == int(limit) else f"{limit:g}"


def check_number(
    field: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    finite: bool = True,
) -> float:
    """Returns one real number in a range (see `check_floats`) and smaller than `below`."""
    # bool is a subclass of int, but `jitter = true` in a TOML file is a mistake, not a 1.
    allowed = describe_range(above=above, least=least, most=most, below=below, finite=finite)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{field} = {show(value)}: must be {allowed}")
    try:
        array = np.array([value], float)
    except OverflowError as error:
        raise InputError(f"{field}: must be {allowed}, and is larger than any number can be") from error
    outside = find_outside(array, above=above, least=least, most=most, finite=finite)
    if outside is not None or (below is not None and not value < below):
        raise InputError(f"{field} = {value!s}: must be {allowed}")
    return float(value)


def check_whole(field: str, value: object, *, least: int, most: int | None = None) -> int:
    """Returns one whole number within [least, most], and within `MAX_WHOLE` in any case."""
    given = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if given and most is None and value > MAX_WHOLE:  # type: ignore[operator]
        most = MAX_WHOLE
    if not given or value < least or (most is not None and value > most):  # type: ignore[operator]
        allowed = describe_range(least=least, most=most, integral=True)
        raise InputError(f"{field} = {show(value)}: must be {allowed}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_interval(field: str, value: object, *, above: float) -> tuple[float, float]:
    """Returns a pair (low, high) with above < low ≤ high."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InputError(f"{field} = {show(value)}: must be two numbers, the lowest and the highest")
    low, high = (check_number(f"{field}[{i}]", bound, above=above) for i, bound in enumerate(value))
    if low > high:
        raise InputError(f"{field} = [{low}, {high}]: the lowest must not exceed the highest")
    return low, high


def check_text(field: str, value: object) -> str:
    """Returns a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{field} = {show(value)}: must be text")
    if escape_control(value) != value:
        # Names reach terminals and logs, where such characters could draw anything.
        raise InputError(f"{field} = {show(value)}: must not contain control characters")
    return value


def check_switch(field: str, value: object) -> bool:
    """Returns the value if it is true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{field} = {show(value)}: must be true or false")
    return value


def check_list(field: str, value: object) -> tuple[object, ...]:
    """Returns the entries of a list, of any type."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{field} = {show(value)}: must be a list")
    return tuple(value)


def check_booleans(field: str, values: ArrayLike, *, length: int) -> BoolArray:
    """Returns a read-only vector of truth values."""
    array = np.asarray(values)
    if array.dtype != np.bool_:
        raise InputError(f"{field}: must be truth values, got {array.dtype}")
    if array.shape != (length,):
        raise InputError(f"{field}: must have {length} entries, got shape {array.shape}")
    return make_read_only(array)


def make_read_only(array: NDArray[_Entry]) -> NDArray[_Entry]:
    """Returns a view that cannot be written to; the array itself stays as it is."""
    view = array.view()
    view.flags.writeable = False
    return view


def _vector(field: str, values: ArrayLike, length: int | None) -> FloatArray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{field}{_first_not_a_number(values)}") from error
    if array.ndim != 1:
        raise InputError(f"{field}: must be one row of numbers, got shape {array.shape}")
    if length is not None and array.size != length:
        raise InputError(f"{field}: must have {length} entries, got {array.size}")
    return array


def _first_not_a_number(values: ArrayLike) -> str:
    entries = values if isinstance(values, list | tuple | np.ndarray) else [values]
    for index, entry in enumerate(entries):
        try:
            float(entry)
        except (TypeError, ValueError, OverflowError):
            return f"[{index}] = {show(entry)}: must be a number"
    return ": must be one row of numbers"


# --------------------------------------------------------------------------------------------------
# How large the columns of a Parquet file will be, checked before they are read.
#
# Equal values are written once, so that a small file can hold a huge table. Knows nothing of what the
# columns
# mean.


FREE_BYTES = 64 * 1024**2
MAX_EXPANSION = 100
"""A table may take `FREE_BYTES` of memory, and this many times the size of its file on top."""


def check_unpacked_size(file: "pq.ParquetFile", columns: int, size: int) -> None:
    """Raises an `InputError` if reading some columns of numbers would take too much memory.

    Args:
        file: the opened file.
        columns: how many will be read.
        size: bytes of the file.
    """
    facts = file.metadata
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    unpacked = sum(
        group.column(number).total_uncompressed_size
        for group in groups
        for number in range(group.num_columns)
    )
    rows = max(facts.num_rows, sum(group.num_rows for group in groups))
    most = FREE_BYTES + MAX_EXPANSION * size
    if max(unpacked, rows * columns * 8) > most or min(unpacked, rows) < 0:
        raise InputError(f"its {rows:,} rows would take more than {most:,} bytes, for a file of {size:,}")


# --------------------------------------------------------------------------------------------------
# JSON as it stands in the files of a run directory, which may be anybody's.
#
# Stricter than Python's own reader: no NaN or infinity, no half of a surrogate pair, which could not be
# written
# out again, and no text that would take all of the memory: `[],[],…` takes twenty times its length.


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


# --------------------------------------------------------------------------------------------------
# TOML as it stands in the files of a run directory, which may be anybody's.
#
# Python's reader needs time and memory with the square of the length of a dotted key: 200 kB of `a.a.a…`
# take
# minutes and 9 GB. No key of an experiment has more than a few parts.


MOST_TOML_CHARACTERS = 16 * 1024 * 1024
MOST_PARTS = 32
"""Of a dotted key."""

_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """The document that the text describes.

    Raises:
        InputError: it is no TOML, or beyond the limits above.
    """
    if len(text) > MOST_TOML_CHARACTERS:
        raise InputError(f"{len(text)} characters of TOML, at most {MOST_TOML_CHARACTERS} are read")
    if _LONG_KEY.search(text):
        raise InputError(f"a key of more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(str(error)) from error
