"""Reads Android's `power_profile.xml`: clock speeds and currents of a phone's processor, radios, battery.

Such a file may be anybody's, so it is read with expat alone: no document type, hence no entities, a limited
size and depth. What follows from the currents is in `profile_class`.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from cfel.durable import read_bytes
from cfel.errors import FleetFileError, StorageError
from cfel.wording import show

MAX_BYTES = 1024**2
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class CpuCluster:
    """Cores of one kind.

    Attributes:
        cores: how many.
        kilohertz: clock speeds, rising.
        milliamps: of one core at each speed.
        shared_milliamps: of the cluster itself while any core runs.
    """

    cores: int
    kilohertz: tuple[float, ...]
    milliamps: tuple[float, ...]
    shared_milliamps: float


@dataclass(frozen=True, slots=True)
class PowerProfile:
    """What a phone's profile says, as far as training and sending are concerned.

    Attributes:
        clusters: of the processor.
        active_milliamps: of the processor as a whole while it runs.
        cellular_milliamps, wifi_milliamps: while sending; None if the profile has no such figure. Of several
            transmission levels the middle one.
        battery_milliamp_hours: a full battery; None if the profile has no such figure.
        volts: at which the currents are meant; None if the profile does not say.
    """

    clusters: tuple[CpuCluster, ...]
    active_milliamps: float
    cellular_milliamps: float | None
    wifi_milliamps: float | None
    battery_milliamp_hours: float | None
    volts: float | None


@dataclass(frozen=True, slots=True)
class _Entry:
    """One item or array, and the line it is on."""

    line: int
    values: tuple[float, ...]


def read_power_profile(path: str | Path) -> PowerProfile:
    """Reads a profile.

    Raises:
        FleetFileError: names the file, and the line and value where there is one.
    """
    return _Profile(Path(path), _read_entries(Path(path))).build()


def _read_entries(path: Path) -> dict[str, _Entry]:
    try:
        content = read_bytes(path, max_bytes=MAX_BYTES, follow_links=True)
    except StorageError as error:
        raise FleetFileError(str(error)) from error
    return _EntryReader(path).read(content)


@dataclass(slots=True)
class _EntryReader:
    """Collects items and arrays; ignores everything else."""

    path: Path
    entries: dict[str, _Entry] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _name: str | None = None
    _line: int = 0
    _values: list[float] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)

    def read(self, content: bytes) -> dict[str, _Entry]:
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = lambda *_: self._fail(
            parser.CurrentLineNumber, "has a document type, which a power profile does not need"
        )
        parser.StartElementHandler = lambda tag, given: self._start(tag, given, parser.CurrentLineNumber)
        parser.EndElementHandler = lambda tag: self._end(tag, parser.CurrentLineNumber)
        parser.CharacterDataHandler = self._text.append
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            self._fail(error.lineno, f"is not XML: {expat.errors.messages[error.code]}")
        return self.entries

    def _start(self, tag: str, given: dict[str, str], line: int) -> None:
        self._open.append(tag)
        if len(self._open) > _MAX_DEPTH:
            self._fail(line, f"has more than {_MAX_DEPTH} elements inside each other")
        self._text.clear()
        if tag in ("item", "array") and "name" in given:
            self._name, self._line, self._values = given["name"], line, []

    def _end(self, tag: str, line: int) -> None:
        self._open.pop()
        if self._name is None:
            return
        if tag in ("item", "value"):
            self._values.append(self._parse_number("".join(self._text), line))
        if tag in ("item", "array"):
            if self._name in self.entries:
                self._fail(self._line, f"{show(self._name)} occurs twice")
            self.entries[self._name] = _Entry(self._line, tuple(self._values))
            self._name = None

    def _parse_number(self, text: str, line: int) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            self._fail(line, f"{show(self._name)}: {show(text.strip())}: must be a number ≥ 0")
        return value

    def _fail(self, line: int, reason: str) -> None:
        raise FleetFileError(f"{self.path}, line {line}: {reason}")


@dataclass(frozen=True, slots=True)
class _Profile:
    """Finds the figures under the names that Android has given them over the years."""

    path: Path
    entries: dict[str, _Entry]

    def build(self) -> PowerProfile:
        cores = self._find("cpu.clusters.cores")
        if cores is None:
            raise FleetFileError(
                f"{self.path}: 'cpu.clusters.cores' is missing: the number of cores is unknown"
            )
        millivolts = self._middle("modem.controller.voltage", "wifi.controller.voltage")
        active = self._find("cpu.active")
        return PowerProfile(
            clusters=tuple(self._read_cluster(i, count, cores.line) for i, count in enumerate(cores.values)),
            # In old profiles the same name is an array of currents per speed, of which nothing is shared.
            active_milliamps=active.values[0] if active and len(active.values) == 1 else 0.0,
            cellular_milliamps=self._middle("modem.controller.tx", "radio.active"),
            wifi_milliamps=self._middle("wifi.controller.tx", "wifi.active"),
            battery_milliamp_hours=self._middle("battery.capacity"),
            volts=millivolts / 1000 if millivolts else None,
        )

    def _read_cluster(self, number: int, cores: float, line: int) -> CpuCluster:
        if not 1 <= cores <= 1024 or cores != int(cores):
            raise self._error(line, f"'cpu.clusters.cores': {cores:g}: must be a whole number of cores")
        speeds = self._require(
            f"cpu.core_speeds.cluster{number}", f"cpu.speeds.cluster{number}", "cpu.speeds"
        )
        currents = self._require(
            f"cpu.core_power.cluster{number}", f"cpu.active.cluster{number}", "cpu.active"
        )
        if len(speeds.values) != len(currents.values) or not speeds.values:
            counts = f"{len(currents.values)} currents for {len(speeds.values)} speeds"
            raise self._error(currents.line, f"cluster {number} has {counts}")
        if list(speeds.values) != sorted(set(speeds.values)) or speeds.values[0] <= 0:
            raise self._error(speeds.line, f"the speeds of cluster {number} must rise, from above 0")
        # The template of Android has 0.1 everywhere.
        if currents.values[-1] <= 1:
            shown = f"{currents.values[-1]:g} mA at full clock"
            raise self._error(
                currents.line, f"cluster {number}: {shown}: is a placeholder, not a measurement"
            )
        shared = self._middle(f"cpu.cluster_power.cluster{number}")
        return CpuCluster(int(cores), speeds.values, currents.values, shared or 0.0)

    def _find(self, *names: str) -> _Entry | None:
        return next((self.entries[name] for name in names if name in self.entries), None)

    def _require(self, *names: str) -> _Entry:
        found = self._find(*names)
        if found is None:
            raise FleetFileError(f"{self.path}: {names[0]!r} is missing")
        return found

    def _middle(self, *names: str) -> float | None:
        """The only value, or the middle one of several levels; zero means that it was not measured."""
        found = self._find(*names)
        return found.values[len(found.values) // 2] or None if found and found.values else None

    def _error(self, line: int, reason: str) -> FleetFileError:
        return FleetFileError(f"{self.path}, line {line}: {reason}")
