"""How large the columns of a Parquet file will be, checked before they are read.

Equal values are written once, so that a small file can hold a huge table. Knows nothing of what the columns
mean.
"""

from typing import TYPE_CHECKING

from cfel.errors import InputError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

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
