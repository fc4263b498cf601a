"""This machine as a device class: what was measured, what was given, what could not be measured and why."""

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cfel import validation
from cfel.calibration.bandwidth import MAX_SECONDS, measure_bandwidth
from cfel.calibration.host_energy import HostEnergy, find_host_energy, read_battery_joules
from cfel.calibration.local_steps import StepMeasurement, measure_steps
from cfel.deployment.measurement.energy_counters import SYSFS
from cfel.errors import InputError
from cfel.experiment import Experiment
from cfel.system.devices import DescribedClass, DeviceClass
from cfel.system.devices.class_file import FIGURES, REQUIRED
from cfel.system.hardware import HardwareConditions

SENDING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """What to measure, and figures to use instead.

    Attributes:
        name: of the class.
        seconds: how long to train, at most half a minute.
        send_to: host and port of a `BandwidthServer`, or None.
        given: figures that need no measurement, e.g. watts from a power meter.
        like: a class to take from what can be neither measured nor is given.
        device: torch's device, "cpu" or "cuda".
        power_file: a power monitor's file in microwatts.
        sysfs: where the kernel shows counters.
    """

    name: str = field(default_factory=platform.node)
    seconds: float = 10.0
    send_to: tuple[str, int] | None = None
    given: Mapping[str, float] = field(default_factory=dict)
    like: DeviceClass | None = None
    device: str = "cpu"
    power_file: Path | None = None
    sysfs: Path = SYSFS

    def __post_init__(self) -> None:
        validation.check_text("name", self.name)
        validation.check_number("seconds", self.seconds, above=0, most=MAX_SECONDS / 2)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found.

    Attributes:
        steps: the measured local steps.
        batch, flops_per_sample, utilisation: with which the class gives the measured seconds per step.
        figures: of the class, as far as they are known.
        how: how each of them was obtained.
        missing: figure → why it could not be measured.
        title: of the class.
        name: of the class.
    """

    steps: StepMeasurement
    batch: int
    flops_per_sample: float
    utilisation: float
    figures: Mapping[str, float]
    how: Mapping[str, str]
    missing: Mapping[str, str]
    title: str
    name: str

    @property
    def seconds_per_step(self) -> float:
        """μ of this machine."""
        return self.steps.seconds / self.steps.steps

    def build_class(self) -> DescribedClass:
        """The class.

        Raises:
            InputError: a figure that a class must have is missing; says why and what to do.
        """
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

    def add(self, figure: str, measure: Callable[[], tuple[float, str] | str]) -> None:
        """Adds a figure; `measure` returns its value and how it was measured, or why it cannot be."""
        if figure in self.options.given:
            self._set(figure, self.options.given[figure], "given on the command line")
            return
        found = measure()
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
    """Measures this machine with an experiment's model and data.

    Raises:
        InputError: torch cannot count the model's operations and the experiment does not state them.
        UnreachableError: the other host does not answer.
    """
    energy = find_host_energy(options.sysfs, options.power_file, options.device)
    world = experiment.build_world()
    steps = measure_steps(world, options.seconds, now, energy.counters, options.device)
    batch, flops, utilisation = _find_work(experiment, steps.flops_per_sample)
    figures = _Figures(options)
    pace = steps.seconds / steps.steps
    timed = f"{batch} × {flops:.4g} FLOP in {pace:.4g} s, the mean of {steps.steps} local steps"
    at = "" if utilisation == 1 else f", at utilisation {utilisation:g}"
    figures.add("flops_per_second", lambda: (batch * flops / (pace * utilisation), timed + at))
    figures.add("compute_watts", lambda: _find_watts(steps, energy))
    _measure_sending(figures, energy, now)
    for figure in ("clock_static", "clock_exponent"):
        figures.add(figure, lambda: "clocks are not changed here")
    figures.add("battery_joules", lambda: read_battery_joules(options.sysfs))
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
    watts = steps.joules / steps.seconds
    return (
        watts,
        f"{steps.joules:.4g} J in {steps.seconds:.4g} s, by {energy.source}, everything on this host",
    )


def _measure_sending(figures: _Figures, energy: HostEnergy, now: Callable[[], float]) -> None:
    """Adds the uplink, and the watts meanwhile where a counter includes the radio."""
    target = figures.options.send_to
    reason = "no host was named to send to: run `cfel calibrate --listen` there and give --to"
    if target is None:
        figures.add("uplink_bits_per_second", lambda: reason)
        figures.add("radio_watts", lambda: reason)
        return
    begin = now()
    _read(energy, begin)
    rate = measure_bandwidth(*target, SENDING_SECONDS)
    end = now()
    joules = _read(energy, end)
    sent = f"TCP stream of {SENDING_SECONDS:g} s"
    figures.add("uplink_bits_per_second", lambda: (rate, sent))
    if joules is None or not energy.includes_radio:
        unmeasured = energy.reason or f"{energy.source} does not include the radio"
        figures.add("radio_watts", lambda: unmeasured)
    else:
        watts = joules / (end - begin)
        figures.add("radio_watts", lambda: (watts, f"{energy.source} during the {sent}, everything included"))


def _read(energy: HostEnergy, now: float) -> float | None:
    readings: Sequence[float | None] = [counter.joules(now) for counter in energy.counters]
    known = [joules for joules in readings if joules is not None]
    return math.fsum(known) if known and len(known) == len(readings) else None
