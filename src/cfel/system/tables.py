"""Reads columns of a CSV or Parquet file, with errors that say where: file, line, column, value.

Only when something is wrong is the file searched for the place. The caller knows what the columns mean. In a
CSV the heading is line 1; the rows of a Parquet file count from 1. Parquet needs pyarrow, CSV does not.
"""

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import FleetFileError, InputError, describe_error
from cfel.extras import explain_missing_extra

if TYPE_CHECKING:
    import pyarrow as pa

MISSPELT = 0.75
"""Similarity of names, from 0 to 1, from which on one counts as the other misspelt."""
MAX_TEXT = 10_000
"""Bytes of a name in a Parquet file."""

_SEPARATORS = ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"))


def check_headings(
    place: str, headings: Sequence[str], required: Collection[str], known: Collection[str]
) -> None:
    """Checks the names of all columns; `known` are the required and the optional ones.

    A misspelt optional column would otherwise be ignored, and the file would mean something else.
    """
    names = [heading.strip() for heading in headings]
    if not any(names):
        file = place.partition(", line")[0]
        raise FleetFileError(f"{file}: is empty; must have a heading with the columns {', '.join(required)}")
    _reject_separators(place, names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FleetFileError(f"{place}: column {twice!r} occurs twice")
    for column in required:
        if column not in names:
            free = [name for name in names if name not in required]
            near = [n for n in free if n.lower() == column.lower()] or get_close_matches(column, free, n=1)
            hint = f"; is {near[0]!r} meant?" if near else ""
            found = ", ".join(repr(name) for name in names)
            raise FleetFileError(f"{place}: column {column!r} is missing{hint} (found: {found})")
    _reject_misspelt(place, names, known)


def _reject_separators(place: str, names: Sequence[str]) -> None:
    """Raises if a heading of one field has separators other than commas."""
    for sign, word in _SEPARATORS:
        if len(names) == 1 and sign in names[0]:
            raise FleetFileError(
                f"{place}: the columns seem to be separated by {word} ({names[0]!r}); must be separated by "
                "commas, with points as decimal marks"
            )


def _reject_misspelt(place: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raises for a column that would be ignored although it is named almost like an absent one."""
    absent = sorted(set(known).difference(names))
    for name in names:
        if name in known:
            continue
        near = [each for each in absent if _simplify(each) == _simplify(name)]
        near = near or get_close_matches(name.lower(), absent, n=1, cutoff=MISSPELT)
        if near:
            raise FleetFileError(
                f"{place}: column {name!r} is unknown; is {near[0]!r} meant? Rename or remove it; columns "
                "with other names are ignored"
            )


def _simplify(name: str) -> str:
    """A name without case, blanks, hyphens, underscores, a unit and a plural's s."""
    return re.sub(r"[\s_-]|[\s_-]*(joules|seconds|watts|s)$", "", name.strip().lower())


YES = ("1", "1.0", "true")
NO = ("0", "0.0", "false")

CHUNK = 65_536
"""Records that are converted at once: few enough that their texts take little memory."""

Texts = NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of one file; numbers are float64 with NaN for an empty cell, texts are stripped of blanks."""

    path: Path
    columns: Mapping[str, NDArray[Any]]  # by name, without the blanks around it

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def has(self, column: str) -> bool:
        return column in self.columns

    def floats(
        self,
        column: str,
        *,
        above: float | None = None,
        least: float | None = None,
        most: float | None = None,
        blank: float | None = None,
    ) -> FloatArray:
        """A column of finite numbers in a range; an empty cell stands for `blank`, if that is given."""
        array: FloatArray = self.columns[column]
        if blank is not None:
            array = np.where(np.isnan(array), blank, array)
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

    def texts(self, column: str) -> Texts:
        """A column of texts, none of them empty."""
        texts: Texts = self.columns[column]
        empty = texts == ""
        if empty.any():
            raise self.error(column, int(np.argmax(empty)), "a number or a name")
        return texts

    def booleans(self, column: str) -> BoolArray:
        """A column of 1 or 0, true or false, read as text."""
        words = [text.lower() for text in self.texts(column)]
        yes = np.array([word in YES for word in words], dtype=bool)
        unclear = ~(yes | np.array([word in NO for word in words], dtype=bool))
        if unclear.any():
            raise self.error(column, int(np.argmax(unclear)), "1 or 0, true or false")
        return validation.make_read_only(yes)

    def error(self, column: str, row: int, allowed: str) -> FleetFileError:
        """Returns the error for one cell; `row` counts from 0."""
        if _is_parquet(self.path):
            cell = self.columns[column][row : row + 1].tolist()[0]
            place, value = f"row {row + 1}", repr(cell)
        else:
            line, fields = _read_record(self.path, row)
            place, value = f"line {line}", repr(fields.get(column, "").strip())
        return FleetFileError(f"{self.path}, {place}, column {column!r}: {value}: must be {allowed}")


def number_texts(texts: Texts) -> tuple[IntArray, tuple[str, ...]]:
    """A number for each distinct text, in order of first appearance, and the texts that they stand for."""
    labels = {label: number for number, label in enumerate(dict.fromkeys(texts.tolist()))}
    return np.array([labels[text] for text in texts.tolist()], dtype=np.int64), tuple(labels)


def read_table(
    path: str | Path, required: Collection[str], numbers: Collection[str], texts: Collection[str]
) -> Table:
    """Reads columns as numbers or texts; others are ignored, unless their names resemble one of these.

    A file that ends in .parquet is Parquet, any other is CSV with a heading, comma-separated, UTF-8.
    """
    file = Path(path)
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise FleetFileError(f"{file}: cannot be read: it is not a regular file")
    try:
        columns = (
            _read_parquet_file(file, required, numbers, texts)
            if _is_parquet(file)
            else _read_csv_file(file, required, numbers, texts)
        )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FleetFileError(f"{file}: cannot be read: {describe_error(error)}") from error
    table = Table(file, columns)
    if table.rows == 0:
        raise FleetFileError(f"{file}: has a heading but no rows; must have at least 1")
    return table


def _read_parquet_file(
    file: Path, required: Collection[str], numbers: Collection[str], texts: Collection[str]
) -> dict[str, NDArray[Any]]:
    # Only those who have such files need its package.
    with explain_missing_extra():
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        headings: list[str] = pq.read_schema(file).names
        check_headings(f"{file}", headings, required, {*numbers, *texts})
        wanted = [name for name in headings if name.strip() in {*numbers, *texts}]
        names = [name for name in wanted if name.strip() not in numbers]
        # Texts stay in a dictionary until their lengths are known: a long one in every row takes no room.
        source = pq.ParquetFile(file, read_dictionary=names)
        validation.check_unpacked_size(source, len(wanted), file.stat().st_size)
        table = source.read(columns=wanted)
        for name in names:
            _check_lengths(file, name, table[name])
        return {name.strip(): _read_column(file, name, table[name], name not in names) for name in wanted}
    except pa.ArrowException as error:
        raise FleetFileError(f"{file}: cannot be read: {error}") from error
    except FleetFileError:
        raise
    except InputError as error:
        raise FleetFileError(f"{file}: {error}") from error


def _read_column(file: Path, name: str, column: "pa.ChunkedArray", number: bool) -> NDArray[Any]:
    """Numbers as float64 with NaN for an empty cell, others as texts without blanks around."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if number and not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise FleetFileError(f"{file}, column {name!r}: is of type {kind}, must be numbers")
    if number:
        values: NDArray[Any] = column.cast(pa.float64()).to_numpy()
        return values
    plain = pc.fill_null(pc.utf8_trim_whitespace(column.cast(pa.string())), "")
    return np.asarray(plain.to_numpy(), dtype=object)


def _check_lengths(file: Path, name: str, column: "pa.ChunkedArray") -> None:
    """Rejects texts that are too long to be names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for chunk in column.chunks:
        values = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if pa.types.is_string(values.type) and (pc.max(pc.binary_length(values)).as_py() or 0) > MAX_TEXT:
            raise FleetFileError(f"{file}, column {name!r}: has a text of more than {MAX_TEXT:,} bytes")


def _read_csv_file(
    file: Path, required: Collection[str], numbers: Collection[str], texts: Collection[str]
) -> dict[str, NDArray[Any]]:
    line, headings = _read_headings(file)
    check_headings(f"{file}, line {line}", headings, required, {*numbers, *texts})
    names = [heading.strip() for heading in headings]
    places = {place: name for place, name in enumerate(names) if name in {*numbers, *texts}}
    parts: dict[str, list[NDArray[Any]]] = {name: [np.empty(0)] for name in places.values()}
    records = islice(_read_records(file, errors="strict"), 1, None)
    while chunk := list(islice(records, CHUNK)):
        try:
            columns = list(zip(headings, *(fields for _, fields in chunk), strict=True))
            for place, name in places.items():
                parts[name].append(_convert(columns[place][1:], name in numbers))
        except ValueError as error:
            raise _find_bad_record(file, headings, numbers, chunk) from error
    return {name: np.concatenate(found[1:] or found) for name, found in parts.items()}


def _convert(column: tuple[str, ...], number: bool) -> NDArray[Any]:
    if number:
        return np.array([float(text) if text else np.nan for text in column])
    texts = np.empty(len(column), dtype=object)
    texts[:] = [text.strip() for text in column]
    return texts


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def _read_headings(file: Path) -> tuple[int, list[str]]:
    """The line of the heading and its fields; line 1, unless empty lines come first."""
    return next(_read_records(file), (0, []))


def _read_records(file: Path, errors: str = "replace") -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every record that is not empty, the heading first."""
    with file.open(encoding="utf-8-sig", errors=errors, newline="") as lines:
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
    file: Path, headings: list[str], numbers: Collection[str], records: Iterable[tuple[int, list[str]]]
) -> FleetFileError:
    """The error for the first of some records that has too many or too few fields, or no number in one."""
    for line, fields in records:
        if len(fields) != len(headings):
            return FleetFileError(
                f"{file}, line {line}: has {len(fields)} fields, must have {len(headings)}"
                f"{_suspect_decimal_commas(fields, headings)}"
            )
        for heading, field in zip(headings, fields, strict=True):
            if heading.strip() in numbers and field and parse_number(field) is None:
                value = field.strip()
                comma = ", with a point as decimal mark" if re.fullmatch(r"[-+]?\d*,\d+", value) else ""
                return FleetFileError(
                    f"{file}, line {line}, column {heading.strip()!r}: {value!r}: must be a number{comma}"
                )
    raise AssertionError("one of the records was bad")


def parse_number(text: str) -> float | None:
    """The number that a text is; None for other texts."""
    try:
        return float(text)
    except ValueError:
        return None


def _suspect_decimal_commas(fields: list[str], headings: list[str]) -> str:
    """A hint if decimal commas would explain why a line has so many more fields than the heading."""
    whole = sum(re.fullmatch(r"\s*[-+]?\d+\s*", field) is not None for field in fields)
    if len(headings) < len(fields) <= 2 * len(headings) and whole >= 2 * (len(fields) - len(headings)):
        return "; are there decimal commas? Numbers need a point as decimal mark"
    return ""
