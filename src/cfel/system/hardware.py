"""Conditions from hardware figures: a table of device classes and a fleet mixed from them.

The table's figures are nominal: good for planning and for comparing classes, but not measurements of your
boards. Sustained arithmetic is taken as half of the single-precision peak (clock × lanes × 2), and watts are
what the whole board draws under load. Put your own figures into `extra_classes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray, IntArray
from cfel.errors import InputError, unknown_name
from cfel.seeding import draw_uniforms, make_generator
from cfel.system.conditions import Conditions, check_redraw, round_index

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it fill the unit interval evenly, however many are taken."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """One kind of device.

    Attributes:
        name: how a fleet refers to it.
        flops_per_second: sustained floating point operations per second.
        compute_watts: power drawn while computing.
        radio_watts: power drawn while sending.
        uplink_bits_per_second: sustained upload rate.
        source: where the figures come from, in words.
        clock_static, clock_exponent: what a slower clock saves, see `clock`. The defaults are in the middle
            of what power profiles of phones show: at half the clock a step takes 0.47 of the energy.
    """

    name: str
    flops_per_second: float
    compute_watts: float
    radio_watts: float
    uplink_bits_per_second: float
    source: str
    clock_static: float = 0.3
    clock_exponent: float = 2.0

    def __post_init__(self) -> None:
        validation.check_text("device class: name", self.name)
        for field in ("flops_per_second", "uplink_bits_per_second"):
            validation.check_number(f"device class {self.name!r}: {field}", getattr(self, field), above=0)
        for field in ("compute_watts", "radio_watts", "clock_exponent"):
            validation.check_number(f"device class {self.name!r}: {field}", getattr(self, field), least=0)
        validation.check_number(
            f"device class {self.name!r}: clock_static", self.clock_static, least=0, most=1
        )


DEVICE_CLASSES: Mapping[str, DeviceClass] = MappingProxyType(
    {
        row.name: row
        for row in (
            DeviceClass(
                "iphone-x", 691.2e9, 4.0, 1.0, 10e6, "rate as the paper states it, not halved; nominal LTE"
            ),
            DeviceClass(
                "android-mid", 250e9, 4.0, 1.0, 10e6, "phone GPU of about 0.5 TFLOP/s peak; nominal LTE"
            ),
            DeviceClass("raspberry-pi-4", 24e9, 6.4, 0.8, 20e6, "4 cores × 1.5 GHz × 8 FLOP; nominal Wi-Fi"),
            DeviceClass(
                "raspberry-pi-5", 76.8e9, 9.0, 0.8, 20e6, "4 cores × 2.4 GHz × 16 FLOP; nominal Wi-Fi"
            ),
            DeviceClass(
                "jetson-nano", 118e9, 10.0, 0.8, 20e6, "128 lanes × 0.92 GHz × 2, 10 W mode; nominal Wi-Fi"
            ),
            DeviceClass(
                "jetson-orin-nano",
                640e9,
                15.0,
                0.8,
                20e6,
                "1024 lanes × 0.625 GHz × 2, 15 W mode; nominal Wi-Fi",
            ),
            DeviceClass(
                "x86-mini-pc", 93e9, 15.0, 0.8, 20e6, "4 small cores × 2.9 GHz × 16 FLOP; nominal Wi-Fi"
            ),
        )
    }
)
"""Nominal figures of common devices, by name."""


@dataclass(frozen=True, slots=True)
class HardwareConditions:
    """A fleet of device classes.

    μ = batch · flops_per_sample / (flops_per_second · utilisation), α = μ · compute_watts,
    ν = bits / uplink_bits_per_second.

    With shares, device n's class depends on n and the seed only, and every range of device ids holds the
    classes in about their shares. With counts, the seed assigns the classes to device ids at random.

    Attributes:
        classes: class name → share (sum 1) or → count (sum = number of devices).
        flops_per_sample: floating point operations to train on one sample once (ResNet-20: 123.9e6).
        batch: samples per local step.
        utilisation: share of the sustained rate that training reaches, in (0, 1].
        jitter: J in [0, 1); computing and upload times are multiplied by independent U[1−J, 1+J) factors.
        redraw: how often the jitter is drawn again.
        extra_classes: user-defined classes; they take precedence over the table.
    """

    classes: Mapping[str, float]
    flops_per_sample: float
    batch: int = 50
    utilisation: float = 1.0
    jitter: float = 0.0
    redraw: str = "edge_round"
    extra_classes: tuple[DeviceClass, ...] = ()

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
        validation.check_number("conditions.flops_per_sample", self.flops_per_sample, above=0)
        validation.check_whole("conditions.batch", self.batch, least=1)
        validation.check_number("conditions.utilisation", self.utilisation, above=0, most=1)
        if validation.check_number("conditions.jitter", self.jitter, least=0) >= 1:
            raise InputError(f"conditions.jitter = {self.jitter}: must be < 1")
        check_redraw("conditions.redraw", self.redraw)

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
        """See `ConditionModel`."""
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
        watts = self._figures("compute_watts")[kind]
        power = self._figures("radio_watts")[kind]
        return Conditions(
            mu=mu,
            alpha=mu * watts,
            nu=nu,
            power=power,
            available=np.ones(devices, dtype=bool),
            clock_static=self._figures("clock_static")[kind],
            clock_exponent=self._figures("clock_exponent")[kind],
        )

    def _figures(self, field: str) -> FloatArray:
        known = self._known()
        return np.array([getattr(known[name], field) for name in self.classes], dtype=np.float64)
