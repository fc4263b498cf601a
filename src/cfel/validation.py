"""Numbers and arrays of numbers as they come in from outside, checked once at the door.

Every function returns the value in its final type or raises an `InputError` that names the field, the first
offending index, the value and what is allowed. It knows nothing of what the numbers mean.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cfel.arrays import BoolArray, FloatArray
from cfel.errors import InputError

_Entry = TypeVar("_Entry", bound=np.generic)


def floats(
    field: str,
    values: ArrayLike,
    *,
    length: int | None = None,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    finite: bool = True,
) -> FloatArray:
    """A read-only float64 vector.

    Args:
        field: what the user calls it.
        values: what was given.
        length: how many entries there must be; None for any number.
        above: every entry must be larger than this.
        least: every entry must be at least this.
        most: every entry must be at most this.
        finite: whether infinity is forbidden; NaN always is.
    """
    array = _vector(field, values, length)
    bad = first_outside(array, above=above, least=least, most=most, finite=finite)
    if bad is not None:
        allowed = range_in_words(above=above, least=least, most=most, finite=finite)
        raise InputError(f"{field}[{bad}] = {array[bad]!s}: must be {allowed}")
    return read_only(array)


def first_outside(
    array: FloatArray,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    finite: bool = True,
) -> int | None:
    """Index of the first entry out of range (see `floats`), or None."""
    good = np.isfinite(array) if finite else ~np.isnan(array)
    if above is not None:
        good &= array > above
    if least is not None:
        good &= array >= least
    if most is not None:
        good &= array <= most
    return None if good.all() else int(np.argmin(good))


def range_in_words(
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    finite: bool = True,
    integral: bool = False,
) -> str:
    """The range of `number` or of `whole`, for an error message."""
    signs = ((">", above), ("≥", least), ("≤", most), ("<", below))
    limits = [f"{sign} {limit:g}" for sign, limit in signs if limit is not None]
    kind = "a whole number" if integral else "a finite number" if finite else "a number"
    return " ".join([kind, " and ".join(limits)]).strip()


def number(
    field: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    finite: bool = True,
) -> float:
    """One real number in a range (see `floats`) and smaller than `below`; a truth value is not a number."""
    allowed = range_in_words(above=above, least=least, most=most, below=below, finite=finite)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{field} = {value!r}: must be {allowed}")
    outside = first_outside(np.array([value], float), above=above, least=least, most=most, finite=finite)
    if outside is not None or (below is not None and not value < below):
        raise InputError(f"{field} = {value!s}: must be {allowed}")
    return float(value)


def whole(field: str, value: object, *, least: int, most: int | None = None) -> int:
    """One whole number within [least, most]."""
    given = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not given or value < least or (most is not None and value > most):  # type: ignore[operator]
        allowed = range_in_words(least=least, most=most, integral=True)
        raise InputError(f"{field} = {value!r}: must be {allowed}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def interval(field: str, value: object, *, above: float) -> tuple[float, float]:
    """A pair (low, high) with above < low ≤ high."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InputError(f"{field} = {value!r}: must be two numbers, the lowest and the highest")
    low, high = (number(f"{field}[{i}]", bound, above=above) for i, bound in enumerate(value))
    if low > high:
        raise InputError(f"{field} = [{low}, {high}]: the lowest must not exceed the highest")
    return low, high


def text(field: str, value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{field} = {value!r}: must be text")
    return value


def entries(field: str, value: object) -> tuple[object, ...]:
    """A list, whatever it holds."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{field} = {value!r}: must be a list")
    return tuple(value)


def booleans(field: str, values: ArrayLike, *, length: int) -> BoolArray:
    """A read-only vector of truth values."""
    array = np.asarray(values)
    if array.dtype != np.bool_:
        raise InputError(f"{field}: must be truth values, got {array.dtype}")
    if array.shape != (length,):
        raise InputError(f"{field}: must have {length} entries, got shape {array.shape}")
    return read_only(array)


def read_only(array: NDArray[_Entry]) -> NDArray[_Entry]:
    """A view through which nobody writes."""
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
            return f"[{index}] = {entry!r}: must be a number"
    return ": must be one row of numbers"
