"""Conditions from hardware figures: a fleet mixed from device classes.

The classes themselves, and where their figures come from, are in `devices`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray, IntArray
from cfel.errors import InputError, unknown_name
from cfel.seeding import draw_uniforms, make_generator
from cfel.system.conditions import Conditions, check_redraw, round_index
from cfel.system.devices import DEVICE_CLASSES, DeviceClass

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it fill the unit interval evenly, however many are taken."""


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
        redraw: how often the jitter is drawn again: "edge_round", "global_round" or "never".
        extra_classes: user-defined classes; they take precedence over the library.
        battery_share: share of its class's battery that a device may use; 0 for no limit.
    """

    classes: Mapping[str, float]
    flops_per_sample: float
    batch: int = 50
    utilisation: float = 1.0
    jitter: float = 0.0
    redraw: str = "edge_round"
    extra_classes: tuple[DeviceClass, ...] = ()
    battery_share: float = 0.0

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
        validation.check_number("conditions.battery_share", self.battery_share, least=0, most=1)

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

    def battery_joules(self, seed: int, devices: int) -> FloatArray | None:
        """What each device may use of its battery, infinity on mains power; None without a limit."""
        if self.battery_share == 0:
            return None
        return self.battery_share * self._figures("battery_joules")[self.class_of(seed, devices)]

    def _figures(self, field: str) -> FloatArray:
        known = self._known()
        return np.array([getattr(known[name], field) for name in self.classes], dtype=np.float64)
