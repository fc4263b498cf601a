"""What computing and sending cost each device at one moment, and the paper's random model of it.

A condition model implements `conditions(seed, global_round, edge_round, devices, model_bits)`. Its result is
a function of these arguments alone, so that all schemes meet the same conditions, and device n has the same
numbers in a fleet of any size. Others: `device_classes`, `device_tables`. Absent devices: `availability`.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray
from cfel.seeding import draw_uniforms
from cfel.validation import Range, check_fields

PAPER_EXPONENT = 2.0


def clock_energy(clock: ArrayLike, static: ArrayLike, exponent: ArrayLike) -> FloatArray:
    """Energy of a step at a share s of the full clock, as a share of its energy there: c + (1 − c)·s^γ.

    The paper's model, α ∝ f², has nothing static (c = 0) and the exponent γ = 2. Power profiles of phones
    save less: at half the clock a cycle takes 0.34 to 0.61 of the energy, which is a static share of 0.12 to
    0.48.
    """
    share, power = np.asarray(static, dtype=np.float64), np.asarray(exponent, dtype=np.float64)
    # A square costs a tenth of a general power, and is the usual case.
    dynamic = np.square(clock) if (power == PAPER_EXPONENT).all() else np.power(clock, power)
    return np.asarray(share + (1.0 - share) * dynamic)


Redraw = Literal["edge_round", "global_round", "never"]
"""How often conditions change."""


@dataclass(frozen=True, slots=True, eq=False)
class Conditions:
    """One edge round's conditions, one entry per device."""

    mu: FloatArray  # seconds per local step, > 0
    alpha: FloatArray  # joules per local step, ≥ 0
    nu: FloatArray  # seconds to upload one full model, ≥ 0
    power: FloatArray  # watts of the radio while sending, ≥ 0
    available: BoolArray  # whether the device takes part
    # clock_static and clock_exponent: what a slower clock saves, see `clock_energy`; one number stands for
    # all devices.
    clock_static: FloatArray = 0.0  # type: ignore[assignment]
    clock_exponent: FloatArray = PAPER_EXPONENT  # type: ignore[assignment]
    # How much each device's update counts within its cluster, where devices were sampled with unequal
    # chances; None: as the scheme says.
    weight: FloatArray | None = None

    def __post_init__(self) -> None:
        mu = validation.check_floats("mu", self.mu, above=0)
        object.__setattr__(self, "mu", mu)
        for field in ("alpha", "nu", "power"):
            object.__setattr__(
                self, field, validation.check_floats(field, getattr(self, field), length=mu.size, least=0)
            )
        for field, most in (("clock_static", 1.0), ("clock_exponent", None)):
            # One number may stand for all devices.
            curve = np.broadcast_to(np.asarray(getattr(self, field), dtype=np.float64), mu.shape)
            object.__setattr__(self, field, validation.check_floats(field, curve, least=0, most=most))
        if self.weight is not None:
            validation.check_floats("weight", self.weight, length=mu.size, above=0)
        object.__setattr__(
            self, "available", validation.check_booleans("available", self.available, length=mu.size)
        )

    @property
    def devices(self) -> int:
        return self.mu.size

    def at_clock(self, clock: FloatArray) -> "Conditions":
        """Returns the same conditions at slower clocks: a step takes longer, and less energy."""
        saved = clock_energy(clock, self.clock_static, self.clock_exponent)
        return replace(self, mu=self.mu / clock, alpha=self.alpha * saved)

    def without(self, absent: ArrayLike) -> "Conditions":
        """Returns the same conditions without the devices marked in `absent`."""
        marked = validation.check_booleans("absent", absent, length=self.devices)
        return replace(self, available=self.available & ~marked)


class ConditionModel(Protocol):
    """Where conditions come from."""

    def conditions(
        self, seed: int, global_round: int, edge_round: int, devices: int, model_bits: float
    ) -> Conditions:
        """Conditions of edge round `edge_round` of global round `global_round`, both counted from 0.

        `model_bits` is the size of one full model, e.g. 32 d.
        """
        ...


def round_index(redraw: Redraw, global_round: int, edge_round: int) -> tuple[int, ...]:
    """The part of a seeding key that changes as often as `redraw` says."""
    return {"edge_round": (global_round, edge_round), "global_round": (global_round,), "never": ()}[redraw]


@dataclass(frozen=True, slots=True)
class RandomConditions:
    """The paper's model: frequency, bandwidth, power and channel gain are random and independent.

    μ = seconds_gigahertz / f, α = alpha_joules · f², ν = bits / (B · log2(1 + p h / N0)) with f, B, p uniform
    and h exponential.
    """

    gigahertz: tuple[float, float] = (1.0, 2.0)  # lowest and highest CPU frequency f
    bandwidth_megahertz: tuple[float, float] = (1.0, 5.0)  # lowest and highest bandwidth B
    watts: tuple[float, float] = (0.1, 1.0)  # lowest and highest transmission power p
    seconds_gigahertz: Annotated[float, Range(above=0)] = 150.0  # seconds one local step takes at 1 GHz
    # Joules one local step takes at 1 GHz (0.15 fits the paper's CIFAR-10, 1.5 its FEMNIST).
    alpha_joules: Annotated[float, Range(least=0)] = 0.15
    channel_mean: Annotated[float, Range(above=0)] = 1.0  # mean of the channel gain h
    # Least h; 0 is the paper's model as printed, in which a single upload can take hours.
    channel_floor: Annotated[float, Range(least=0)] = 0.01
    noise_watts: Annotated[float, Range(above=0)] = 0.01  # noise power N0
    # Share of a step's energy that a slower clock does not save, in [0, 1]; 0 in the paper.
    clock_static: Annotated[float, Range(least=0, most=1)] = 0.0
    # γ ≥ 0 of the rest, which falls with the clock as s^γ; 2 in the paper.
    clock_exponent: Annotated[float, Range(least=0)] = PAPER_EXPONENT
    redraw: Redraw = "edge_round"  # how often they are drawn again; in the paper in every edge round

    def __post_init__(self) -> None:
        for field in ("gigahertz", "bandwidth_megahertz", "watts"):
            pair = validation.check_interval(f"conditions.{field}", getattr(self, field), above=0)
            object.__setattr__(self, field, pair)
        check_fields("conditions", self)

    def conditions(
        self, seed: int, global_round: int, edge_round: int, devices: int, model_bits: float
    ) -> Conditions:
        index = round_index(self.redraw, global_round, edge_round)
        # Always four draws per device, in this order; another order would change every run's conditions.
        draws = draw_uniforms(seed, "conditions", index, devices, 4).T
        gigahertz = _between(self.gigahertz, draws[0])
        watts = _between(self.watts, draws[2])
        rate = self._bits_per_second(_between(self.bandwidth_megahertz, draws[1]), watts, draws[3])
        return Conditions(
            mu=self.seconds_gigahertz / gigahertz,
            alpha=self.alpha_joules * gigahertz**2,
            nu=model_bits / rate,
            power=watts,
            available=np.ones(devices, dtype=bool),
            clock_static=np.full(devices, self.clock_static),
            clock_exponent=np.full(devices, self.clock_exponent),
        )

    def _bits_per_second(self, megahertz: FloatArray, watts: FloatArray, draws: FloatArray) -> FloatArray:
        """Shannon's rate, with an exponential channel gain h by inversion."""
        # A draw of exactly 0 would give h = 0 and an upload that never ends.
        gain = -self.channel_mean * np.log1p(-np.maximum(draws, 2.0**-54))
        signal = watts * np.maximum(gain, self.channel_floor) / self.noise_watts
        return np.asarray(megahertz * 1e6 * np.log1p(signal) / np.log(2))


def _between(bounds: tuple[float, float], draws: FloatArray) -> FloatArray:
    low, high = bounds
    return low + (high - low) * draws
