"""Columns of a Parquet file as arrays; the only part of this package that needs pyarrow."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray

from cfel.errors import FleetFileError, InputError
from cfel.validation import check_unpacked_size

MAX_TEXT = 10_000
"""Bytes of a name in a table."""


def read_headings(file: Path) -> list[str]:
    try:
        names: list[str] = pa_parquet.read_schema(file).names
    except pa.ArrowException as error:
        raise FleetFileError(f"{file}: cannot be read: {error}") from error
    return names


def read_parquet(file: Path, wanted: list[str], numbers: Collection[str]) -> dict[str, NDArray[Any]]:
    """Reads columns: numbers as float64 with NaN for an empty cell, others as texts without blanks around."""
    try:
        return _read_columns(file, wanted, numbers)
    except pa.ArrowException as error:
        raise FleetFileError(f"{file}: cannot be read: {error}") from error


def _read_columns(file: Path, wanted: list[str], numbers: Collection[str]) -> dict[str, NDArray[Any]]:
    texts = [name for name in wanted if name.strip() not in numbers]
    # Texts stay in a dictionary until their lengths are known: a long one in every row takes no room there.
    source = pa_parquet.ParquetFile(file, read_dictionary=texts)
    try:
        check_unpacked_size(source, len(wanted), file.stat().st_size)
    except InputError as error:
        raise FleetFileError(f"{file}: {error}") from error
    table = source.read(columns=wanted)
    for name in texts:
        _check_lengths(file, name, table[name])
    return {name.strip(): _read_column(file, name, table[name], name not in texts) for name in wanted}


def _read_column(file: Path, name: str, column: pa.ChunkedArray, number: bool) -> NDArray[Any]:
    kind = column.type
    if number and not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise FleetFileError(f"{file}, column {name!r}: is of type {kind}, must be numbers")
    if number:
        values: NDArray[Any] = column.cast(pa.float64()).to_numpy()
        return values
    plain = pc.fill_null(pc.utf8_trim_whitespace(column.cast(pa.string())), "")
    return np.asarray(plain.to_numpy(), dtype=object)


def _check_lengths(file: Path, name: str, column: pa.ChunkedArray) -> None:
    """Rejects texts that are too long to be names."""
    for chunk in column.chunks:
        values = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if pa.types.is_string(values.type) and (pc.max(pc.binary_length(values)).as_py() or 0) > MAX_TEXT:
            raise FleetFileError(f"{file}, column {name!r}: has a text of more than {MAX_TEXT:,} bytes")
