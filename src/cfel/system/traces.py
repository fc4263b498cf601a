"""Traces: measured conditions, one row per device, edge round and global round, from CSV or Parquet.

Columns: `device` (0 … N−1), `mu`, `alpha`, `nu`, `power`, and optionally `round`, `edge_round` (0 … without
gaps; a missing column means one only) and `available` (1 or 0, true or false). The file must hold every
combination once. After its last global round a trace starts again from the first; edge rounds do the same.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import FleetFileError, InputError
from cfel.system.conditions import Conditions
from cfel.system.tables import Table, read_table
from cfel.wording import plural

REQUIRED = ("device", "mu", "alpha", "nu", "power")


@dataclass(frozen=True, slots=True)
class TraceParameters:
    """Which trace to follow.

    Attributes:
        file: CSV or Parquet with the columns device, mu, alpha, nu, power, and optionally round, edge_round
            and available.
    """

    file: str

    def __post_init__(self) -> None:
        if not isinstance(self.file, str) or not self.file:
            raise InputError(f"conditions.file = {self.file!r}: must be the path of a trace")


@dataclass(frozen=True, slots=True, eq=False)
class TraceConditions:
    """A trace in memory; every array has the axes global round, edge round, device.

    Attributes:
        source: the file, for messages.
        mu: seconds per local step.
        alpha: joules per local step.
        nu: seconds to upload one full model.
        power: watts while sending.
        available: whether the device takes part.
    """

    source: str
    mu: FloatArray
    alpha: FloatArray
    nu: FloatArray
    power: FloatArray
    available: BoolArray

    @property
    def devices(self) -> int:
        """Devices in the trace."""
        return int(self.mu.shape[2])

    def conditions(
        self, seed: int, global_round: int, edge_round: int, devices: int, model_bits: float
    ) -> Conditions:
        """See `ConditionModel`; a trace already holds upload times, so seed and model size change nothing."""
        del seed, model_bits
        if devices > self.devices:
            raise InputError(
                f"fleet.devices = {devices}: {self.source} has only {plural(self.devices, 'device')}"
            )
        place = (global_round % self.mu.shape[0], edge_round % self.mu.shape[1], slice(devices))
        return Conditions(
            mu=self.mu[place],
            alpha=self.alpha[place],
            nu=self.nu[place],
            power=self.power[place],
            available=self.available[place],
        )


def read_trace(path: str | Path) -> TraceConditions:
    """Reads a trace (columns: see the module).

    Raises:
        FleetFileError: names file, line, column and value of the first thing that is wrong.
    """
    table = read_table(path, REQUIRED, (*REQUIRED, "round", "edge_round"), ("available",))
    keys = [table.integers(name) if table.has(name) else None for name in ("round", "edge_round", "device")]
    whole = [np.zeros(table.rows, dtype=np.int64) if key is None else key for key in keys]
    shape = (int(whole[0].max()) + 1, int(whole[1].max()) + 1, int(whole[2].max()) + 1)
    order = _sort_rows(table, whole, shape)
    columns = {name: table.floats(name, least=0)[order].reshape(shape) for name in ("alpha", "nu", "power")}
    mu = table.floats("mu", above=0)[order].reshape(shape)
    return TraceConditions(
        source=str(path), mu=mu, available=_read_available(table, order).reshape(shape), **columns
    )


def _sort_rows(table: Table, keys: list[IntArray], shape: tuple[int, int, int]) -> IntArray:
    """Sorts rows by global round, edge round and device; each combination must occur exactly once."""
    # lexsort's last key is its first criterion.
    order = np.lexsort(keys[::-1])
    ordered = [key[order] for key in keys]
    same = np.logical_and.reduce([key[1:] == key[:-1] for key in ordered])
    if same.any():
        row = int(order[np.argmax(same) + 1])
        raise table.error("device", row, "there once only per round and edge round")
    if table.rows != shape[0] * shape[1] * shape[2]:
        raise FleetFileError(f"{table.path}, {_describe_gap(ordered, shape)}")
    return np.asarray(order, dtype=np.int64)


def _describe_gap(ordered: list[IntArray], shape: tuple[int, int, int]) -> str:
    """Finds the first missing combination: rows are distinct and too few, so the sorted keys have a gap."""
    rows = ordered[0].size
    edge_rounds_on, devices = np.divmod(np.arange(rows + 1), shape[2])
    rounds, edge_rounds = np.divmod(edge_rounds_on, shape[1])
    expected = (rounds, edge_rounds, devices)
    off = np.logical_or.reduce([have != want[:-1] for have, want in zip(ordered, expected, strict=True)])
    at = [int(want[np.argmax(off) if off.any() else rows]) for want in expected]
    there = f"round {at[0]}, edge round {at[1]}, device {at[2]}"
    return f"column 'device': no row for {there}; every combination is needed"


def _read_available(table: Table, order: IntArray) -> BoolArray:
    if not table.has("available"):
        return np.ones(table.rows, dtype=bool)
    return table.booleans("available")[order]
