"""Tables of devices that users write, CSV or Parquet: of one moment, or a trace of many rounds.

A table has a row per device. Columns `mu`, `alpha`, `nu`, `power` and `cluster` are required; `id` or `name`,
`rho_min`, `rho_max`, `theta_min`, `theta_max`, `battery`, `clock_static` and `clock_exponent` are optional,
others are ignored.

A trace has a row per device, edge round and global round: columns `device`, `mu`, `alpha`, `nu`, `power`, and
optionally `round`, `edge_round` (a missing column means one only) and `available` (1 or 0, true or false).
Devices and rounds count from 0 or from 1, without gaps; devices may also have names, and are then numbered in
the order in which they first appear. The file must hold every combination once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import FleetFileError, InputError
from cfel.system.conditions import Conditions
from cfel.system.tables import Table, number_texts, parse_number, read_table
from cfel.validation import check_fields, make_read_only
from cfel.wording import plural

COSTS = ("mu", "alpha", "nu", "power")
OPTIONAL = ("rho_min", "rho_max", "theta_min", "theta_max", "battery", "clock_static", "clock_exponent")
NAMES = ("id", "name")


class DeviceTable(NamedTuple):
    """Devices as read from a file, in the file's order.

    Of the optional columns, there are those that the file has. Clusters are numbered in the order in which
    their labels first appear; an empty battery is infinite.
    """

    columns: dict[str, FloatArray | IntArray]
    names: tuple[str, ...]  # what the file calls the devices, or else their numbers
    cluster_labels: tuple[str, ...]  # what the file calls cluster 0, 1, …


def read_devices(path: str | Path) -> DeviceTable:
    """Reads a device table (columns: see the module)."""
    table = read_table(path, (*COSTS, "cluster"), (*COSTS, *OPTIONAL), ("cluster", *NAMES))
    # In this order, so that the first thing that is wrong is named.
    columns: dict[str, FloatArray | IntArray] = {**read_costs(table)}
    cluster, labels = number_texts(table.texts("cluster"))
    columns |= {name: _read_optional(table, name) for name in OPTIONAL if table.has(name)}
    for variable in ("rho", "theta"):
        _check_bounds(table, f"{variable}_min", f"{variable}_max")
    return DeviceTable(columns | {"cluster": make_read_only(cluster)}, _read_names(table), labels)


def _read_optional(table: Table, name: str) -> FloatArray:
    if name == "battery":
        return table.floats(name, least=0, blank=np.inf)
    return table.floats(name, least=0, most=None if name == "clock_exponent" else 1)


def _check_bounds(table: Table, lower: str, upper: str) -> None:
    if table.has(lower) and table.has(upper):
        low, high = table.columns[lower], table.columns[upper]
        if (low > high).any():
            row = int(np.argmax(low > high))
            raise table.error(lower, row, f"at most {upper}, which is {high[row]!s} there")


def read_costs(table: Table) -> dict[str, FloatArray]:
    """The four cost columns, which device tables and traces share."""
    return {
        name: table.floats(name, above=0) if name == "mu" else table.floats(name, least=0) for name in COSTS
    }


def _read_names(table: Table) -> tuple[str, ...]:
    column = next((name for name in NAMES if table.has(name)), None)
    if column is None:
        return tuple(map(str, range(table.rows)))
    names = tuple(table.texts(column).tolist())
    seen: set[str] = set()
    for row, name in enumerate(names):
        if name in seen:
            raise table.error(column, row, "different for every device, it occurs twice")
        seen.add(name)
    return names


@dataclass(frozen=True, slots=True)
class TraceParameters:
    """Which trace to follow."""

    # CSV or Parquet with the columns device, mu, alpha, nu, power, and optionally round, edge_round and
    # available.
    file: str
    # What follows the last round of a trace that is shorter than the run: "repeat" starts again from its
    # first round, "hold" keeps its last, "reject" is an error before the run.
    after_end: Literal["repeat", "hold", "reject"] = "repeat"

    def __post_init__(self) -> None:
        check_fields("conditions", self)


@dataclass(frozen=True, slots=True, eq=False)
class TraceConditions:
    """A trace in memory; every array has the axes global round, edge round, device."""

    source: str  # the file, for messages
    # mu, alpha, nu, power and available: as in `Conditions`.
    mu: FloatArray
    alpha: FloatArray
    nu: FloatArray
    power: FloatArray
    available: BoolArray
    hold: bool = False  # whether its last round stays, instead of its first coming again

    @property
    def rounds(self) -> tuple[int, int]:
        """Global rounds in the trace, and edge rounds of each."""
        return int(self.mu.shape[0]), int(self.mu.shape[1])

    @property
    def devices(self) -> int:
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
        row, edge_row = map(self._find_row, (global_round, edge_round), self.rounds)
        place = (row, edge_row, slice(devices))
        return Conditions(**{name: getattr(self, name)[place] for name in (*COSTS, "available")})

    def _find_row(self, number: int, count: int) -> int:
        return min(number, count - 1) if self.hold else number % count


def describe_short_trace(trace: TraceConditions, global_rounds: int, edge_rounds: int) -> str | None:
    """Says that a trace ends before the run; None if it is long enough.

    A trace of one round describes a fleet that does not change, so it is never too short.
    """
    short = [
        f"{plural(have, word)} of {need:,}"
        for have, need, word in zip(
            trace.rounds, (global_rounds, edge_rounds), ("global round", "edge round"), strict=True
        )
        if 1 < have < need
    ]
    return f"{trace.source} has only {' and '.join(short)}" if short else None


def read_trace(path: str | Path, *, hold: bool = False) -> TraceConditions:
    """Reads a trace (columns: see the module); with `hold`, its last round stays after its end."""
    table = read_table(path, ("device", *COSTS), (*COSTS, "round", "edge_round"), ("device", "available"))
    keys = [table.integers(name) if table.has(name) else None for name in ("round", "edge_round")]
    whole = [np.zeros(table.rows, dtype=np.int64) if key is None else key for key in keys]
    whole = [_count_from_zero(key) for key in (*whole, _read_devices(table))]
    shape = (int(whole[0].max()) + 1, int(whole[1].max()) + 1, int(whole[2].max()) + 1)
    order = _sort_rows(table, whole, shape)
    costs = {name: values[order].reshape(shape) for name, values in read_costs(table).items()}
    available = _read_available(table, order).reshape(shape)
    return TraceConditions(str(path), **costs, available=available, hold=hold)


def _count_from_zero(numbers: IntArray) -> IntArray:
    """The same numbers, from 0 if they count from 1."""
    return numbers - 1 if numbers.min() == 1 else numbers


def _read_devices(table: Table) -> IntArray:
    """Numbers of devices; if none of them is a number, names in the order in which they first appear."""
    # By distinct values: a long trace repeats every device in each of its rounds.
    codes, labels = number_texts(table.texts("device"))
    numbers = [parse_number(text) for text in labels]
    if all(number is None for number in numbers):
        return codes
    if None in numbers:
        row = int(np.argmax(codes == numbers.index(None)))
        raise table.error("device", row, "a number, as the others are")
    values = np.array(numbers, dtype=np.float64)[codes]
    odd = ~((values >= 0) & (values <= 2**53) & (values == np.round(values)))
    if odd.any():
        raise table.error("device", int(np.argmax(odd)), "a whole number ≥ 0")
    return np.asarray(values, dtype=np.int64)


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
