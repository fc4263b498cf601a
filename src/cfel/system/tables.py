"""Reads columns of a CSV or Parquet file, with errors that say where: file, line, column, value.

pyarrow reads at full speed; only when something is wrong is the file searched for the place. The caller knows
what the columns mean. In a CSV the heading is line 1; the rows of a Parquet file count from 1.
"""

import csv
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import FleetFileError, InputError, describe_error
from cfel.parquet_size import check_unpacked_size
from cfel.system.headings import check_headings

YES = ("1", "1.0", "true")
NO = ("0", "0.0", "false")

MAX_TEXT = 10_000
"""Bytes of a name in a table."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of one file; numbers are float64 with NaN for an empty cell, texts are stripped of blanks.

    Attributes:
        path: where they came from.
        columns: by name, without the blanks around it.
    """

    path: Path
    columns: pa.Table

    @property
    def rows(self) -> int:
        """Number of devices, readings, ..."""
        return int(self.columns.num_rows)

    def has(self, column: str) -> bool:
        """Whether the file has this column."""
        return column in self.columns.column_names

    def floats(
        self,
        column: str,
        *,
        above: float | None = None,
        least: float | None = None,
        most: float | None = None,
        blank: float | None = None,
    ) -> FloatArray:
        """A column of finite numbers in a range.

        Args:
            column: its name.
            above: every number must be larger than this.
            least: every number must be at least this.
            most: every number must be at most this.
            blank: what an empty cell stands for; None if it must not be empty.
        """
        values = self.columns[column].combine_chunks()
        if blank is not None:
            values = values.fill_null(blank)
        array: FloatArray = values.to_numpy(zero_copy_only=False)
        row = validation.find_outside(array, above=above, least=least, most=most, finite=blank is None)
        if row is not None:
            raise self.error(column, row, validation.describe_range(above=above, least=least, most=most))
        return validation.make_read_only(array)

    def integers(self, column: str) -> IntArray:
        """A column of whole numbers ≥ 0."""
        array = self.floats(column, least=0, most=2**53)
        odd = array != np.round(array)
        if odd.any():
            raise self.error(column, int(np.argmax(odd)), "a whole number ≥ 0")
        return array.astype(np.int64)

    def texts(self, column: str) -> pa.Array:
        """A column of texts, none of them empty."""
        texts = self.columns[column].combine_chunks()
        filled = pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False).to_numpy(zero_copy_only=False)
        if not filled.all():
            raise self.error(column, int(np.argmin(filled)), "a number or a name")
        return texts

    def booleans(self, column: str) -> BoolArray:
        """A column of 1 or 0, true or false, read as text."""
        texts = pc.utf8_lower(self.texts(column))
        yes, no = (pc.is_in(texts, pa.array(words)).to_numpy(zero_copy_only=False) for words in (YES, NO))
        unclear = ~(yes | no)
        if unclear.any():
            raise self.error(column, int(np.argmax(unclear)), "1 or 0, true or false")
        return validation.make_read_only(yes)

    def error(self, column: str, row: int, allowed: str) -> FleetFileError:
        """Returns the error for one cell; `row` counts from 0."""
        if _is_parquet(self.path):
            place, value = f"row {row + 1}", repr(self.columns[column][row].as_py())
        else:
            line, fields = _read_record(self.path, row)
            place, value = f"line {line}", repr(fields.get(column, "").strip())
        return FleetFileError(f"{self.path}, {place}, column {column!r}: {value}: must be {allowed}")


def read_table(
    path: str | Path, required: Collection[str], numbers: Collection[str], texts: Collection[str]
) -> Table:
    """Reads the named columns of a file; others are ignored, unless their names resemble one of these.

    Args:
        path: a Parquet file if it ends in .parquet, else CSV with a heading, comma-separated, UTF-8.
        required: columns that must be there.
        numbers: columns to read as numbers.
        texts: columns to read as text.

    Raises:
        FleetFileError: the file cannot be read, lacks a column or misspells one, or a number is not one.
    """
    file = Path(path)
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise FleetFileError(f"{file}: cannot be read: it is not a regular file")
    try:
        headings = pa_parquet.read_schema(file).names if _is_parquet(file) else _read_headings(file)[1]
        place = f"{file}" if _is_parquet(file) else f"{file}, line {_read_headings(file)[0]}"
        check_headings(place, headings, required, {*numbers, *texts})
        wanted = [name for name in headings if name.strip() in {*numbers, *texts}]
        read = _read_parquet if _is_parquet(file) else _read_csv
        table = read(file, wanted, numbers)
    except (OSError, UnicodeDecodeError, pa.ArrowException, csv.Error) as error:
        raise FleetFileError(f"{file}: cannot be read: {describe_error(error)}") from error
    if table.num_rows == 0:
        raise FleetFileError(f"{file}: has a heading but no rows; must have at least 1")
    return Table(file, table)


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def _read_headings(file: Path) -> tuple[int, list[str]]:
    """The line of the heading and its fields; line 1, unless empty lines come first."""
    return next(_read_records(file), (0, []))


def _read_csv(file: Path, wanted: list[str], numbers: Collection[str]) -> pa.Table:
    """Reads numbers straight to float64; if one of them is not a number, looks for it."""
    types = {name: pa.float64() if name.strip() in numbers else pa.string() for name in wanted}
    line, headings = _read_headings(file)
    # pyarrow rejects a file with a heading only; `read_table` has a better message for that.
    if next(islice(_read_records(file), 1, None), None) is None:
        return pa.table({})
    read = pa_csv.ReadOptions(column_names=headings, skip_rows=line)
    convert = pa_csv.ConvertOptions(
        column_types=types, include_columns=wanted, null_values=[""], strings_can_be_null=True
    )
    try:
        table = pa_csv.read_csv(file, read_options=read, convert_options=convert)
    except pa.ArrowInvalid as error:
        raise _find_bad_record(file, headings, numbers, str(error)) from error
    return _strip_blanks(table)


def _read_parquet(file: Path, wanted: list[str], numbers: Collection[str]) -> pa.Table:
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
    for place, name in enumerate(wanted):
        number, kind = name.strip() in numbers, table[name].type
        if number and not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise FleetFileError(f"{file}, column {name!r}: is of type {kind}, must be numbers")
        table = table.set_column(place, name, table[name].cast(pa.float64() if number else pa.string()))
    return _strip_blanks(table)


def _check_lengths(file: Path, name: str, column: pa.ChunkedArray) -> None:
    """Rejects texts that are too long to be names."""
    for chunk in column.chunks:
        values = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if pa.types.is_string(values.type) and (pc.max(pc.binary_length(values)).as_py() or 0) > MAX_TEXT:
            raise FleetFileError(f"{file}, column {name!r}: has a text of more than {MAX_TEXT:,} bytes")


def _strip_blanks(table: pa.Table) -> pa.Table:
    for place, name in enumerate(table.column_names):
        if pa.types.is_string(table[name].type):
            table = table.set_column(place, name, pc.utf8_trim_whitespace(table[name]))
    return table.rename_columns([name.strip() for name in table.column_names])


def _read_records(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every record that is not empty, the heading first."""
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        records = csv.reader(lines)
        for record in records:
            if record:
                yield records.line_num, record


def _read_record(file: Path, row: int) -> tuple[int, dict[str, str]]:
    names = [heading.strip() for heading in _read_headings(file)[1]]
    for place, (line, fields) in enumerate(_read_records(file)):
        if place == row + 1:
            return line, dict(zip(names, fields, strict=False))
    raise FleetFileError(f"{file}: changed while it was read")


def _find_bad_record(
    file: Path, headings: list[str], numbers: Collection[str], reason: str
) -> FleetFileError:
    places = {place: name.strip() for place, name in enumerate(headings) if name.strip() in numbers}
    line, place, fields = 0, 0, headings
    try:
        for line, fields in islice(_read_records(file), 1, None):
            if len(fields) != len(headings):
                return FleetFileError(
                    f"{file}, line {line}: has {len(fields)} fields, must have {len(headings)}"
                    f"{_suspect_decimal_commas(fields, headings)}"
                )
            for place in places:
                float(fields[place] or "nan")
    except ValueError:
        value = fields[place].strip()
        comma = ", with a point as decimal mark" if re.fullmatch(r"[-+]?\d*,\d+", value) else ""
        return FleetFileError(
            f"{file}, line {line}, column {places[place]!r}: {value!r}: must be a number{comma}"
        )
    return FleetFileError(f"{file}: cannot be read: {reason}")


def _suspect_decimal_commas(fields: list[str], headings: list[str]) -> str:
    """A hint if decimal commas would explain why a line has so many more fields than the heading."""
    whole = sum(re.fullmatch(r"\s*[-+]?\d+\s*", field) is not None for field in fields)
    if len(headings) < len(fields) <= 2 * len(headings) and whole >= 2 * (len(fields) - len(headings)):
        return "; are there decimal commas? Numbers need a point as decimal mark"
    return ""
