"""One edge round's decision problem: the paper's P2 with the caps already worked out.

`RoundProblem` says what is known about every device and what may be spent; it does not decide anything.
It checks itself when it is made, so that a solver never meets a bad number. All arrays are float64 and
read-only, one entry per device unless said otherwise.
"""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cfel.errors import InputError, unknown_name

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Unreachable = Literal["stretch", "minimum"]
Item = TypeVar("Item", bound=np.generic)

UNREACHABLE = ("stretch", "minimum")


@dataclass(frozen=True, slots=True, eq=False)
class RoundProblem:
    """P2 for one edge round.

    Minimise over (ρ, θ) the sum over devices of w(2−θ)ρ(σ²+G²) + 3(1−ρ)²G², subject to
    ρτμ + θν ≤ time cap of the device's cluster, Σ (ρτα + pθν) ≤ energy cap, and the bounds.

    Attributes:
        tau: local iterations of an edge round, τ ≥ 1.
        sigma2: variance of a mini-batch gradient, σ² ≥ 0.
        g2: squared norm of a local gradient, G² ≥ 0.
        mu: seconds per local step, > 0.
        alpha: joules per local step, ≥ 0.
        nu: seconds to upload a full model, ≥ 0.
        power: watts of the radio while it sends, ≥ 0.
        cluster: index of the device's cluster, 0 … clusters − 1.
        time_cap: seconds for this edge round, one entry per cluster, or one number for all of them;
            negative when overspent, +inf for no limit.
        energy_cap: joules for this edge round, all devices together; negative or +inf likewise.
        rho_min, rho_max, theta_min, theta_max: bounds in [0, 1], numbers or one entry per device;
            equal bounds pin a variable.
        noise_weight: w ≥ 0; the paper prints the case w = 1 (2ηL = 1).
        on_unreachable: what to do when a time cap cannot be met even at the lower bounds. "stretch" raises
            the cluster's cap to the least makespan it can reach; "minimum" drops only the devices concerned
            to their lower bounds.
        battery: joules each device may spend in this round, ≥ 0 or +inf; `None` for no limit.
    """

    tau: int
    sigma2: float
    g2: float
    mu: FloatArray
    alpha: FloatArray
    nu: FloatArray
    power: FloatArray
    cluster: IntArray
    time_cap: FloatArray
    energy_cap: float
    rho_min: FloatArray = 0.1  # type: ignore[assignment]
    rho_max: FloatArray = 1.0  # type: ignore[assignment]
    theta_min: FloatArray = 0.01  # type: ignore[assignment]
    theta_max: FloatArray = 1.0  # type: ignore[assignment]
    noise_weight: float = 1.0
    on_unreachable: Unreachable = "stretch"
    battery: FloatArray | None = None

    def __post_init__(self) -> None:
        self._set("tau", _steps(self.tau))
        for field in ("sigma2", "g2", "noise_weight"):
            self._set(field, _number(field, getattr(self, field)))
        self._set("energy_cap", _cap("energy_cap", self.energy_cap).item())
        self._check_devices()
        self._check_clusters()
        self._check_bounds()
        if self.on_unreachable not in UNREACHABLE:
            raise InputError(unknown_name("on_unreachable", self.on_unreachable, UNREACHABLE))

    @property
    def devices(self) -> int:
        """Number of devices, N."""
        return len(self.mu)

    @property
    def clusters(self) -> int:
        """Number of clusters, m."""
        return len(self.time_cap)

    def objective(self, rho: FloatArray, theta: FloatArray) -> float:
        """The P2 sum over devices at a plan, feasible or not."""
        noise = self.noise_weight * (self.sigma2 + self.g2) * float(np.dot(2.0 - theta, rho))
        skipped = 1.0 - rho
        return noise + 3.0 * self.g2 * float(np.dot(skipped, skipped))

    def seconds(self, rho: FloatArray, theta: FloatArray) -> FloatArray:
        """Expected seconds of every device, ρτμ + θν."""
        return rho * (self.tau * self.mu) + theta * self.nu

    def joules(self, rho: FloatArray, theta: FloatArray) -> FloatArray:
        """Expected joules of every device, ρτα + pθν."""
        return rho * (self.tau * self.alpha) + theta * (self.power * self.nu)

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _check_devices(self) -> None:
        devices = np.size(self.mu)
        if devices == 0:
            raise InputError("mu: a round needs at least one device, got none")
        for field in ("mu", "alpha", "nu", "power"):
            self._set(field, _per_device(field, getattr(self, field), devices))
            _require(field, getattr(self, field), np.isfinite, "a finite number")
        _require("mu", self.mu, lambda values: values > 0, "> 0 seconds per step")
        for field in ("alpha", "nu", "power"):
            _require(field, getattr(self, field), lambda values: values >= 0, "≥ 0")
        if self.battery is not None:
            self._set("battery", _per_device("battery", self.battery, devices))
            _require("battery", self.battery, lambda values: values >= 0, "≥ 0 joules")

    def _check_clusters(self) -> None:
        cluster = np.asarray(self.cluster)
        if cluster.shape != self.mu.shape:
            raise InputError(f"cluster: {_shape(cluster)} given for {len(self.mu)} devices")
        if cluster.dtype.kind not in "iu":
            raise InputError(f"cluster: must be integers, got an array of {cluster.dtype}")
        caps = _cap("time_cap", self.time_cap)
        if caps.ndim == 0:
            caps = np.full(int(cluster.max()) + 1, caps)
        if caps.ndim != 1 or len(caps) == 0:
            raise InputError(f"time_cap: must be a number or one entry per cluster, got shape {caps.shape}")
        self._set("time_cap", _frozen(caps))
        self._set("cluster", _frozen(cluster.astype(np.intp)))
        allowed = f"a cluster from 0 to {len(caps) - 1}, as time_cap has {len(caps)} entries"
        _require("cluster", self.cluster, lambda values: (values >= 0) & (values < len(caps)), allowed)

    def _check_bounds(self) -> None:
        for name in ("rho", "theta"):
            low, high = f"{name}_min", f"{name}_max"
            for field in (low, high):
                self._set(field, _bound(field, getattr(self, field), self.devices))
                inside = "within [0, 1]"
                _require(field, getattr(self, field), lambda values: (values >= 0) & (values <= 1), inside)
            upper = getattr(self, high)
            _require(low, getattr(self, low), lambda values, upper=upper: values <= upper, f"≤ {high}")


def _steps(tau: object) -> int:
    if isinstance(tau, bool) or not isinstance(tau, int | np.integer) or tau < 1:
        raise InputError(f"tau: must be a whole number ≥ 1, got {tau!r}")
    return int(tau)


def _number(field: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InputError(f"{field}: must be a number, got {value!r}") from error
    if not (np.isfinite(number) and number >= 0):
        raise InputError(f"{field}: must be finite and ≥ 0, got {value!r}")
    return number


def _array(field: str, values: ArrayLike) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{field}: must be numbers: {error}") from error


def _cap(field: str, values: ArrayLike) -> FloatArray:
    """Caps may be negative or +inf; NaN and −inf are mistakes."""
    caps = _array(field, values)
    bad = np.isnan(caps) | np.isneginf(caps)
    if bad.any():
        place = "" if caps.ndim == 0 else f"[{int(np.argmax(bad))}]"
        raise InputError(f"{field}{place}: must be a number or +inf, got {caps[bad].flat[0]}")
    if field == "energy_cap" and caps.ndim:
        raise InputError(f"energy_cap: must be one number for all devices, got {_shape(caps)}")
    return caps


def _per_device(field: str, values: ArrayLike, devices: int) -> FloatArray:
    array = _array(field, values)
    if array.shape != (devices,):
        raise InputError(f"{field}: {_shape(array)} given for {devices} devices")
    return _frozen(array)


def _bound(field: str, values: ArrayLike, devices: int) -> FloatArray:
    array = _array(field, values)
    return np.broadcast_to(array, (devices,)) if array.ndim == 0 else _per_device(field, array, devices)


def _require(field: str, values: NDArray[np.generic], rule: object, allowed: str) -> None:
    """Raises for the first entry that breaks the rule, naming field, index and value."""
    good = rule(values)  # type: ignore[operator]
    if not good.all():
        first = int(np.argmin(good))
        raise InputError(f"{field}[{first}]: must be {allowed}, got {values[first]}")


def _shape(array: NDArray[np.generic]) -> str:
    return f"{len(array)} entries" if array.ndim == 1 else f"shape {array.shape}"


def _frozen(array: NDArray[Item]) -> NDArray[Item]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
