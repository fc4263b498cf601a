"""Measures this machine and describes it as a device class: `cfel calibrate`.

It times local steps, counts their joules where the host has counters, and sends a TCP stream to another host
that runs `cfel calibrate --listen`.
"""

import math
import platform
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from torch.utils.flop_counter import FlopCounterMode

from cfel import validation
from cfel.deployment.measurement.energy_counters import (
    SYSFS,
    EnergyCounter,
    PackageCounter,
    find_counter,
    find_gpu_counter,
)
from cfel.errors import InputError, UnreachableError, describe_error
from cfel.experiment import Experiment
from cfel.learning.device import device_update
from cfel.learning.device_messages import DeviceState, Order
from cfel.learning.local.workspace import Workspace
from cfel.learning.torch_state import prepare_thread
from cfel.system.device_classes import FIGURES, REQUIRED, DescribedClass, DeviceClass, HardwareConditions
from cfel.world import World

GREETING = b"cfel bandwidth 1\n"
MAX_SECONDS = 60.0
"""A server gives one client at most this long."""
_BLOCK = 64 * 1024
# A larger buffer would take long to drain over a slow link.
_SEND_BUFFER = 256 * 1024
_ANSWER = struct.Struct("!Q")


class BandwidthServer:
    """Receives streams, one client at a time, and answers each with the number of its bytes.

    It knows no peers: anybody who can reach it can fill its link for as long as it runs. Port 0 takes any.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            self._socket = socket.create_server((host, port), backlog=4)
        except OSError as error:
            raise UnreachableError(f"cannot listen on {host}:{port}: {describe_error(error)}") from error

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def serve_one(self) -> tuple[str, int]:
        """Serves the next client; returns its address and its bytes: 0 if it went away or is a stranger."""
        connection, address = self._socket.accept()
        with connection:
            try:
                received = _receive_stream(connection)
            except OSError:
                # It went away or was too slow; the next one may do better.
                received = 0
        return str(address[0]), received

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def _receive_stream(connection: socket.socket) -> int:
    deadline = time.monotonic() + MAX_SECONDS
    connection.settimeout(MAX_SECONDS)
    if _receive_exactly(connection, len(GREETING)) != GREETING:
        return 0
    received, space = 0, bytearray(_BLOCK)
    while time.monotonic() < deadline:
        size = connection.recv_into(space)
        if size == 0:
            connection.sendall(_ANSWER.pack(received))
            return received
        received += size
    return 0


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    """That many bytes, or fewer if the stream ends before."""
    parts = b""
    while len(parts) < size and (part := connection.recv(size - len(parts))):
        parts += part
    return parts


def measure_bandwidth(host: str, port: int, seconds: float) -> float:
    """Sends for some seconds and returns the bits per second that arrived, buffers included."""
    place = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=10) as connection:
            connection.settimeout(MAX_SECONDS - seconds / 2)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            connection.sendall(GREETING)
            begin, block = time.monotonic(), bytes(_BLOCK)
            while time.monotonic() - begin < seconds:
                connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
            answer = _receive_exactly(connection, _ANSWER.size)
            passed = time.monotonic() - begin
    except OSError as error:
        raise UnreachableError(f"{place}: cannot measure the bandwidth: {describe_error(error)}") from error
    if len(answer) != _ANSWER.size or not (received := _ANSWER.unpack(answer)[0]):
        raise UnreachableError(f"{place}: does not answer as `cfel calibrate --listen` does")
    return float(8 * received / passed)


_MICRO = 1e-6
_JOULES_PER_WATT_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class HostEnergy:
    """The energy counters of this host, which are added up."""

    counters: tuple[EnergyCounter, ...]  # none if joules cannot be measured here
    reason: str = ""  # why not; empty if they can
    includes_radio: bool = False  # whether what they count includes the radio

    @property
    def source(self) -> str:
        return " and ".join(counter.source for counter in self.counters)

    def read_joules(self, now: float) -> float | None:
        """Joules since the last call; None without counters, or if one cannot be read."""
        readings = [counter.joules(now) for counter in self.counters]
        known = [joules for joules in readings if joules is not None]
        return sum(known) if known and len(known) == len(readings) else None


def find_host_energy(sysfs: Path, power_file: Path | None, device: str) -> HostEnergy:
    """Finds this host's counters; that of a GPU is added where no other includes it."""
    host = find_counter(sysfs, power_file)
    if host is None:
        if any((sysfs / "powercap").glob("intel-rapl:*")):
            return HostEnergy(
                (), "the processor counts energy (RAPL), but this user may not read it; root may"
            )
        return HostEnergy(
            (), "this host shows no energy counter: no RAPL, and no battery with a power reading"
        )
    if not isinstance(host, PackageCounter):
        return HostEnergy((host,), includes_radio=True)
    if not device.startswith("cuda"):
        return HostEnergy((host,))
    gpu, reason = find_gpu_counter()
    if gpu is None:
        return HostEnergy((), f"RAPL does not include the GPU, and {reason}")
    return HostEnergy((host, gpu))


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


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """What local steps took."""

    steps: int  # how many were measured
    # seconds and joules: of all of them; no joules if a counter could not be read.
    seconds: float
    joules: float | None
    flops_per_sample: float  # operations of one sample in one step, as torch counts them; 0 if it cannot


def measure_steps(
    world: World, options: "CalibrationOptions", energy: HostEnergy, now: Callable[[], float]
) -> StepMeasurement:
    """Measures steps as a device of a federation takes them, those of the device with the most samples.

    It takes `options.seconds`, or longer for a single step that takes longer.
    """
    prepare_thread()
    workspace = Workspace(world.task, world.training, world.compress, options.device)
    # The first step of an order also makes estimates, so a step is what a second one adds.
    flops = _count_flops(world, workspace, 2) - _count_flops(world, workspace, 1)
    batch = min(world.training.batch, world.data[_find_device(world)].samples)
    # Caches are warm by now; one step is timed, to know how many fit into the time.
    before = now()
    _take_steps(world, workspace, 1)
    pace = max(now() - before, 1e-9)
    begin = now()
    energy.read_joules(begin)
    steps = 0
    while steps == 0 or (now() - begin) + pace < options.seconds:
        many = min(world.setting.rounds.local_steps, max(1, int((options.seconds - (now() - begin)) / pace)))
        _take_steps(world, workspace, many)
        steps += many
    end = now()
    return StepMeasurement(steps, end - begin, energy.read_joules(end), flops / batch)


def _count_flops(world: World, workspace: Workspace, steps: int) -> int:
    with FlopCounterMode(display=False) as counter:
        _take_steps(world, workspace, steps)
    return int(counter.get_total_flops())


def _take_steps(world: World, workspace: Workspace, steps: int) -> None:
    device = _find_device(world)
    order = Order(
        seed=world.setting.seed,
        global_round=0,
        edge_round=0,
        device=device,
        rho=1.0,
        theta=1.0,
        tau=steps,
        model=world.start,
    )
    device_update(order, world.data[device], DeviceState(), workspace)


def _find_device(world: World) -> int:
    """The device with the most samples, whose batches are full if any are."""
    return max(range(len(world.data)), key=lambda device: world.data[device].samples)


SENDING_SECONDS = 5.0
"""How long the uplink is measured."""


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """What to measure, and figures to use instead."""

    name: str = field(default_factory=platform.node)  # of the class
    seconds: float = 10.0  # how long to train, at most half a minute
    send_to: tuple[str, int] | None = None  # host and port of a `BandwidthServer`, or None
    # Figures that need no measurement, e.g. watts from a power meter.
    given: Mapping[str, float] = field(default_factory=dict)
    like: DeviceClass | None = None  # a class to take from what can be neither measured nor is given
    device: str = "cpu"  # torch's device, "cpu" or "cuda"
    power_file: Path | None = None  # a power monitor's file in microwatts
    sysfs: Path = SYSFS  # where the kernel shows counters

    def __post_init__(self) -> None:
        validation.check_text("name", self.name)
        validation.check_number("seconds", self.seconds, above=0, most=MAX_SECONDS / 2)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found."""

    steps: StepMeasurement
    # batch, flops_per_sample and utilisation: with which the class gives the measured seconds per step.
    batch: int
    flops_per_sample: float
    utilisation: float
    figures: Mapping[str, float]  # of the class, as far as they are known
    how: Mapping[str, str]  # how each of them was obtained
    missing: Mapping[str, str]  # figure → why it could not be measured
    title: str
    name: str

    @property
    def seconds_per_step(self) -> float:
        return self.steps.seconds / self.steps.steps

    def build_class(self) -> DescribedClass:
        lacking = [f"{figure} ({self.missing[figure]})" for figure in REQUIRED if figure not in self.figures]
        if lacking:
            raise InputError(
                f"no class was written, as these figures are unknown: {'; '.join(lacking)}. Give them, or "
                "name a similar class with --like"
            )
        return DescribedClass(DeviceClass(name=self.name, source=self.title, **self.figures), self.how)


@dataclass(slots=True)
class _Figures:
    """Collects figures: given ones first, then measured ones, then those of a similar class."""

    options: CalibrationOptions
    values: dict[str, float] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, figure: str, found: tuple[float, str] | str) -> None:
        """Adds a figure: its value and how it was measured, or why it cannot be."""
        if figure in self.options.given:
            self._set(figure, self.options.given[figure], "given on the command line")
            return
        if not isinstance(found, str):
            self._set(figure, *found)
            return
        self.missing[figure] = found
        like = self.options.like
        if like is not None:
            self._set(figure, getattr(like, figure), f"not measured ({found}); as {like.name}")

    def _set(self, figure: str, value: float, how: str) -> None:
        self.values[figure], self.how[figure] = value, how


def calibrate(
    experiment: Experiment, options: CalibrationOptions, now: Callable[[], float] = time.monotonic
) -> Calibration:
    """Measures this machine with an experiment's model and data."""
    energy = find_host_energy(options.sysfs, options.power_file, options.device)
    world = experiment.build_world()
    steps = measure_steps(world, options, energy, now)
    batch, flops, utilisation = _find_work(experiment, steps.flops_per_sample)
    figures = _Figures(options)
    pace = steps.seconds / steps.steps
    timed = f"{batch} × {flops:.4g} FLOP in {pace:.4g} s, the mean of {steps.steps} local steps"
    at = "" if utilisation == 1 else f", at utilisation {utilisation:g}"
    figures.add("flops_per_second", (batch * flops / (pace * utilisation), timed + at))
    figures.add("compute_watts", _find_watts(steps, energy))
    _measure_sending(figures, energy, now)
    for figure in ("clock_static", "clock_exponent"):
        figures.add(figure, "clocks are not changed here")
    figures.add("battery_joules", read_battery_joules(options.sysfs))
    for figure in FIGURES[4:]:
        # A class need not have these, so what is unknown is the default of a class, and says so.
        if figure not in figures.values:
            figures.how[figure] = f"default; {figures.missing[figure]}"
    title = f"{platform.machine()} {platform.system()}, measured by cfel calibrate with {experiment.name}"
    return Calibration(
        steps, batch, flops, utilisation, figures.values, figures.how, figures.missing, title, options.name
    )


def _find_work(experiment: Experiment, counted: float) -> tuple[int, float, float]:
    """Batch, operations per sample and utilisation with which a class gives seconds per step."""
    stated = experiment.fleet.conditions
    if isinstance(stated, HardwareConditions):
        return stated.batch, stated.flops_per_sample, stated.utilisation
    if counted <= 0:
        raise InputError(
            "torch counts no operations in this model: state flops_per_sample in the experiment's "
            'fleet.conditions, with kind = "classes"'
        )
    return experiment.data.batch, counted, 1.0


def _find_watts(steps: StepMeasurement, energy: HostEnergy) -> tuple[float, str] | str:
    if steps.joules is None or steps.joules <= 0:
        return energy.reason or "the counter could not be read, or did not move, during the measurement"
    found = f"{steps.joules:.4g} J in {steps.seconds:.4g} s, by {energy.source}, everything on this host"
    return steps.joules / steps.seconds, found


def _measure_sending(figures: _Figures, energy: HostEnergy, now: Callable[[], float]) -> None:
    """Adds the uplink, and the watts meanwhile where a counter includes the radio."""
    target = figures.options.send_to
    if target is None:
        reason = "no host was named to send to: run `cfel calibrate --listen` there and give --to"
        figures.add("uplink_bits_per_second", reason)
        figures.add("radio_watts", reason)
        return
    begin = now()
    energy.read_joules(begin)
    rate = measure_bandwidth(*target, SENDING_SECONDS)
    end = now()
    joules = energy.read_joules(end)
    sent = f"TCP stream of {SENDING_SECONDS:g} s"
    figures.add("uplink_bits_per_second", (rate, sent))
    if joules is None or not energy.includes_radio:
        figures.add("radio_watts", energy.reason or f"{energy.source} does not include the radio")
    else:
        watts = joules / (end - begin)
        figures.add("radio_watts", (watts, f"{energy.source} during the {sent}, everything included"))
