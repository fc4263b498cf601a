"""Which energy counters this host offers, and in words why not; the size of its battery."""

import math
from dataclasses import dataclass
from pathlib import Path

from cfel.deployment.measurement.energy_counters import EnergyCounter, PackageCounter, find_counter
from cfel.deployment.measurement.gpu_counter import find_gpu_counter

_MICRO = 1e-6
_JOULES_PER_WATT_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class HostEnergy:
    """Counters that are added up.

    Attributes:
        counters: none if joules cannot be measured here.
        reason: why not; empty if they can.
        includes_radio: whether what they count includes the radio.
    """

    counters: tuple[EnergyCounter, ...]
    reason: str
    includes_radio: bool

    @property
    def source(self) -> str:
        """Where the joules come from."""
        return " and ".join(counter.source for counter in self.counters)


def find_host_energy(sysfs: Path, power_file: Path | None, device: str) -> HostEnergy:
    """Finds this host's counters.

    Args:
        sysfs: the directory of `powercap` and `power_supply`.
        power_file: a power monitor's file, preferred to others.
        device: torch's device; a GPU's own counter is added where nothing else includes it.
    """
    host = find_counter(sysfs, power_file)
    if host is None:
        return HostEnergy((), _explain(sysfs), False)
    if not isinstance(host, PackageCounter):
        return HostEnergy((host,), "", True)
    if not device.startswith("cuda"):
        return HostEnergy((host,), "", False)
    gpu, reason = find_gpu_counter()
    if gpu is None:
        return HostEnergy((), f"RAPL does not include the GPU, and {reason}", False)
    return HostEnergy((host, gpu), "", False)


def _explain(sysfs: Path) -> str:
    if any((sysfs / "powercap").glob("intel-rapl:*")):
        return "the processor counts energy (RAPL), but this user may not read it; root may"
    return "this host shows no energy counter: no RAPL, and no battery with a power reading"


def read_battery_joules(sysfs: Path) -> tuple[float, str] | str:
    """The charge of the first battery when full, or why it is unknown."""
    for battery in sorted((sysfs / "power_supply").glob("*")):
        if _read(battery / "type") != "Battery":
            continue
        energy = _read_micro(battery / "energy_full")
        if energy:
            return _JOULES_PER_WATT_HOUR * energy, f"{battery.name}: {energy:g} Wh when full"
        charge, volts = _read_micro(battery / "charge_full"), _read_micro(battery / "voltage_min_design")
        if charge and volts:
            return _JOULES_PER_WATT_HOUR * charge * volts, f"{battery.name}: {charge:g} Ah × {volts:g} V"
        return f"{battery.name} does not show its capacity"
    return math.inf, "this host has no battery"


def _read_micro(path: Path) -> float | None:
    try:
        return _MICRO * int(_read(path) or "")
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    """Reads a file of the kernel; None if it is missing or cannot be read now."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
