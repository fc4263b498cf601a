"""Plan tables: who was asked for how much in one global round, as `plans/round-00012.parquet`.

One row per device and edge round. Written before the round's line in the log, so a logged round has its
table.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cfel.durable import read_bytes, replace_file
from cfel.errors import InputError, RunDirectoryError

_WHOLE = ("edge_round", "device", "cluster", "steps")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanTable:
    """Columns of equal length, one row per device and edge round of one global round.

    Attributes:
        round: number of the global round.
        edge_round: edge round within it.
        device: device number.
        cluster: its cluster.
        rho: ρ, share of local iterations asked for.
        theta: θ, share of entries uploaded.
        mu: seconds per step.
        alpha: joules per step.
        nu: seconds per full upload.
        power: watts while uploading.
        speed: share of its clock that the device ran at; all 1 if not given.
        steps: local steps really taken.
        seconds: time this device took in this edge round.
        joules: energy it took.
    """

    round: int
    edge_round: NDArray[Any]
    device: NDArray[Any]
    cluster: NDArray[Any]
    rho: NDArray[Any]
    theta: NDArray[Any]
    mu: NDArray[Any]
    alpha: NDArray[Any]
    nu: NDArray[Any]
    power: NDArray[Any]
    steps: NDArray[Any]
    seconds: NDArray[Any]
    joules: NDArray[Any]
    speed: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Brings every column to its type and checks the lengths."""
        rows = len(self.device)
        if self.speed is None:
            object.__setattr__(self, "speed", np.ones(rows))
        for name in column_names():
            column = np.asarray(getattr(self, name), dtype=np.int32 if name in _WHOLE else np.float64)
            if column.shape != (rows,):
                raise InputError(f"{name}: shape {column.shape}, but device has {rows} entries")
            object.__setattr__(self, name, column)


def column_names() -> tuple[str, ...]:
    """The columns besides `round`, in file order."""
    return tuple(field.name for field in fields(PlanTable) if field.name != "round")


def plan_path(directory: Path, global_round: int) -> Path:
    """Where the table of a global round is kept below the run directory."""
    return directory / "plans" / f"round-{global_round:05d}.parquet"


def plan_paths(directory: Path) -> Iterator[tuple[int, Path]]:
    """The tables there are, as (global round, path), in order of rounds."""
    found = [
        (int(path.stem.removeprefix("round-")), path)
        for path in (directory / "plans").glob("round-*.parquet")
        if path.stem.removeprefix("round-").isdigit()
    ]
    return iter(sorted(found))


def write_plan(directory: Path, plan: PlanTable) -> None:
    """Writes the table, whole or not at all."""
    columns = {"round": np.full(len(plan.device), plan.round, dtype=np.int32)}
    columns |= {name: getattr(plan, name) for name in column_names()}
    buffer = BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    replace_file(plan_path(directory, plan.round), buffer.getvalue())


def read_plan(directory: Path, global_round: int) -> PlanTable:
    """The table of one global round.

    Raises:
        StorageError: it is missing or damaged.
    """
    path = plan_path(directory, global_round)
    content = read_bytes(path)
    try:
        table = pq.read_table(BytesIO(content))
        # Tables written before clocks could be turned down have no speeds.
        names = [name for name in column_names() if name != "speed" or name in table.column_names]
        columns = {name: table.column(name).to_numpy() for name in names}
    except (pa.ArrowException, KeyError, OSError) as error:
        raise RunDirectoryError(f"{path} is damaged: {error}") from error
    return PlanTable(round=global_round, **columns)
