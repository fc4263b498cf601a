"""Energy counters of a host: processor packages (RAPL), a battery, a file with a reading, or NVIDIA GPUs.

Each measures the whole host (or its processors) and everything that runs on it: right for a device that has
the host to itself, too much for several devices on one host. The caller provides the time. All paths are
under one root, so that tests can use ordinary files instead of the kernel's. GPUs need the package `pynvml`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from cfel.errors import InputError

SYSFS = Path("/sys/class")
_MICRO = 1e-6
_JOULES_PER_WATT_HOUR = 3600.0


class EnergyCounter(Protocol):
    """Counts the joules a host uses."""

    @property
    def source(self) -> str:
        """Where the joules come from."""

    def joules(self, now: float) -> float | None:
        """Joules used since the last call; None if the counter could not be read then or now.

        Args:
            now: seconds of a monotonic clock.
        """


@dataclass(slots=True)
class PackageCounter:
    """RAPL: microjoules per zone, which wrap to zero at a known number.

    Under load counters wrap after minutes to hours; if one wraps twice between two calls, it looks like once.

    Attributes:
        zones: directories with `energy_uj` and `max_energy_range_uj`, none inside another.
    """

    zones: tuple[Path, ...]
    _last: tuple[int, ...] | None = None

    @property
    def source(self) -> str:
        """RAPL."""
        return "rapl"

    def joules(self, now: float) -> float | None:
        """See `EnergyCounter`."""
        del now
        before, self._last = self._last, self._read()
        if before is None or self._last is None:
            return None
        return _MICRO * sum(map(self._difference, self.zones, before, self._last))

    def _read(self) -> tuple[int, ...] | None:
        shown = [_read_whole(zone / "energy_uj") for zone in self.zones]
        numbers = tuple(number for number in shown if number is not None)
        return numbers if len(numbers) == len(shown) else None

    @staticmethod
    def _difference(zone: Path, before: int, after: int) -> int:
        wrap = _read_whole(zone / "max_energy_range_uj") or 0
        return after - before + (wrap if after < before else 0)


@dataclass(slots=True)
class PowerCounter:
    """Integrates watts over time, with the mean of two readings for the time between them.

    Attributes:
        source: where the watts come from.
        watts: returns the reading, or None while there is none (a battery that is charging).
    """

    source: str
    watts: Callable[[], float | None]
    _last: tuple[float, float] | None = None

    def joules(self, now: float) -> float | None:
        """See `EnergyCounter`."""
        watts = self.watts()
        before, self._last = self._last, None if watts is None else (now, watts)
        if watts is None or before is None:
            return None
        return (now - before[0]) * (watts + before[1]) / 2


@dataclass(slots=True)
class ChargeCounter:
    """The energy left in a battery, in coarse steps: accurate over minutes, mostly zero over seconds.

    Attributes:
        left: returns the joules left, or None while it is not discharging.
    """

    left: Callable[[], float | None]
    _last: float | None = None

    @property
    def source(self) -> str:
        """A battery's charge."""
        return "battery charge"

    def joules(self, now: float) -> float | None:
        """See `EnergyCounter`."""
        del now
        left = self.left()
        before, self._last = self._last, left
        if left is None or before is None:
            return None
        # A battery that is charged meanwhile shows no use, not a negative one.
        return max(0.0, before - left)


def find_counter(sysfs: Path = SYSFS, power_file: Path | None = None) -> EnergyCounter | None:
    """Finds the best counter that this host has and this user may read, or None.

    Args:
        sysfs: the directory of `powercap` and `power_supply`.
        power_file: a file with a reading in microwatts (a power monitor under hwmon); preferred to others.

    Raises:
        InputError: `power_file` cannot be read; a file the user named is never ignored.
    """
    if power_file is not None:
        if _read_micro(power_file) is None:
            raise InputError(f"power_file = {str(power_file)!r}: does not hold a whole number of microwatts")
        return PowerCounter("power file", lambda: _read_micro(power_file))
    zones = tuple(_find_zones(sysfs / "powercap"))
    if zones and all(_read_whole(zone / "energy_uj") is not None for zone in zones):
        return PackageCounter(zones)
    for battery in sorted((sysfs / "power_supply").glob("*")):
        found = _make_battery_counter(battery) if _read_text(battery / "type") == "Battery" else None
        if found is not None:
            return found
    return None


def _find_zones(powercap: Path) -> Iterator[Path]:
    """Packages and their memory; packages include cores, and the platform zone includes both."""
    for zone in sorted(powercap.glob("intel-rapl:*")):
        name = _read_text(zone / "name") or ""
        if name.startswith("package") or name == "dram":
            yield zone


def _make_battery_counter(battery: Path) -> EnergyCounter | None:
    def read_while_discharging(reading: Callable[[], float | None]) -> Callable[[], float | None]:
        return lambda: reading() if _read_text(battery / "status") == "Discharging" else None

    if _read_micro(battery / "power_now") is not None:
        return PowerCounter(
            "battery power", read_while_discharging(lambda: _magnitude(_read_micro(battery / "power_now")))
        )
    pair = (battery / "voltage_now", battery / "current_now")
    if all(_read_micro(path) is not None for path in pair):
        return PowerCounter("battery power", read_while_discharging(lambda: _magnitude(_product(pair))))
    if _read_micro(battery / "energy_now") is not None:
        left = battery / "energy_now"
        return ChargeCounter(read_while_discharging(lambda: _scale(_JOULES_PER_WATT_HOUR, _read_micro(left))))
    return None


def _product(paths: Sequence[Path]) -> float | None:
    first, second = (_read_micro(path) for path in paths)
    return None if first is None or second is None else first * second


def _scale(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _magnitude(value: float | None) -> float | None:
    """Some drivers report a discharge as a negative number."""
    return None if value is None else abs(value)


def _read_micro(path: Path) -> float | None:
    number = _read_whole(path)
    return None if number is None else _MICRO * number


def _read_whole(path: Path) -> int | None:
    text = _read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _read_text(path: Path) -> str | None:
    """Reads a file of the kernel; None if it is missing or cannot be read now."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


_MILLI = 1e-3


@dataclass(slots=True)
class GpuCounter:
    """NVML's millijoules since the driver was loaded, of all GPUs of the host.

    Attributes:
        nvml: the module, initialised.
        handles: the GPUs.
    """

    nvml: Any
    handles: tuple[Any, ...]
    _last: float | None = None

    @property
    def source(self) -> str:
        """NVML."""
        return "nvml"

    def joules(self, now: float) -> float | None:
        """See `EnergyCounter`."""
        del now
        before, self._last = self._last, self._read()
        return None if before is None or self._last is None else self._last - before

    def _read(self) -> float | None:
        try:
            shown = [self.nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self.handles]
        except self.nvml.NVMLError:
            return None
        return float(_MILLI * sum(shown))


def find_gpu_counter(module: str = "pynvml") -> tuple[GpuCounter | None, str]:
    """Finds the GPUs' counter, or says why there is none.

    Args:
        module: NVML's Python module.
    """
    try:
        nvml = import_module(module)
    except ImportError:
        return None, f"the Python package {module} is not installed"
    try:
        nvml.nvmlInit()
        handles = tuple(nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        return None, f"NVML: {error}"
    counter = GpuCounter(nvml, handles)
    # GPUs before Volta, and Jetson boards, have no such counter.
    if not handles or (counter.joules(0.0) is None and counter._last is None):
        return None, "no GPU here has an energy counter"
    return counter, ""
