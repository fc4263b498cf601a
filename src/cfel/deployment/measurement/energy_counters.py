"""Energy counters of a Linux host: processor packages (RAPL), a battery, or a file that shows watts.

Each measures the whole host (or its processors), with everything that runs there: right for a device that has
a host of its own, too much for several on one. Times come from the caller. Paths are under one root, so that
a tree of ordinary files can stand in for the kernel's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cfel.errors import InputError

SYSFS = Path("/sys/class")
_MICRO = 1e-6
_JOULES_PER_WATT_HOUR = 3600.0


class EnergyCounter(Protocol):
    """Joules that only add up."""

    @property
    def source(self) -> str:
        """Where the joules come from, in a word."""

    def joules(self, now: float) -> float | None:
        """Joules used between the last call and this one; None if the counter was silent at either.

        Args:
            now: seconds on a clock that only runs forward.
        """


@dataclass(slots=True)
class PackageCounter:
    """RAPL: microjoules per zone that start again from zero at a known number.

    Counters turn over after minutes to hours under load; two turns between two calls look like one.

    Attributes:
        zones: directories with `energy_uj` and `max_energy_range_uj`, none within another.
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
        before, self._last = self._last, self._shown()
        if before is None or self._last is None:
            return None
        return _MICRO * sum(map(self._used, self.zones, before, self._last))

    def _shown(self) -> tuple[int, ...] | None:
        shown = [_whole(zone / "energy_uj") for zone in self.zones]
        numbers = tuple(number for number in shown if number is not None)
        return numbers if len(numbers) == len(shown) else None

    @staticmethod
    def _used(zone: Path, before: int, after: int) -> int:
        turn = _whole(zone / "max_energy_range_uj") or 0
        return after - before + (turn if after < before else 0)


@dataclass(slots=True)
class PowerCounter:
    """Watts, multiplied by time: the mean of two readings holds for the time between them.

    Attributes:
        source: what shows the watts.
        watts: the reading, or None while there is none (a battery that is being charged).
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
    """What is left in a battery, in coarse steps: honest over minutes, mostly zero over seconds.

    Attributes:
        left: joules left, or None while it is not discharging.
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
        return max(0.0, before - left)


def find_counter(sysfs: Path = SYSFS, power_file: Path | None = None) -> EnergyCounter | None:
    """The best counter that this host has and this user may read, or None.

    Args:
        sysfs: where `powercap` and `power_supply` are.
        power_file: a file that shows microwatts (a power monitor under hwmon); goes before all others.

    Raises:
        InputError: `power_file` cannot be read; a file that was asked for is not passed over.
    """
    if power_file is not None:
        if _micro(power_file) is None:
            raise InputError(f"power_file = {str(power_file)!r}: shows no whole number of microwatts")
        return PowerCounter("power file", lambda: _micro(power_file))
    zones = tuple(_zones(sysfs / "powercap"))
    if zones and all(_whole(zone / "energy_uj") is not None for zone in zones):
        return PackageCounter(zones)
    for battery in sorted((sysfs / "power_supply").glob("*")):
        found = _battery(battery) if _text(battery / "type") == "Battery" else None
        if found is not None:
            return found
    return None


def _zones(powercap: Path) -> Iterator[Path]:
    """Packages and their memory; cores are counted in packages already, the platform contains both."""
    for zone in sorted(powercap.glob("intel-rapl:*")):
        name = _text(zone / "name") or ""
        if name.startswith("package") or name == "dram":
            yield zone


def _battery(battery: Path) -> EnergyCounter | None:
    def discharging(reading: Callable[[], float | None]) -> Callable[[], float | None]:
        return lambda: reading() if _text(battery / "status") == "Discharging" else None

    if _micro(battery / "power_now") is not None:
        return PowerCounter("battery power", discharging(lambda: _magnitude(_micro(battery / "power_now"))))
    pair = (battery / "voltage_now", battery / "current_now")
    if all(_micro(path) is not None for path in pair):
        return PowerCounter("battery power", discharging(lambda: _magnitude(_product(pair))))
    if _micro(battery / "energy_now") is not None:
        left = battery / "energy_now"
        return ChargeCounter(discharging(lambda: _times(_JOULES_PER_WATT_HOUR, _micro(left))))
    return None


def _product(paths: Sequence[Path]) -> float | None:
    first, second = (_micro(path) for path in paths)
    return None if first is None or second is None else first * second


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _magnitude(value: float | None) -> float | None:
    """Some drivers show a discharge with a minus."""
    return None if value is None else abs(value)


def _micro(path: Path) -> float | None:
    number = _whole(path)
    return None if number is None else _MICRO * number


def _whole(path: Path) -> int | None:
    text = _text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _text(path: Path) -> str | None:
    """What a file of the kernel shows; None if it is not there, not for this user, or silent now."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
