"""Tables of devices that users write, CSV or Parquet: the devices of one moment, a row each.

Columns `mu`, `alpha`, `nu`, `power` and `cluster` are required; `id` or `name`, `rho_min`, `rho_max`,
`theta_min`, `theta_max`, `battery`, `clock_static` and `clock_exponent` are optional, others are ignored.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import FloatArray, IntArray
from cfel.system.conditions import Conditions
from cfel.system.tables import Table, number_texts, read_table
from cfel.validation import make_read_only

COSTS = ("mu", "alpha", "nu", "power")
NUMBERS = (
    *(*COSTS, "rho_min", "rho_max", "theta_min", "theta_max", "battery"),
    *("clock_static", "clock_exponent"),
)
NAMES = ("id", "name")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTable:
    """Devices as read from a file, in the file's order."""

    # mu, alpha, nu and power: as in `Conditions`.
    mu: FloatArray
    alpha: FloatArray
    nu: FloatArray
    power: FloatArray
    cluster: IntArray  # number of the device's cluster, 0 … m−1
    cluster_labels: tuple[str, ...]  # what the file calls cluster 0, 1, …, in order of first appearance
    names: NDArray[np.object_] | None = None  # what the file calls the devices, or None if it does not
    # rho_min, rho_max, theta_min and theta_max: bounds per device, in [0, 1], or None if not in the file.
    rho_min: FloatArray | None = None
    rho_max: FloatArray | None = None
    theta_min: FloatArray | None = None
    theta_max: FloatArray | None = None
    # Joules per device, infinity for an empty cell, or None if not in the file.
    battery_joules: FloatArray | None = None
    # clock_static and clock_exponent: what a slower clock saves (`conditions.clock_energy`); None likewise.
    clock_static: FloatArray | None = None
    clock_exponent: FloatArray | None = None

    @property
    def devices(self) -> int:
        return self.mu.size

    @property
    def clusters(self) -> int:
        return len(self.cluster_labels)

    def name(self, device: int) -> str:
        """A device's name in the file, or else its number from 0."""
        return str(device if self.names is None else self.names[device])

    def conditions(self) -> Conditions:
        """The table as conditions, with all devices present."""
        return Conditions(self.mu, self.alpha, self.nu, self.power, np.ones(self.devices, dtype=bool))


def read_devices(path: str | Path) -> DeviceTable:
    """Reads a device table (columns: see the module)."""
    table = read_table(path, (*COSTS, "cluster"), NUMBERS, ("cluster", *NAMES))
    # In this order, so that the first thing that is wrong is named.
    costs = read_costs(table)
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


def read_costs(table: Table) -> dict[str, FloatArray]:
    """The four cost columns, which device tables and traces share."""
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
