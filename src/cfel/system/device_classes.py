"""Kinds of devices: what one is, the library of sourced ones, and conditions of a fleet mixed from them.

Device classes are TOML with one table per class, and beside each figure how it was obtained:

    [sources]
    bench = "our lab notes, March"

    [classes.my-board]
    title = "The board on my desk"
    flops_per_second = 31e9
    flops_per_second_how = "50 × 123.9e6 FLOP in 0.2 s [bench]"

The library (`device_library.toml`), `cfel calibrate` and imported power profiles share this form. `_how` and
`[sources]` are optional in a file of a user. The library's figures are good for planning and for comparing
kinds of devices, but are not measurements of your boards.

A class may also come from a phone's `power_profile.xml` (Android): `read_power_profile`, `derive_class`.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NoReturn, get_args
from xml.parsers import expat

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray, IntArray
from cfel.durable import read_bytes
from cfel.errors import FleetFileError, InputError, StorageError, unknown_name
from cfel.seeding import draw_uniforms, make_generator
from cfel.system.conditions import Conditions, Redraw, clock_energy, round_index
from cfel.system.tables import parse_number
from cfel.validation import Range, check_fields
from cfel.wording import show


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """One kind of device."""

    name: str  # how a fleet refers to it
    flops_per_second: Annotated[float, Range(above=0)]  # sustained floating point operations per second
    compute_watts: Annotated[float, Range(least=0)]  # power drawn while computing
    radio_watts: Annotated[float, Range(least=0)]  # power drawn while sending
    uplink_bits_per_second: Annotated[float, Range(above=0)]  # sustained upload rate
    source: str  # where the figures come from, in words
    # Share of a step's energy that a slower clock does not save, in [0, 1].
    clock_static: Annotated[float, Range(least=0, most=1)] = 0.3
    # γ ≥ 0 of the rest, which falls with the clock as s^γ. The defaults are in the middle of what power
    # profiles of phones show: at half the clock a step takes 0.47 of the energy.
    clock_exponent: Annotated[float, Range(least=0)] = 2.0
    # A full battery; infinity for mains power.
    battery_joules: Annotated[float, Range(above=0, finite=False)] = math.inf

    def __post_init__(self) -> None:
        validation.check_text("device class: name", self.name)
        check_fields(f"device class {self.name!r}", self)


FIGURES = tuple(entry.name for entry in fields(DeviceClass) if entry.name not in ("name", "source"))
REQUIRED = FIGURES[:4]
_HOW = "_how"
_KEYS = ("title", *FIGURES, *(figure + _HOW for figure in FIGURES))


@dataclass(frozen=True, slots=True)
class DescribedClass:
    """A device class, and how some or all of its figures were obtained, with sources in square brackets."""

    device: DeviceClass
    how: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClassFile:
    """The content of a file: classes in its order, and citations by key."""

    classes: tuple[DescribedClass, ...]
    sources: Mapping[str, str]


def parse_class_file(document: Mapping[str, Any], place: str) -> ClassFile:
    """The classes that a TOML document describes; `place` is the file, for messages."""
    for key in document:
        if key not in ("sources", "classes"):
            raise InputError(unknown_name(f"{place}: top level", key, ("sources", "classes")))
    tables = _check_table(f"{place}: classes", document.get("classes"))
    sources = _check_table(f"{place}: sources", document.get("sources", {}))
    for key, text in sources.items():
        validation.check_text(f"{place}: sources.{key}", text)
    return ClassFile(tuple(_parse_class(name, table, place) for name, table in tables.items()), sources)


def _parse_class(name: str, given: object, place: str) -> DescribedClass:
    where = f"{place}: classes.{name}"
    table = _check_table(where, given)
    for key in table:
        if key not in _KEYS:
            raise InputError(unknown_name(where, key, _KEYS))
    missing = next((figure for figure in REQUIRED if figure not in table), None)
    if missing is not None:
        raise InputError(f"{where}.{missing}: is missing")
    how = {key.removesuffix(_HOW): table[key] for key in table if key.endswith(_HOW)}
    for figure, text in how.items():
        validation.check_text(f"{where}.{figure}{_HOW}", text)
    title = validation.check_text(f"{where}.title", table.get("title", name))
    figures = {figure: table[figure] for figure in FIGURES if figure in table}
    try:
        return DescribedClass(DeviceClass(name=name, source=title, **figures), how)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def _check_table(where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} = {show(value)}: must be a table")
    return value


def class_file_toml(content: ClassFile) -> str:
    """The file's text; `parse_class_file` reads the same classes from it."""
    # Imported here, as only those who write such a file need it.
    import tomli_w

    document: dict[str, Any] = {"sources": dict(content.sources)} if content.sources else {}
    document["classes"] = {each.device.name: _class_table(each) for each in content.classes}
    return tomli_w.dumps(document)


def _class_table(described: DescribedClass) -> dict[str, Any]:
    table: dict[str, Any] = {"title": described.device.source}
    for figure in FIGURES:
        table[figure] = getattr(described.device, figure)
        if figure in described.how:
            table[figure + _HOW] = described.how[figure]
    return table


def read_library() -> ClassFile:
    """The library with the origin of every figure."""
    text = files("cfel.system").joinpath("device_library.toml").read_text(encoding="utf-8")
    return parse_class_file(tomllib.loads(text), "library.toml")


DEVICE_CLASSES: Mapping[str, DeviceClass] = MappingProxyType(
    {each.device.name: each.device for each in read_library().classes}
)
"""The classes of the library, by name."""


MAX_BYTES = 1024**2
_MAX_DEPTH = 16
_ENCODINGS = ("utf-8", "utf-16", "us-ascii", "iso-8859-1")
"""What expat itself can decode."""


@dataclass(frozen=True, slots=True)
class CpuCluster:
    """Cores of one kind: their clocks, rising, the current of one core at each, and of the cluster itself."""

    cores: int
    kilohertz: tuple[float, ...]
    milliamps: tuple[float, ...]
    shared_milliamps: float


@dataclass(frozen=True, slots=True)
class PowerProfile:
    """What a phone's profile says, as far as training and sending are concerned."""

    clusters: tuple[CpuCluster, ...]
    active_milliamps: float  # of the processor as a whole while it runs
    # cellular_milliamps and wifi_milliamps: while sending; None if the profile has no such figure. Of several
    # transmission levels the middle one.
    cellular_milliamps: float | None
    wifi_milliamps: float | None
    battery_milliamp_hours: float | None  # a full battery; None if the profile has no such figure
    volts: float | None  # at which the currents are meant; None if the profile does not say


@dataclass(frozen=True, slots=True)
class _Entry:
    """One item or array, and the line it is on."""

    line: int
    values: tuple[float, ...]


def read_power_profile(path: str | Path) -> PowerProfile:
    """Reads Android's `power_profile.xml`: clocks and currents of a phone's processor, radios, battery.

    Such a file may be anybody's, so it is read with expat alone: no document type, hence no entities, a
    limited size and depth.
    """
    file = Path(path)
    try:
        content = read_bytes(file, max_bytes=MAX_BYTES, follow_links=True)
    except StorageError as error:
        raise FleetFileError(str(error)) from error
    return _Profile(file, _read_entries(file, content)).build()


def _read_entries(path: Path, content: bytes) -> dict[str, _Entry]:
    """All items and arrays of numbers by name; everything else is ignored."""
    parser = expat.ParserCreate()
    entries: dict[str, _Entry] = {}
    open_tags: list[str] = []
    texts: list[str] = []
    values: list[float] = []
    name, line = "", 0

    def fail(reason: str, at: int = 0) -> NoReturn:
        raise FleetFileError(f"{path}, line {at or parser.CurrentLineNumber}: {reason}")

    def check_encoding(_: str, encoding: str | None, __: int) -> None:
        # For any other, Python would look for a codec of that name, and some are no encodings of text.
        if encoding is not None and encoding.lower() not in _ENCODINGS:
            fail(f"encoding {show(encoding)}: must be one of {', '.join(_ENCODINGS)}")

    def start(tag: str, given: dict[str, str]) -> None:
        nonlocal name, line
        open_tags.append(tag)
        if len(open_tags) > _MAX_DEPTH:
            fail(f"has more than {_MAX_DEPTH} elements inside each other")
        texts.clear()
        if tag in ("item", "array") and "name" in given:
            name, line = given["name"], parser.CurrentLineNumber
            values.clear()

    def end(tag: str) -> None:
        nonlocal name
        open_tags.pop()
        if not name:
            return
        if tag in ("item", "value"):
            value = parse_number("".join(texts))
            if value is None or not 0 <= value < math.inf:
                fail(f"{show(name)}: {show(''.join(texts).strip())}: must be a number ≥ 0")
            values.append(value)
        if tag in ("item", "array"):
            if name in entries:
                fail(f"{show(name)} occurs twice", line)
            entries[name], name = _Entry(line, tuple(values)), ""

    parser.XmlDeclHandler = check_encoding
    parser.StartDoctypeDeclHandler = lambda *_: fail("has a document type, which no power profile needs")
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = texts.append
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        fail(f"is not XML: {expat.errors.messages[error.code]}", error.lineno)
    return entries


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


Radio = Literal["cellular", "wifi"]
RADIOS = get_args(Radio)
DEFAULT_VOLTS = 3.7
DEFAULT_FLOPS_PER_CYCLE = 8.0
"""One 128-bit multiply-add a cycle in single precision: 4 lanes × 2."""
LTE_BITS_PER_SECOND = 6e6
"""Median uplink of LTE in Huang et al., MobiSys 2012."""
SUSTAINED = 0.5
"""Share of the arithmetic peak that is reached; HPL reaches 0.41 and 0.46 of it on Raspberry Pi 4 and 5."""
_CURVE_POINTS = 21
_EXPONENTS = np.arange(0.5, 6.01, 0.05)


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What to add to a profile."""

    # Of one core of each cluster, single precision; empty for the default.
    flops_per_cycle: tuple[Annotated[float, Range(above=0)], ...] = ()
    radio: Radio = "cellular"  # which one uploads
    # None for the median of LTE; required for Wi-Fi.
    uplink_bits_per_second: Annotated[float, Range(above=0)] | None = None
    # Of the battery; None for what the profile says, or else 3.7.
    volts: Annotated[float, Range(above=0)] | None = None

    def __post_init__(self) -> None:
        check_fields("profile", self)
        if self.radio == "wifi" and self.uplink_bits_per_second is None:
            raise InputError("uplink_bits_per_second: is needed for Wi-Fi; a profile does not hold it")


def derive_class(profile: PowerProfile, name: str, title: str, options: ProfileOptions) -> DescribedClass:
    """The class of a phone, with how each figure was obtained.

    All cores run at the same share of their full clock, as a training that uses the whole processor would.
    What a profile does not hold (arithmetic per cycle, upload rate) comes from the options or a stated
    default.
    """
    rates = _choose_rates(profile, options)
    volts = options.volts or profile.volts or DEFAULT_VOLTS
    one = np.ones(1)
    watts = float(volts * _milliamps(profile, one)[0] / 1000)
    flops = float(SUSTAINED * _peak_flops(profile, rates, one)[0])
    static, exponent, error = fit_clock_curve(profile, rates)
    sending = _choose_radio(profile, options)
    uplink = options.uplink_bits_per_second or LTE_BITS_PER_SECOND
    charge = profile.battery_milliamp_hours
    battery = math.inf if charge is None else 3.6 * charge * volts
    cores = " + ".join(
        f"{each.cores} × {each.kilohertz[-1] / 1e6:g} GHz × {rate:g} FLOP"
        for each, rate in zip(profile.clusters, rates, strict=True)
    )
    at = f"at {volts:g} V" + ("" if options.volts or profile.volts else ", which the profile does not say")
    device = DeviceClass(name, flops, watts, volts * sending / 1000, uplink, title, static, exponent, battery)
    curve = f"least-squares fit over the profile's clocks, error {error:.3f} of the energy at full clock"
    return DescribedClass(
        device,
        {
            "flops_per_second": f"{SUSTAINED:g} of the peak: {cores} a cycle",
            "compute_watts": f"{1000 * watts / volts:.1f} mA {at}: all cores at full clock",
            "radio_watts": f"{sending:g} mA {at}: {options.radio}, middle transmission level",
            "uplink_bits_per_second": "as given"
            if options.uplink_bits_per_second
            else "median LTE uplink, Huang et al., MobiSys 2012",
            "clock_static": curve,
            "clock_exponent": curve,
            "battery_joules": "not in the profile: no limit" if charge is None else f"{charge:g} mAh {at}",
        },
    )


def fit_clock_curve(profile: PowerProfile, rates: tuple[float, ...]) -> tuple[float, float, float]:
    """Fits c and γ of `clock_energy` to the energy of an operation at slower clocks.

    Returns c, γ and the root mean square error. A single clock shows no saving: c is 1.
    """
    # Below the lowest clock of any cluster the profile says nothing.
    lowest = max(each.kilohertz[0] / each.kilohertz[-1] for each in profile.clusters)
    clock = np.linspace(lowest, 1, _CURVE_POINTS)
    energy = _milliamps(profile, clock) / _peak_flops(profile, rates, clock)
    energy = energy / energy[-1]
    if lowest == 1:
        return 1.0, 2.0, 0.0
    fits = [_fit_static(clock, energy, float(exponent)) for exponent in _EXPONENTS]
    error, static, exponent = min(fits)
    return round(static, 3), round(exponent, 2), error


def _fit_static(clock: FloatArray, energy: FloatArray, exponent: float) -> tuple[float, float, float]:
    """Error, c and γ for a given γ: least squares in c, kept within [0, 1]."""
    dynamic = clock**exponent
    static = float(np.clip(((energy - dynamic) @ (1 - dynamic)) / ((1 - dynamic) @ (1 - dynamic)), 0, 1))
    error = energy - clock_energy(clock, static, exponent)
    return float(np.sqrt(np.mean(error**2))), static, exponent


def _choose_rates(profile: PowerProfile, options: ProfileOptions) -> tuple[float, ...]:
    given, clusters = options.flops_per_cycle, len(profile.clusters)
    if given and len(given) != clusters:
        raise InputError(f"flops per cycle: {len(given)} given, the profile has {clusters} clusters of cores")
    return given or (DEFAULT_FLOPS_PER_CYCLE,) * clusters


def _choose_radio(profile: PowerProfile, options: ProfileOptions) -> float:
    found = profile.cellular_milliamps if options.radio == "cellular" else profile.wifi_milliamps
    if found is None:
        other = next(radio for radio in RADIOS if radio != options.radio)
        raise InputError(f"radio = {options.radio!r}: the profile has no such current; try {other!r}")
    return found


def _milliamps(profile: PowerProfile, clock: FloatArray) -> FloatArray:
    """Of the whole processor, all cores at these shares of their full clock."""
    total = np.full_like(clock, profile.active_milliamps)
    for each in profile.clusters:
        core = np.interp(clock * each.kilohertz[-1], each.kilohertz, each.milliamps)
        total += each.shared_milliamps + each.cores * core
    return total


def _peak_flops(profile: PowerProfile, rates: tuple[float, ...], clock: FloatArray) -> FloatArray:
    full = sum(
        1e3 * each.kilohertz[-1] * each.cores * rate
        for each, rate in zip(profile.clusters, rates, strict=True)
    )
    return full * clock


GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it fill the unit interval evenly, however many are taken."""


@dataclass(frozen=True, slots=True)
class HardwareConditions:
    """A fleet of device classes.

    μ = batch · flops_per_sample / (flops_per_second · utilisation), α = μ · compute_watts,
    ν = bits / uplink_bits_per_second.

    With shares, device n's class depends on n and the seed only, and every range of device ids holds the
    classes in about their shares. With counts, the seed assigns the classes to device ids at random.
    """

    classes: Mapping[str, float]  # class name → share (sum 1) or → count (sum = number of devices)
    # Floating point operations to train on one sample once (ResNet-20: 123.9e6).
    flops_per_sample: Annotated[float, Range(above=0)]
    batch: Annotated[int, Range(least=1)] = 50  # samples per local step
    # Share of the sustained rate that training reaches, in (0, 1].
    utilisation: Annotated[float, Range(above=0, most=1)] = 1.0
    # J in [0, 1); computing and upload times are multiplied by independent U[1−J, 1+J) factors.
    jitter: Annotated[float, Range(least=0, below=1)] = 0.0
    redraw: Redraw = "edge_round"  # how often the jitter is drawn again
    extra_classes: tuple[DeviceClass, ...] = ()  # user-defined classes; they take precedence over the library
    # Share of its class's battery that a device may use; 0 for no limit.
    battery_share: Annotated[float, Range(least=0, most=1)] = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.classes, Mapping):
            raise InputError(f"conditions.classes = {self.classes!r}: must be a table of class and amount")
        object.__setattr__(self, "classes", dict(self.classes))
        object.__setattr__(self, "extra_classes", tuple(self.extra_classes))
        known = self._known()
        for name, amount in self.classes.items():
            if name not in known:
                raise InputError(unknown_name("conditions.classes", name, known))
            validation.check_number(f"conditions.classes[{name!r}]", amount, above=0)
        check_fields("conditions", self)

    def _known(self) -> dict[str, DeviceClass]:
        return {**DEVICE_CLASSES, **{row.name: row for row in self.extra_classes}}

    def check_devices(self, devices: int) -> None:
        """Raises an `InputError` for amounts that are neither shares nor counts of that many devices."""
        total = sum(self.classes.values())
        if not self._are_counts(devices) and abs(total - 1) > 1e-9:
            raise InputError(
                f"conditions.classes: sum to {total:g}, must be 1 (shares) or {devices} (whole counts)"
            )

    def _are_counts(self, devices: int) -> bool:
        amounts = self.classes.values()
        return sum(amounts) == devices and all(float(amount).is_integer() for amount in amounts)

    def class_of(self, seed: int, devices: int) -> IntArray:
        """For each device, the position of its class in `classes`."""
        self.check_devices(devices)
        amounts = np.array(list(self.classes.values()), dtype=np.float64)
        if self._are_counts(devices):
            dealt = np.repeat(np.arange(amounts.size), amounts.astype(np.int64))
            return np.asarray(make_generator(seed, "hardware").permutation(dealt), dtype=np.int64)
        # Evenly spread instead of independent draws, so that small fleets have about the shares, too.
        places = (make_generator(seed, "hardware").random() + np.arange(devices) * GOLDEN) % 1
        inner = np.cumsum(amounts)[:-1]
        return np.searchsorted(inner, places, side="right").astype(np.int64)

    def conditions(
        self, seed: int, global_round: int, edge_round: int, devices: int, model_bits: float
    ) -> Conditions:
        kind = self.class_of(seed, devices)
        mu = (self.batch * self.flops_per_sample / self.utilisation) / self._figures("flops_per_second")[kind]
        nu = model_bits / self._figures("uplink_bits_per_second")[kind]
        if self.jitter > 0:
            index = round_index(self.redraw, global_round, edge_round)
            draws = draw_uniforms(seed, "hardware-jitter", index, devices, 2)
            mu, nu = (
                times * (1 + self.jitter * (2 * draw - 1))
                for times, draw in zip((mu, nu), draws.T, strict=True)
            )
        return Conditions(
            mu=mu,
            alpha=mu * self._figures("compute_watts")[kind],
            nu=nu,
            power=self._figures("radio_watts")[kind],
            available=np.ones(devices, dtype=bool),
            clock_static=self._figures("clock_static")[kind],
            clock_exponent=self._figures("clock_exponent")[kind],
        )

    def battery_joules(self, seed: int, devices: int) -> FloatArray | None:
        """What each device may use of its battery, infinity on mains power; None without a limit."""
        if self.battery_share == 0:
            return None
        return self.battery_share * self._figures("battery_joules")[self.class_of(seed, devices)]

    def _figures(self, field: str) -> FloatArray:
        known = self._known()
        return np.array([getattr(known[name], field) for name in self.classes], dtype=np.float64)
