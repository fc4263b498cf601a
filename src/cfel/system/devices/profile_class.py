"""A device class from a phone's power profile: speed, watts, the clock's energy curve, radio and battery.

All cores run at the same share of their full clock, as a training that uses the whole processor would. What a
profile does not hold (arithmetic per cycle, upload rate) comes from the caller or a stated default, and each
figure says how it was obtained.
"""

import math
from dataclasses import dataclass

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.errors import InputError, unknown_name
from cfel.system.clock import clock_energy
from cfel.system.devices.class_file import DescribedClass
from cfel.system.devices.device_class import DeviceClass
from cfel.system.devices.power_profile import CpuCluster, PowerProfile

RADIOS = ("cellular", "wifi")
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
    """What to add to a profile.

    Attributes:
        flops_per_cycle: of one core of each cluster, single precision; empty for the default.
        radio: "cellular" or "wifi".
        uplink_bits_per_second: None for the median of LTE; required for Wi-Fi.
        volts: of the battery; None for what the profile says, or else 3.7.
    """

    flops_per_cycle: tuple[float, ...] = ()
    radio: str = "cellular"
    uplink_bits_per_second: float | None = None
    volts: float | None = None

    def __post_init__(self) -> None:
        for value in self.flops_per_cycle:
            validation.check_number("flops per cycle", value, above=0)
        if self.radio not in RADIOS:
            raise InputError(unknown_name("radio", self.radio, RADIOS))
        for name in ("uplink_bits_per_second", "volts"):
            if getattr(self, name) is not None:
                validation.check_number(name, getattr(self, name), above=0)
        if self.radio == "wifi" and self.uplink_bits_per_second is None:
            raise InputError("uplink_bits_per_second: is needed for Wi-Fi; a profile does not hold it")


def derive_class(profile: PowerProfile, name: str, title: str, options: ProfileOptions) -> DescribedClass:
    """The class of a phone, with how each figure was obtained.

    Raises:
        InputError: the options do not fit the profile, or it lacks the radio's current.
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
    """Fits c and γ of `clock.clock_energy` to the energy of an operation at slower clocks.

    Returns:
        c, γ and the root mean square error. One speed only shows no saving: c is 1.
    """
    # Below the lowest speed of any cluster the profile says nothing.
    lowest = max(each.kilohertz[0] / each.kilohertz[-1] for each in profile.clusters)
    speed = np.linspace(lowest, 1, _CURVE_POINTS)
    energy = _milliamps(profile, speed) / _peak_flops(profile, rates, speed)
    energy = energy / energy[-1]
    if lowest == 1:
        return 1.0, 2.0, 0.0
    fits = [_fit_static(speed, energy, float(exponent)) for exponent in _EXPONENTS]
    error, static, exponent = min(fits)
    return round(static, 3), round(exponent, 2), error


def _fit_static(speed: FloatArray, energy: FloatArray, exponent: float) -> tuple[float, float, float]:
    """Error, c and γ for a given γ: least squares in c, kept within [0, 1]."""
    dynamic = speed**exponent
    static = float(np.clip(((energy - dynamic) @ (1 - dynamic)) / ((1 - dynamic) @ (1 - dynamic)), 0, 1))
    error = energy - clock_energy(speed, static, exponent)
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


def _milliamps(profile: PowerProfile, speed: FloatArray) -> FloatArray:
    """Of the whole processor, all cores at these shares of their full clock."""
    return profile.active_milliamps + sum(
        (each.shared_milliamps + each.cores * _core_milliamps(each, speed) for each in profile.clusters),
        start=np.zeros_like(speed),
    )


def _core_milliamps(cluster: CpuCluster, speed: FloatArray) -> FloatArray:
    return np.interp(speed * cluster.kilohertz[-1], cluster.kilohertz, cluster.milliamps)


def _peak_flops(profile: PowerProfile, rates: tuple[float, ...], speed: FloatArray) -> FloatArray:
    full = sum(
        1e3 * each.kilohertz[-1] * each.cores * rate
        for each, rate in zip(profile.clusters, rates, strict=True)
    )
    return full * speed
