"""Tables of devices in memory, of any library, as plain columns that `problem_file` can check."""

import math
from collections.abc import Mapping
from typing import Any

from cfel.errors import InputError


def to_columns(table: Any, known: tuple[str, ...]) -> dict[str, list[Any]] | list[dict[str, Any]]:  # noqa: ANN401 — a table of any library
    """The known columns of a table as lists of Python values; others are ignored, as in a file.

    Args:
        table: a mapping of columns, a list of mappings, a pandas or polars frame, or an Arrow table.
        known: names of columns.

    Raises:
        InputError: it is none of these.
    """
    if isinstance(table, list | tuple) and all(isinstance(row, Mapping) for row in table):
        return [{key: _to_plain(key, row[key]) for key in row if key in known} for row in table]
    if isinstance(table, Mapping):
        return {key: _to_list(key, table[key]) for key in table if key in known}
    names = getattr(table, "column_names", getattr(table, "columns", None))
    if names is None:
        raise InputError(
            f"table: is a {type(table).__name__}; must be a path, a mapping of columns, a list of mappings, "
            "a pandas or polars frame, or an Arrow table"
        )
    return {name: _to_list(name, table[name]) for name in map(str, names) if name in known}


def _to_list(key: str, column: Any) -> list[Any]:  # noqa: ANN401 — a column of any library
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(column, method):
            column = getattr(column, method)()
            break
    if not isinstance(column, list | tuple):
        raise InputError(f"table[{key!r}]: is a {type(column).__name__}, must have one entry per device")
    return [_to_plain(key, value) for value in column]


def _to_plain(key: str, value: Any) -> Any:  # noqa: ANN401 — a cell of any type
    """A number or text of Python; libraries write an empty cell as NaN, which stands for no battery limit."""
    plain = value.item() if hasattr(value, "item") else value
    return None if key == "battery" and isinstance(plain, float) and math.isnan(plain) else plain
