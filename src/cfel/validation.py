"""Checks for numbers, texts, arrays and documents that come from outside: files, options, other processes.

Every `check_…` function returns the value in its final type, or raises an `InputError` that names the field,
the first bad index, the value and what is allowed. Data classes call these in `__post_init__`, so the code
behind them never checks again. This module does not know what the numbers mean.
"""

import json
import math
import operator
import pickle
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cfel.arrays import BoolArray, FloatArray
from cfel.errors import InputError, unknown_name
from cfel.wording import escape_control, show

if TYPE_CHECKING:
    import pyarrow.parquet as pq


MAX_WHOLE = 2**53
"""Largest whole number that is accepted anywhere; beyond it a float is not exact any more."""

_Entry = TypeVar("_Entry", bound=np.generic)
_Kind = TypeVar("_Kind")
_COMPARE: Mapping[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "above": (">", operator.gt),
    "least": ("≥", operator.ge),
    "most": ("≤", operator.le),
    "below": ("<", operator.lt),
}


class Limits(TypedDict, total=False):
    """The range of a number; a limit that is None or not given does not apply."""

    above: float | None  # it must be larger
    least: float | None
    most: float | None
    below: float | None  # it must be smaller
    finite: bool  # whether infinity is forbidden, as it is by default; NaN always is


def check_floats(
    field: str, values: ArrayLike, *, length: int | None = None, **limits: Unpack[Limits]
) -> FloatArray:
    """Returns the values as a read-only float64 vector; the limits are those of every entry."""
    array = _to_vector(field, values, length)
    bad = find_outside(array, **limits)
    if bad is not None:
        raise InputError(f"{field}[{bad}] = {array[bad]!s}: must be {describe_range(**limits)}")
    return make_read_only(array)


def find_outside(array: FloatArray, **limits: Unpack[Limits]) -> int | None:
    """Returns the index of the first entry out of range, or None."""
    good = np.isfinite(array) if limits.get("finite", True) else ~np.isnan(array)
    for within in _compare(array, limits):
        good &= within
    return None if good.all() else int(np.argmin(good))


def _compare(value: object, limits: Limits) -> Iterator[Any]:
    """For each limit, whether a number (or every entry of an array) is within it."""
    given: Mapping[str, object] = limits
    return (
        compare(value, given[name]) for name, (_, compare) in _COMPARE.items() if given.get(name) is not None
    )


def describe_range(*, integral: bool = False, **limits: Unpack[Limits]) -> str:
    """Describes a range in words, for an error message."""
    given: Mapping[str, Any] = limits
    texts = [
        f"{sign} {_write_limit(given[name])}"
        for name, (sign, _) in _COMPARE.items()
        if given.get(name) is not None
    ]
    kind = "a whole number" if integral else "a finite number" if limits.get("finite", True) else "a number"
    return " ".join([kind, " and ".join(texts)]).strip()


def _write_limit(limit: float) -> str:
    """Whole numbers with all their digits: 1,000,000 instead of 1e+06."""
    return f"{int(limit):,}" if abs(limit) <= MAX_WHOLE and limit == int(limit) else f"{limit:g}"


def check_number(field: str, value: object, **limits: Unpack[Limits]) -> float:
    # bool is a subclass of int, but `jitter = true` in a TOML file is a mistake, not a 1.
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{field} = {show(value)}: must be {describe_range(**limits)}")
    try:
        number = float(value)
    except OverflowError as error:
        allowed = describe_range(**limits)
        raise InputError(f"{field}: must be {allowed}, and is larger than any number can be") from error
    real = math.isfinite(number) if limits.get("finite", True) else not math.isnan(number)
    if not real or not all(_compare(number, limits)):
        raise InputError(f"{field} = {value!s}: must be {describe_range(**limits)}")
    return number


def check_whole(field: str, value: object, *, least: int, most: int | None = None) -> int:
    """Returns one whole number within [least, most], and within `MAX_WHOLE` in any case."""
    given = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if given and most is None and value > MAX_WHOLE:  # type: ignore[operator]
        most = MAX_WHOLE
    if not given or value < least or (most is not None and value > most):  # type: ignore[operator]
        allowed = describe_range(least=least, most=most, integral=True)
        raise InputError(f"{field} = {show(value)}: must be {allowed}")
    return int(value)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, slots=True)
class Range:
    """`Limits` in the type of a field, as in `Annotated[float, Range(above=0)]`."""

    above: float | None = None
    least: float | None = None
    most: float | None = None
    below: float | None = None
    finite: bool = True


def check_fields(place: str, parameters: Any) -> None:  # noqa: ANN401 — a dataclass
    """Checks those fields of a dataclass whose types are numbers, texts, switches, or lists of these.

    Of any other type, and of what must fit together, the dataclass itself says what is allowed.
    """
    hints = _read_hints(parameters.__class__)
    for entry in fields(parameters):
        field = f"{place}.{entry.metadata.get('key', entry.name)}"
        _check_type(field, getattr(parameters, entry.name), hints[entry.name])


@cache
def _read_hints(kind: Any) -> dict[str, Any]:  # noqa: ANN401 — a class
    return get_type_hints(kind, include_extras=True)


def _check_type(field: str, value: Any, hint: Any) -> None:  # noqa: ANN401 — any value and type
    if get_origin(hint) in (Union, UnionType):
        first, *others = get_args(hint)
        if others != [NoneType] or value is None:
            return
        hint = first
    limits = Range()
    if get_origin(hint) is Annotated:
        hint, limits = get_args(hint)
    if hint is float:
        check_number(field, value, **asdict(limits))
    elif hint is int and limits.least is not None:
        check_whole(field, value, least=int(limits.least), most=limits.most)  # type: ignore[arg-type]
    elif hint is str:
        check_text(field, value)
    elif hint is bool:
        check_switch(field, value)
    elif get_origin(hint) is Literal:
        check_name(field, value, get_args(hint))
    elif get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        for number, each in enumerate(check_list(field, value)):
            _check_type(f"{field}[{number}]", each, get_args(hint)[0])


def check_interval(field: str, value: object, *, above: float) -> tuple[float, float]:
    """Returns a pair (low, high) with above < low ≤ high."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InputError(f"{field} = {show(value)}: must be two numbers, the lowest and the highest")
    low, high = (check_number(f"{field}[{i}]", bound, above=above) for i, bound in enumerate(value))
    if low > high:
        raise InputError(f"{field} = [{low}, {high}]: the lowest must not exceed the highest")
    return low, high


def check_name(field: str, value: str, allowed: Iterable[str]) -> str:
    """Returns the value if it is one of the allowed names."""
    if value not in allowed:
        raise InputError(unknown_name(field, value, allowed))
    return value


def check_text(field: str, value: object) -> str:
    """Returns a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{field} = {show(value)}: must be text")
    if escape_control(value) != value:
        # Names reach terminals and logs, where such characters could draw anything.
        raise InputError(f"{field} = {show(value)}: must not contain control characters")
    return value


def check_switch(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{field} = {show(value)}: must be true or false")
    return value


def check_list(field: str, value: object) -> tuple[object, ...]:
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


def _to_vector(field: str, values: ArrayLike, length: int | None) -> FloatArray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{field}{_name_first_bad_entry(values)}") from error
    if array.ndim != 1:
        raise InputError(f"{field}: must be one row of numbers, got shape {array.shape}")
    if length is not None and array.size != length:
        raise InputError(f"{field}: must have {length} entries, got {array.size}")
    return array


def _name_first_bad_entry(values: ArrayLike) -> str:
    entries = values if isinstance(values, list | tuple | np.ndarray) else [values]
    for index, entry in enumerate(entries):
        try:
            float(entry)
        except (TypeError, ValueError, OverflowError):
            return f"[{index}] = {show(entry)}: must be a number"
    return ": must be one row of numbers"


FREE_BYTES = 64 * 1024**2
MAX_EXPANSION = 100
"""A table may take `FREE_BYTES` of memory, and this many times the size of its file on top."""


def check_unpacked_size(file: "pq.ParquetFile", columns: int, size: int) -> None:
    """Raises an `InputError` if reading so many columns of numbers would take too much memory.

    Parquet writes equal values once, so a file of few bytes (`size`) can hold a huge table.
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


MOST_CHARACTERS = 64 * 1024 * 1024
"""Of a JSON document: beyond what a fleet of a million devices, or one with a thousand clusters, needs.
`[],[],…` takes twenty times its length in memory."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str, *, finite: bool = True) -> Any:  # noqa: ANN401 — any value of a JSON document
    """Parses JSON that anybody may have written.

    Stricter than Python's own parser: it rejects half of a surrogate pair, which could not be written out
    again, and, if `finite`, NaN and infinity.
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


def convert_document(document: object, kind: type[_Kind]) -> _Kind:
    """Converts a document to a dataclass or another type that msgspec knows; ignores unknown fields."""
    import msgspec  # here, because planning does without it

    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        words, path = [*str(error).rsplit(" - at `$", 1), ""][:2]
        place, value = _follow(document, path)
        shown = "" if isinstance(value, dict | list) else f" = {show(value)}"
        raise InputError(f"{place}{shown}: {words}" if place else words) from error


def check_keys(document: object, kind: type[Any]) -> None:
    """Raises an `InputError` unless a document is a JSON object whose keys are fields of a dataclass."""
    if not isinstance(document, dict):
        raise InputError(f"not a JSON object but {type(document).__name__}")
    names = [each.name for each in fields(kind)]
    for key in document:
        check_name("field", key, names)


def _follow(document: Any, path: str) -> tuple[str, object]:  # noqa: ANN401 — parsed JSON
    """The place that a path in an error of msgspec leads to, as `.clusters[0].mu`, and the value there."""
    place, value = "", document
    for step, key, index in re.findall(r"(\.(\w+)|\[(\d+)\])", path):
        try:
            value = value[key or int(index)]
        except (LookupError, TypeError):
            # Not a path after all, but part of a text in the message.
            break
        place += step
    return place.removeprefix("."), value


MOST_TOML_CHARACTERS = 16 * 1024 * 1024
MOST_PARTS = 32
"""Of a dotted key. Python's parser needs time and memory with the square of the length of such a key: 200 kB
of `a.a.a…` take minutes and 9 GB. No key of an experiment has more than a few parts."""

_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Parses TOML that anybody may have written."""
    if len(text) > MOST_TOML_CHARACTERS:
        raise InputError(f"{len(text)} characters of TOML, at most {MOST_TOML_CHARACTERS} are read")
    if _LONG_KEY.search(text):
        raise InputError(f"a key of more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(str(error)) from error


_NOT_A_PICKLE = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError),
    *(IndexError, MemoryError, OverflowError, ImportError, RecursionError),
)


def load_pickle(
    path: Path, what: str, known: Mapping[str, object] = MappingProxyType({}), encoding: str = "ASCII"
) -> Any:  # noqa: ANN401 — any plain value
    """Reads a pickle without trusting it: it can run any code, so it may refer to nothing but `known` names.

    By default there are none ("module.name" → what stands for it), so that it can hold dictionaries, lists,
    texts and numbers only. `encoding` is that of texts that Python 2 wrote.
    """

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            if f"{module}.{name}" not in known:
                raise InputError(
                    f"{path}: rejected: it refers to {module}.{name}, which is not part of {what}"
                )
            return known[f"{module}.{name}"]

    with path.open("rb") as file:
        try:
            return Reader(file, encoding=encoding).load()
        except _NOT_A_PICKLE as error:
            reason = str(error) or type(error).__name__
            raise InputError(f"{path}: not {what}: {reason}") from error
