"""Files of devices that users write, CSV or Parquet: a table of one moment, and traces of many rounds.

A device table has a row per device. Columns `mu`, `alpha`, `nu`, `power` and `cluster` are required; `id` or
`name`, `rho_min`, `rho_max`, `theta_min`, `theta_max`, `battery`, `clock_static` and `clock_exponent` are
optional, others are ignored.

A trace has a row per device, edge round and global round: columns `device`, `mu`, `alpha`, `nu`, `power`, and
optionally `round`, `edge_round` (a missing column means one only) and `available` (1 or 0, true or false).
Devices and rounds count from 0 or from 1, without gaps; devices may also have names, and are then numbered in
the order in which they first appear. The file must hold every combination once.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import FleetFileError, InputError, unknown_name
from cfel.system.conditions import Conditions
from cfel.system.tables import Table, number_texts, read_table
from cfel.validation import make_read_only
from cfel.wording import plural

COSTS = ("mu", "alpha", "nu", "power")
NUMBERS = (
    *(*COSTS, "rho_min", "rho_max", "theta_min", "theta_max", "battery"),
    *("clock_static", "clock_exponent"),
)
NAMES = ("id", "name")
AFTER_END = ("repeat", "hold", "reject")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTable:
    """Devices as read from a file, in the file's order.

    Attributes:
        mu, alpha, nu, power: as in `Conditions`.
        cluster: number of the device's cluster, 0 … m−1.
        cluster_labels: what the file calls cluster 0, 1, …, in order of first appearance.
        names: what the file calls the devices, or None if it does not.
        rho_min, rho_max, theta_min, theta_max: bounds per device, in [0, 1], or None if not in the file.
        battery_joules: joules per device, infinity for an empty cell, or None if not in the file.
        clock_static, clock_exponent: what a slower clock saves (`conditions.clock_energy`); None likewise.
    """

    mu: FloatArray
    alpha: FloatArray
    nu: FloatArray
    power: FloatArray
    cluster: IntArray
    cluster_labels: tuple[str, ...]
    names: NDArray[np.object_] | None = None
    rho_min: FloatArray | None = None
    rho_max: FloatArray | None = None
    theta_min: FloatArray | None = None
    theta_max: FloatArray | None = None
    battery_joules: FloatArray | None = None
    clock_static: FloatArray | None = None
    clock_exponent: FloatArray | None = None

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.mu.size

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return len(self.cluster_labels)

    def name(self, device: int) -> str:
        """A device's name in the file, or else its number from 0."""
        return str(device if self.names is None else self.names[device])

    def conditions(self) -> Conditions:
        """The table as conditions, with all devices present."""
        return Conditions(self.mu, self.alpha, self.nu, self.power, np.ones(self.devices, dtype=bool))


def read_devices(path: str | Path) -> DeviceTable:
    """Reads a device table (columns: see the module).

    Raises:
        FleetFileError: names file, line, column and value of the first thing that is wrong.
    """
    table = read_table(path, (*COSTS, "cluster"), NUMBERS, ("cluster", *NAMES))
    # In this order, so that the first thing that is wrong is named.
    costs = _read_costs(table)
    cluster, labels = number_texts(table.texts("cluster"))
    rho_min, rho_max = _read_bounds(table, "rho")
    theta_min, theta_max = _read_bounds(table, "theta")
    return DeviceTable(
        **costs,
        cluster=make_read_only(cluster),
        cluster_labels=labels,
        names=_read_names(table),
        rho_min=rho_min,
        rho_max=rho_max,
        theta_min=theta_min,
        theta_max=theta_max,
        battery_joules=table.floats("battery", least=0, blank=np.inf) if table.has("battery") else None,
        clock_static=table.floats("clock_static", least=0, most=1) if table.has("clock_static") else None,
        clock_exponent=table.floats("clock_exponent", least=0) if table.has("clock_exponent") else None,
    )


def _read_costs(table: Table) -> dict[str, FloatArray]:
    return {
        name: table.floats(name, above=0) if name == "mu" else table.floats(name, least=0) for name in COSTS
    }


def _read_bounds(table: Table, variable: str) -> tuple[FloatArray | None, FloatArray | None]:
    names = (f"{variable}_min", f"{variable}_max")
    low, high = (table.floats(name, least=0, most=1) if table.has(name) else None for name in names)
    if low is not None and high is not None and (low > high).any():
        row = int(np.argmax(low > high))
        raise table.error(names[0], row, f"at most {names[1]}, which is {high[row]!s} there")
    return low, high


def _read_names(table: Table) -> NDArray[np.object_] | None:
    column = next((name for name in NAMES if table.has(name)), None)
    if column is None:
        return None
    names = table.texts(column)
    if len(set(names.tolist())) != len(names):
        raise table.error(column, _find_repeated(names), "different for every device, it occurs twice")
    return names


def _find_repeated(names: NDArray[np.object_]) -> int:
    """The first row whose name occurred before."""
    seen: set[str] = set()
    for row, name in enumerate(names):
        if name in seen:
            return row
        seen.add(name)
    raise AssertionError("no name occurs twice")


@dataclass(frozen=True, slots=True)
class TraceParameters:
    """Which trace to follow.

    Attributes:
        file: CSV or Parquet with the columns device, mu, alpha, nu, power, and optionally round, edge_round
            and available.
        after_end: what follows the last round of a trace that is shorter than the run: "repeat" starts again
            from its first round, "hold" keeps its last, "reject" is an error before the run.
    """

    file: str
    after_end: str = "repeat"

    def __post_init__(self) -> None:
        if not isinstance(self.file, str) or not self.file:
            raise InputError(f"conditions.file = {self.file!r}: must be the path of a trace")
        if self.after_end not in AFTER_END:
            raise InputError(unknown_name("conditions.after_end", self.after_end, AFTER_END))


@dataclass(frozen=True, slots=True, eq=False)
class TraceConditions:
    """A trace in memory; every array has the axes global round, edge round, device.

    Attributes:
        source: the file, for messages.
        mu, alpha, nu, power, available: as in `Conditions`.
        hold: whether its last round stays, instead of its first coming again.
    """

    source: str
    mu: FloatArray
    alpha: FloatArray
    nu: FloatArray
    power: FloatArray
    available: BoolArray
    hold: bool = False

    @property
    def rounds(self) -> tuple[int, int]:
        """Global rounds in the trace, and edge rounds of each."""
        return int(self.mu.shape[0]), int(self.mu.shape[1])

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
    """Reads a trace (columns: see the module); with `hold`, its last round stays after its end.

    Raises:
        FleetFileError: names file, line, column and value of the first thing that is wrong.
    """
    table = read_table(path, ("device", *COSTS), (*COSTS, "round", "edge_round"), ("device", "available"))
    keys = [table.integers(name) if table.has(name) else None for name in ("round", "edge_round")]
    whole = [np.zeros(table.rows, dtype=np.int64) if key is None else key for key in keys]
    whole = [_count_from_zero(key) for key in (*whole, _read_devices(table))]
    shape = (int(whole[0].max()) + 1, int(whole[1].max()) + 1, int(whole[2].max()) + 1)
    order = _sort_rows(table, whole, shape)
    costs = {name: values[order].reshape(shape) for name, values in _read_costs(table).items()}
    available = _read_available(table, order).reshape(shape)
    return TraceConditions(str(path), **costs, available=available, hold=hold)


def _count_from_zero(numbers: IntArray) -> IntArray:
    """The same numbers, from 0 if they count from 1."""
    return numbers - 1 if numbers.min() == 1 else numbers


def _read_devices(table: Table) -> IntArray:
    """Numbers of devices; if none of them is a number, names in the order in which they first appear."""
    # By distinct values: a long trace repeats every device in each of its rounds.
    codes, labels = number_texts(table.texts("device"))
    numbers = [_read_number(text) for text in labels]
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


def _read_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
