"""Rounds to solve: the paper's two presets, wild ones, and hypothesis strategies for both.

Everything is drawn from a seeded generator, so that an instance is named by a few plain values; hypothesis
varies those values and shrinks them to the simplest failing combination.
"""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from cfel.arrays import FloatArray, IndexArray
from cfel.control import RoundProblem

TAU = 5
RATIOS = (0.01, 0.1, 0.2, 1.0, 5.0, 10.0, 100.0)
"""σ²/G² over the range the solver promises to handle."""


class Preset(NamedTuple):
    """What distinguishes the paper's two settings: joules of a step at 1 GHz and bits of a full upload."""

    step_joules: float
    bits: float


CIFAR = Preset(0.15, 32 * 269_722)
FEMNIST = Preset(1.5, 32 * 6_603_710)
PRESETS = {"cifar": CIFAR, "femnist": FEMNIST}


class Devices(NamedTuple):
    """μ, α, ν, p of some devices, under the names `RoundProblem` knows them by."""

    mu: FloatArray
    alpha: FloatArray
    nu: FloatArray
    power: FloatArray


def paper_devices(draw: np.random.Generator, preset: Preset, devices: int) -> Devices:
    """The paper's random conditions, written out from its formulas and not taken from `cfel.system`."""
    gigahertz = draw.uniform(1, 2, devices)
    hertz, watts = draw.uniform(1e6, 5e6, devices), draw.uniform(0.1, 1, devices)
    gain = np.maximum(draw.exponential(1.0, devices), 0.01)
    rate = hertz * np.log2(1 + watts * gain / 0.01)
    return Devices(150 / gigahertz, preset.step_joules * gigahertz**2, preset.bits / rate, watts)


def full_seconds(devices: Devices) -> FloatArray:
    """τμ + ν: every step, everything sent."""
    return TAU * devices.mu + devices.nu


def full_joules(devices: Devices) -> FloatArray:
    """τα + pν: every step, everything sent."""
    return TAU * devices.alpha + devices.power * devices.nu


def slowest(seconds: FloatArray, cluster: IndexArray, clusters: int) -> FloatArray:
    """Each cluster's largest entry, 0 where it has none."""
    return np.array([seconds[cluster == i].max(initial=0.0) for i in range(clusters)])


def paper_problem(
    seed: int,
    preset: Preset = FEMNIST,
    devices: int = 64,
    clusters: int = 8,
    ratio: float = 1.0,
    share: float = 0.6,
    **fields: Any,
) -> RoundProblem:
    """A round of one of the presets.

    Args:
        seed: of the conditions.
        preset: which setting.
        devices: N.
        clusters: m; at most N are used.
        ratio: σ²/G², with G² = 1.
        share: both caps as a share of what CEF uses in this round.
        fields: anything else of `RoundProblem`.
    """
    fleet = paper_devices(np.random.default_rng(seed), preset, devices)
    clusters = min(clusters, devices)
    cluster = np.arange(devices) % clusters
    given: dict[str, Any] = {
        "tau": TAU,
        "sigma2": ratio,
        "g2": 1.0,
        **fleet._asdict(),
        "cluster": cluster,
        "time_cap": share * slowest(full_seconds(fleet), cluster, clusters),
        "energy_cap": share * float(full_joules(fleet).sum()),
    }
    return RoundProblem(**(given | fields))


# --- wild instances -----------------------------------------------------------------------------------------

SPREADS = ("paper", "same", "wide", "zero", "some zero")
BOUNDS = ("default", "whole", "rho pinned", "theta pinned", "both pinned", "mixed")
BATTERIES = ("none", "infinite", "half", "almost empty", "empty", "mixed")
CAPS = (0.6, 1.2, 0.3, 0.05, 1e-9, 0.0, -1.0, np.inf)
LEARNING = (
    (1.0, 1.0),
    (0.2, 1.0),
    (100.0, 1.0),
    (1.0, 0.0),
    (0.0, 1.0),
    (0.0, 0.0),
    (1e12, 1e12),
    (1e-12, 2e-12),
    (1e12, 1e-12),
)


def wild_problem(
    seed: int,
    devices: int,
    clusters: int,
    spreads: tuple[str, str, str, str],
    scales: tuple[float, float],
    learning: tuple[float, float],
    time_shares: tuple[float, ...],
    energy_share: float,
    bounds: str,
    battery: str,
    noise_weight: float,
    on_unreachable: str,
) -> RoundProblem:
    """A round with anything that is allowed.

    Args:
        seed: of the draws.
        devices: N.
        clusters: m, some of them possibly without devices.
        spreads: how μ, α, ν and p vary over devices, from `SPREADS`, or "extreme".
        scales: factors on all seconds and on all joules.
        learning: σ² and G².
        time_shares: caps of the clusters, in turn, as shares of what CEF needs there.
        energy_share: energy cap as a share of what CEF needs.
        bounds: from `BOUNDS`.
        battery: from `BATTERIES`.
        noise_weight: w.
        on_unreachable: policy.
    """
    draw = np.random.default_rng(seed)
    seconds, joules = scales
    typical = paper_devices(draw, FEMNIST, devices)
    mu, alpha, nu, power = (_spread(draw, *pair) for pair in zip(typical, spreads, strict=True))
    mu = np.where(mu > 0, mu, 1.0)
    fleet = Devices(mu * seconds, alpha * joules, nu * seconds, power * joules / seconds)
    cluster = draw.integers(0, clusters, devices)
    shares = np.resize(time_shares, clusters)
    whole = slowest(full_seconds(fleet), cluster, clusters) + seconds
    return RoundProblem(
        tau=TAU,
        sigma2=learning[0],
        g2=learning[1],
        **fleet._asdict(),
        cluster=cluster,
        time_cap=shares * whole,
        energy_cap=energy_share * (float(full_joules(fleet).sum()) + joules * 1e-3),
        **_bounds(draw, bounds, devices),
        noise_weight=noise_weight,
        on_unreachable=on_unreachable,  # type: ignore[arg-type]
        battery=_battery(draw, battery, full_joules(fleet)),
    )


def _spread(draw: np.random.Generator, typical: FloatArray, spread: str) -> FloatArray:
    if spread == "same":
        return np.full_like(typical, typical[0])
    if spread == "wide":
        return typical * 10.0 ** draw.uniform(-3, 3, typical.size)
    if spread == "extreme":
        return typical * 10.0 ** draw.uniform(-12, 12, typical.size)
    if spread == "zero":
        return np.zeros_like(typical)
    if spread == "some zero":
        return np.where(draw.random(typical.size) < 0.3, 0.0, typical)
    return typical


def _bounds(draw: np.random.Generator, bounds: str, devices: int) -> dict[str, Any]:
    if bounds == "default":
        return {}
    if bounds == "whole":
        return {"rho_min": 0.0, "theta_min": 0.0}
    low, high = np.sort(draw.uniform(0, 1, (2, 2, devices)), axis=1).swapaxes(0, 1)
    fixed = draw.random((2, devices)) < 0.3
    if bounds == "mixed":
        high = np.where(fixed, low, high)
    if bounds in ("rho pinned", "both pinned"):
        high[0] = low[0]
    if bounds in ("theta pinned", "both pinned"):
        high[1] = low[1]
    return {"rho_min": low[0], "rho_max": high[0], "theta_min": low[1], "theta_max": high[1]}


def _battery(draw: np.random.Generator, battery: str, full: FloatArray) -> FloatArray | None:
    shares: dict[str, Any] = {
        "infinite": np.inf,
        "half": 0.5,
        "almost empty": 1e-6,
        "empty": 0.0,
        "mixed": draw.choice([0.0, 1e-6, 0.2, 0.5, 1.0, 1e6], full.size),
    }
    return None if battery == "none" else np.full(full.size, shares[battery]) * np.maximum(full, 1e-300)


SEEDS = st.integers(0, 2**20)

WILD = st.builds(
    wild_problem,
    seed=SEEDS,
    devices=st.integers(1, 70),
    clusters=st.integers(1, 6),
    spreads=st.tuples(*[st.sampled_from(SPREADS)] * 4),
    scales=st.tuples(*[st.sampled_from([1.0, 1e-12, 1e-6, 1e3, 1e12])] * 2),
    learning=st.sampled_from(LEARNING),
    time_shares=st.lists(st.sampled_from(CAPS), min_size=1, max_size=3).map(tuple),
    energy_share=st.sampled_from(CAPS),
    bounds=st.sampled_from(BOUNDS),
    battery=st.sampled_from(BATTERIES),
    noise_weight=st.sampled_from([1.0, 0.1, 3.0, 0.0]),
    on_unreachable=st.sampled_from(["stretch", "minimum"]),
)
"""Any round at all."""

PAPER = st.builds(
    paper_problem,
    seed=SEEDS,
    preset=st.sampled_from([CIFAR, FEMNIST]),
    devices=st.integers(1, 70),
    clusters=st.integers(1, 6),
    ratio=st.sampled_from(RATIOS),
    share=st.sampled_from([0.2, 0.4, 0.6, 0.8, 1.0, 1.2]),
)
"""A round of either preset, with caps as in the paper's evaluation or nearby."""
