"""Plan tables: the orders and costs of all devices in one global round, as `plans/round-00012.parquet`.

One row per device and edge round. Written before the round's line in the log, so a logged round has its
table.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cfel.durable import check_directory, read_bytes, replace_file, translate_parse_errors
from cfel.errors import InputError
from cfel.validation import check_unpacked_size

_WHOLE = ("edge_round", "device", "cluster", "steps")
_SHARES = ("rho", "theta", "speed")
_NAME = re.compile(r"round-([0-9]{5,9})\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanTable:
    """Columns of equal length, one row per device and edge round of one global round."""

    round: int  # number of the global round
    edge_round: NDArray[Any]  # edge round within it
    device: NDArray[Any]  # device number
    cluster: NDArray[Any]  # its cluster
    rho: NDArray[Any]  # ρ, ordered share of local iterations
    theta: NDArray[Any]  # θ, ordered share of entries to upload
    mu: NDArray[Any]  # seconds per step
    alpha: NDArray[Any]  # joules per step
    nu: NDArray[Any]  # seconds per full upload
    power: NDArray[Any]  # watts while uploading
    steps: NDArray[Any]  # local steps actually taken
    seconds: NDArray[Any]  # time this device took in this edge round
    joules: NDArray[Any]  # energy it took
    speed: NDArray[Any] | None = None  # share of its clock that the device ran at; all 1 if not given

    def __post_init__(self) -> None:
        """Converts every column to its type and checks the lengths."""
        rows = len(self.device)
        if self.speed is None:
            object.__setattr__(self, "speed", np.ones(rows))
        for name in column_names():
            column = np.asarray(getattr(self, name), dtype=np.int32 if name in _WHOLE else np.float64)
            if column.shape != (rows,):
                raise InputError(f"{name}: shape {column.shape}, but device has {rows} entries")
            object.__setattr__(self, name, column)

    def keep(self, rows: NDArray[np.bool_]) -> "PlanTable":
        """The table with these rows only."""
        return replace(self, **{name: getattr(self, name)[rows] for name in column_names()})


def column_names() -> tuple[str, ...]:
    """The columns besides `round`, in file order."""
    return tuple(field.name for field in fields(PlanTable) if field.name != "round")


def plan_path(directory: Path, global_round: int) -> Path:
    """Where the table of a global round is stored in the run directory."""
    return directory / "plans" / f"round-{global_round:05d}.parquet"


def plan_paths(directory: Path) -> Iterator[tuple[int, Path]]:
    """The existing tables as (global round, path), in order of rounds."""
    check_directory(directory / "plans")
    names = ((_NAME.fullmatch(path.name), path) for path in (directory / "plans").glob("round-*.parquet"))
    found = [(int(name[1]), path) for name, path in names if name]
    return iter(sorted((number, path) for number, path in found if path == plan_path(directory, number)))


def write_plan(directory: Path, plan: PlanTable) -> None:
    """Writes the table; a reader never finds a part of it."""
    replace_file(plan_path(directory, plan.round), encode_plan(plan))


def encode_plan(plan: PlanTable) -> bytes:
    """The content of the table's file."""
    # Here and below, because devices write no tables.
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"round": np.full(len(plan.device), plan.round, dtype=np.int32)}
    columns |= {name: getattr(plan, name) for name in column_names()}
    buffer = BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def read_plan(directory: Path, global_round: int) -> PlanTable:
    """Reads the table of one global round; a `StorageError` says if it is missing or damaged."""
    path = plan_path(directory, global_round)
    check_directory(path.parent)
    return decode_plan(path, global_round, read_bytes(path))


def decode_plan(path: Path, global_round: int, content: bytes) -> PlanTable:
    """The table in the content of its file; a `StorageError` says if it is damaged."""
    with translate_parse_errors(path):
        return PlanTable(round=global_round, **_read_columns(content))


def _read_columns(content: bytes) -> dict[str, NDArray[Any]]:
    """The columns of a table, after a look at how large they will be: a small file can hold a huge table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(BytesIO(content))
    # Tables written before clocks could be turned down have no speeds.
    names = [name for name in column_names() if name != "speed" or name in file.schema_arrow.names]
    check_unpacked_size(file, len(names), len(content))
    for name in names:
        wanted = pa.int32() if name in _WHOLE else pa.float64()
        if file.schema_arrow.field(name).type != wanted:
            raise InputError(f"{name}: is {file.schema_arrow.field(name).type}, not {wanted}")
    table = file.read(columns=names, use_threads=False)
    columns = {name: table.column(name).to_numpy() for name in names}
    for name in names:
        _check_range(name, columns[name], table.column(name).null_count)
    return columns


def _check_range(name: str, column: NDArray[Any], missing: int) -> None:
    if missing or (name in _SHARES and not ((column >= 0) & (column <= 1)).all()):
        raise InputError(f"{name}: has an entry that is missing or outside of 0 to 1")
    if name in _WHOLE and (column < 0).any():
        raise InputError(f"{name}: has an entry below 0")
