"""One edge round's decision problem: the paper's P2, with the caps of this round already computed.

`RoundProblem` states what is known about every device and what may be spent; `solve` decides. It validates
itself when it is created, so that a solver never sees a bad number.

Every solver makes a `Proposal`; `prove` turns it into a `Solution`, and trusts the solver for the plan and
the lower bound only. Energy and times are computed again from the problem itself, and a plan that breaks a
limit the solver did not report raises an error.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IndexArray, compute_in_blocks, sum_in_blocks
from cfel.errors import CfelError, InputError, unknown_name
from cfel.system.conditions import PAPER_EXPONENT, clock_energy
from cfel.wording import format_amount

Unreachable = Literal["stretch", "minimum"]
# How much a limit may be exceeded by rounding, relative to the limit.
ROUNDING = 1e-8

UNREACHABLE = ("stretch", "minimum")
MOST_CLUSTERS = 1_000_000
"""Most clusters that one time cap may stand for; a larger number is an identifier, not an index."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundProblem:
    """P2 for one edge round.

    Minimise over (ρ, θ) the sum over devices of w(2−θ)ρ(σ²+G²) + 3(1−ρ)²G², subject to
    ρτμ + θν ≤ time cap of the device's cluster, Σ (ρτα + pθν) ≤ energy cap, and the bounds.

    Arrays have one entry per device unless said otherwise; they are kept as read-only float64.

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
        device: the number of each device in messages, for a round in which only a part of a fleet takes part;
            `None` for 0 … N − 1.
        clock_static, clock_exponent: what a slower clock saves (`system.conditions.clock_energy`), one number
            or one entry per device; only solvers that choose clocks look at them.
    """

    tau: int
    sigma2: float
    g2: float
    mu: FloatArray
    alpha: FloatArray
    nu: FloatArray
    power: FloatArray
    cluster: IndexArray
    time_cap: FloatArray
    energy_cap: float
    rho_min: FloatArray = 0.1  # type: ignore[assignment]
    rho_max: FloatArray = 1.0  # type: ignore[assignment]
    theta_min: FloatArray = 0.01  # type: ignore[assignment]
    theta_max: FloatArray = 1.0  # type: ignore[assignment]
    noise_weight: float = 1.0
    on_unreachable: Unreachable = "stretch"
    battery: FloatArray | None = None
    device: IndexArray | None = None
    clock_static: FloatArray = 0.0  # type: ignore[assignment]
    clock_exponent: FloatArray = PAPER_EXPONENT  # type: ignore[assignment]

    if TYPE_CHECKING:
        # Callers may pass any numbers; what is stored are arrays.
        def __init__(
            self,
            tau: int,
            sigma2: float,
            g2: float,
            mu: ArrayLike,
            alpha: ArrayLike,
            nu: ArrayLike,
            power: ArrayLike,
            cluster: ArrayLike,
            time_cap: ArrayLike,
            energy_cap: float,
            rho_min: ArrayLike = 0.1,
            rho_max: ArrayLike = 1.0,
            theta_min: ArrayLike = 0.01,
            theta_max: ArrayLike = 1.0,
            noise_weight: float = 1.0,
            on_unreachable: Unreachable = "stretch",
            battery: ArrayLike | None = None,
            device: ArrayLike | None = None,
            clock_static: ArrayLike = 0.0,
            clock_exponent: ArrayLike = PAPER_EXPONENT,
        ) -> None: ...

    def __post_init__(self) -> None:
        self._set("tau", validation.check_whole("tau", self.tau, least=1))
        for field in ("sigma2", "g2", "noise_weight"):
            self._set(field, validation.check_number(field, getattr(self, field), least=0))
        self._set("energy_cap", _check_energy_cap(self.energy_cap))
        self._check_devices()
        self._check_clusters()
        self._check_bounds("rho_min", "rho_max")
        self._check_bounds("theta_min", "theta_max")
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
        noise = sum_in_blocks(lambda rho, theta: float(np.dot(2.0 - theta, rho)), rho, theta)
        skipped = sum_in_blocks(lambda rho: float(np.dot(1.0 - rho, 1.0 - rho)), rho)
        return self.noise_weight * (self.sigma2 + self.g2) * noise + 3.0 * self.g2 * skipped

    def seconds(self, rho: FloatArray, theta: FloatArray, clock: FloatArray | None = None) -> FloatArray:
        """Expected seconds of every device, ρτμ + θν; at a share s of the clock, ρτμ/s + θν."""
        if clock is None:
            costs = (rho, theta, self.mu, self.nu)
            return compute_in_blocks(lambda rho, theta, mu, nu: rho * (self.tau * mu) + theta * nu, *costs)
        return rho * (self.tau * self.mu) / clock + theta * self.nu

    def joules(self, rho: FloatArray, theta: FloatArray, clock: FloatArray | None = None) -> FloatArray:
        """Expected joules of every device, ρτα + pθν; at a slower clock a step takes a share of α."""
        if clock is None:
            costs = (rho, theta, self.alpha, self.power, self.nu)
            return compute_in_blocks(
                lambda rho, theta, alpha, power, nu: rho * (self.tau * alpha) + theta * (power * nu), *costs
            )
        computing = (
            rho * (self.tau * self.alpha) * clock_energy(clock, self.clock_static, self.clock_exponent)
        )
        return computing + theta * (self.power * self.nu)

    def take(self, kept: BoolArray) -> "RoundProblem":
        """The same round with some of the devices, which keep their numbers."""
        number = np.arange(self.devices) if self.device is None else self.device
        columns: dict[str, Any] = {
            name: np.broadcast_to(getattr(self, name), self.mu.shape)[kept]
            for name in _PER_DEVICE
            if getattr(self, name) is not None
        }
        return replace(self, **columns, device=number[kept])

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _check_devices(self) -> None:
        self._set("mu", validation.check_floats("mu", self.mu, above=0))
        if self.devices == 0:
            raise InputError("mu: a round needs at least one device, got none")
        for field in ("alpha", "nu", "power"):
            given = getattr(self, field)
            self._set(field, validation.check_floats(field, given, length=self.devices, least=0))
        for field, most in (("clock_static", 1.0), ("clock_exponent", None)):
            given = getattr(self, field)
            length = 1 if np.size(given) == 1 else self.devices
            curve = validation.check_floats(field, np.atleast_1d(given), length=length, least=0, most=most)
            self._set(field, curve)
        if self.battery is not None:
            battery = validation.check_floats(
                "battery", self.battery, length=self.devices, least=0, finite=False
            )
            self._set("battery", battery)
        if self.device is not None:
            self._set("device", self._check_whole_numbers("device", np.asarray(self.device)))

    def _check_whole_numbers(self, field: str, values: np.ndarray) -> IndexArray:
        if values.shape != self.mu.shape or values.dtype.kind not in "iu":
            found = f"{values.dtype} of shape {values.shape}"
            raise InputError(f"{field}: must be {self.devices} whole numbers, got {found}")
        return validation.make_read_only(values.astype(np.intp, copy=False))

    def _check_clusters(self) -> None:
        cluster = self._check_whole_numbers("cluster", np.asarray(self.cluster))
        if np.ndim(self.time_cap) == 0 and cluster.max(initial=0) >= MOST_CLUSTERS:
            first = int(cluster.argmax())
            raise InputError(
                f"cluster[{first}] = {cluster[first]}: must be < {MOST_CLUSTERS} where one time_cap stands "
                "for all clusters; they are numbered 0, 1, …"
            )
        caps = _check_time_caps(self.time_cap, clusters=max(1, int(cluster.max()) + 1))
        strange = (cluster < 0) | (cluster >= len(caps))
        if strange.any():
            first = int(np.argmax(strange))
            allowed = f"0 to {len(caps) - 1}, as time_cap has {len(caps)} entries"
            raise InputError(f"cluster[{first}] = {cluster[first]}: unknown cluster (allowed: {allowed})")
        self._set("cluster", cluster)
        self._set("time_cap", caps)

    def _check_bounds(self, low: str, high: str) -> None:
        for field in (low, high):
            self._set(field, _check_bound(field, getattr(self, field), self.devices))
        crossed = getattr(self, low) > getattr(self, high)
        if crossed.any():
            first = int(np.argmax(crossed))
            limit = getattr(self, high)[first]
            raise InputError(
                f"{low}[{first}] = {getattr(self, low)[first]}: must be ≤ {high}, which is {limit}"
            )


_PER_DEVICE = (
    *("mu", "alpha", "nu", "power", "cluster", "battery", "clock_static", "clock_exponent"),
    *("rho_min", "rho_max", "theta_min", "theta_max"),
)


def _check_energy_cap(value: object) -> float:
    """One number; negative and +inf have a meaning, −inf and NaN do not."""
    cap = validation.check_number("energy_cap", value, finite=False)
    if cap == -np.inf:
        raise InputError("energy_cap = -inf: must be a number or +inf")
    return cap


def _check_time_caps(values: ArrayLike, clusters: int) -> FloatArray:
    """One cap per cluster; a single number stands for all clusters."""
    if isinstance(values, str | bool):
        raise InputError(f"time_cap = {values!r}: must be a number")
    given = np.asarray(values, dtype=np.float64) if np.isscalar(values) else values
    spread = np.full(clusters, given) if np.ndim(given) == 0 else given
    caps = validation.check_floats("time_cap", spread, finite=False)
    if np.isneginf(caps).any():
        first = int(np.argmax(np.isneginf(caps)))
        raise InputError(f"time_cap[{first}] = -inf: must be a number or +inf")
    return caps


def _check_bound(field: str, values: ArrayLike, devices: int) -> FloatArray:
    if np.ndim(values) == 0:
        return np.broadcast_to(validation.check_number(field, values, least=0, most=1), (devices,))
    return validation.check_floats(field, values, length=devices, least=0, most=1)


# Which caps a fleet can meet at all, and what to do about those it cannot.
#
# A cap can be out of reach even at the lower bounds: late in a run, with a bad channel, or when ρ is pinned
# at 1. Training must continue all the same, so `find_feasible_limits` relaxes the caps until they can be met,
# and reports in words what it had to relax. The paper does not say what happens in that case.


# Rounding slack when a cap is compared with what the lower bounds need, and how many sentences are kept.
SLACK = 1e-9
MOST_SENTENCES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """Caps that every device can meet.

    Attributes:
        seconds: per device.
        battery: joules per device, or `None` where no device has a limit.
        joules: for all devices together.
        time_cap: seconds per cluster after stretching; as asked for with `on_unreachable="minimum"`.
        violations: what was asked for and cannot be met.
        forced: the energy cap is out of reach, so all devices must take the lower bounds.
    """

    seconds: FloatArray
    battery: FloatArray | None
    joules: float
    time_cap: FloatArray
    violations: tuple[str, ...]
    forced: bool


def find_feasible_limits(problem: RoundProblem, slowest_clock: float = 1.0) -> Limits:
    """Raises the problem's caps where even the lower bounds break them.

    The energy cap may need clocks as slow as the time limits and `slowest_clock` allow; a device's battery
    must do at full clock, as a plan may be done sooner than the time limit.
    """
    least_seconds = problem.seconds(problem.rho_min, problem.theta_min)
    seconds, time_cap, words = _relax_time_caps(problem, least_seconds)
    battery = problem.battery
    if battery is not None:
        least_joules = problem.joules(problem.rho_min, problem.theta_min)
        words += _describe_batteries(problem, battery, least_joules)
        battery = np.maximum(battery, least_joules)
    total = float(count_least_joules(problem, slowest_clock).sum())
    forced = problem.energy_cap < total * (1 - SLACK)
    if forced:
        words.append(
            f"energy cap {problem.energy_cap:.6g} J is below the {total:.6g} J that the lower bounds need; "
            "all devices get the lower bounds"
        )
    joules = max(problem.energy_cap, total)
    return Limits(seconds, battery, joules, time_cap, tuple(words), forced)


def count_least_joules(problem: RoundProblem, slowest_clock: float = 1.0) -> FloatArray:
    """Energy of every device at the lower bounds, at the slowest clock that meets its time limit."""
    if slowest_clock == 1:
        return problem.joules(problem.rho_min, problem.theta_min)
    seconds, _, _ = _relax_time_caps(problem, problem.seconds(problem.rho_min, problem.theta_min))
    left = seconds - problem.theta_min * problem.nu
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(left > 0, problem.rho_min * (problem.tau * problem.mu) / left, 1.0)
    return problem.joules(problem.rho_min, problem.theta_min, np.clip(needed, slowest_clock, 1.0))


def find_too_costly(problem: RoundProblem, slowest_clock: float = 1.0) -> BoolArray:
    """The few devices without which the energy cap can be met: each leaves less of it than it needs.

    One upload in a deep fade can take more joules than all devices may use together. Kept in the round, that
    device would force everybody to the lower bounds. No device is marked if the cap can be met with all, or
    not even without these, or if they are most: then the budget is used up, and everybody is at the floor.
    """
    least = count_least_joules(problem, slowest_clock)
    too_costly, cap = least > problem.energy_cap / 2, problem.energy_cap
    if not too_costly.any():
        return too_costly
    helps = float(least[~too_costly].sum()) * (1 - SLACK) <= cap < float(least.sum()) * (1 - SLACK)
    return too_costly if helps and too_costly.mean() <= 0.5 else np.zeros_like(too_costly)


def describe_too_costly(
    problem: RoundProblem, too_costly: BoolArray, slowest_clock: float = 1.0
) -> list[str]:
    """A sentence for each device that is left out."""
    least = count_least_joules(problem, slowest_clock)[too_costly]
    named = np.flatnonzero(too_costly) if problem.device is None else problem.device[too_costly]
    words = [
        f"device {name}: its lower bounds need {joules:.6g} J of the {problem.energy_cap:.6g} J of all "
        "devices; it is left out"
        for name, joules in zip(named[:MOST_SENTENCES], least[:MOST_SENTENCES], strict=True)
    ]
    return _shorten(words, len(least), "devices")


def _relax_time_caps(problem: RoundProblem, least: FloatArray) -> tuple[FloatArray, FloatArray, list[str]]:
    asked = problem.time_cap[problem.cluster]
    late = least > asked + SLACK * np.abs(least)
    if not late.any():
        return np.maximum(asked, least), problem.time_cap, []
    makespan = np.full(problem.clusters, -np.inf)
    np.maximum.at(makespan, problem.cluster[late], least[late])
    late_devices = np.bincount(problem.cluster[late], minlength=problem.clusters)
    words = describe_late(problem.on_unreachable, problem.time_cap, makespan, late_devices)
    if problem.on_unreachable == "stretch":
        cap = np.maximum(problem.time_cap, makespan)
        return np.maximum(cap[problem.cluster], least), cap, words
    return np.maximum(asked, least), problem.time_cap, words


def describe_late(
    on_unreachable: Unreachable, time_cap: FloatArray, makespan: FloatArray, late: IndexArray
) -> list[str]:
    """A sentence for each cluster with devices that cannot meet its time cap.

    `makespan` are the seconds of the slowest of them, `late` is how many there are, both per cluster.
    """
    clusters = np.flatnonzero(late)

    def describe(i: int) -> str:
        if on_unreachable == "stretch":
            asked = f"time cap {time_cap[i]:.6g} s is out of reach"
            return f"cluster {i}: {asked}, needs at least {format_amount(makespan[i], 1)} s"
        return (
            f"cluster {i}: {late[i]} of its devices cannot meet the time cap {time_cap[i]:.6g} s and "
            f"drop to their lower bounds (slowest: {makespan[i]:.6g} s)"
        )

    return _shorten([describe(i) for i in clusters[:MOST_SENTENCES]], len(clusters), "clusters")


def _describe_batteries(problem: RoundProblem, battery: FloatArray, least: FloatArray) -> list[str]:
    empty = np.flatnonzero(least > battery + SLACK * least)
    named = empty if problem.device is None else problem.device[empty]
    words = [
        f"device {name}: battery allows {battery[n]:.6g} J in this round, below the {least[n]:.6g} J of its "
        "lower bounds"
        for name, n in zip(named[:MOST_SENTENCES], empty[:MOST_SENTENCES], strict=True)
    ]
    return _shorten(words, len(empty), "devices")


def _shorten(words: list[str], total: int, what: str) -> list[str]:
    left_out = total - len(words)
    return [*words, f"… and {left_out} more {what}"] if left_out else words


class SolverDefectError(CfelError):
    """A solver returned a plan that breaks its own limits: a defect of cfel, never of the input."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What a solver found; the fields are those of `Solution`.

    A solver with an objective of its own states its value; `None` stands for the problem's.
    """

    rho: FloatArray
    theta: FloatArray
    lower_bound: float
    multiplier: float
    method: str
    iterations: int = 0
    clock: FloatArray | None = None
    objective: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """How much every device computes and sends in one edge round, and how good that is.

    Attributes:
        rho: probability of each local step, per device; k/τ where steps are whole.
        theta: share of the update that is sent, per device.
        objective: the P2 sum over devices, or that of the list of pairs.
        lower_bound: no plan within the caps (after stretching) has a smaller objective; on a list of pairs,
            no plan on the list with this makespan and energy.
        feasible: whether every cap was met as asked.
        violations: what could not be met, in words; empty when feasible.
        device_seconds, device_joules: expected cost of every device.
        time_cap: seconds per cluster that the plan keeps to (stretched where necessary).
        energy_cap: joules that the plan keeps to.
        multiplier: what one more joule would be worth in units of the objective; 0 when energy is plentiful.
        method: "joint", "alternating" or "list".
        iterations: passes of Algorithm 3; 0 for other methods.
        clock: share of its full clock that every device runs at; `None` for full clocks.
    """

    rho: FloatArray
    theta: FloatArray
    objective: float
    lower_bound: float
    feasible: bool
    violations: tuple[str, ...]
    device_seconds: FloatArray
    device_joules: FloatArray
    time_cap: FloatArray
    energy_cap: float
    multiplier: float
    method: str
    iterations: int = 0
    clock: FloatArray | None = None

    @property
    def gap(self) -> float:
        """How much worse than the optimum this can be at most: (objective − bound) / abs(bound)."""
        distance = self.objective - self.lower_bound
        return distance / abs(self.lower_bound) if self.lower_bound else (np.inf if distance else 0.0)

    @property
    def joules(self) -> float:
        """Expected energy of all devices together."""
        return float(self.device_joules.sum())

    @property
    def seconds(self) -> float:
        """Expected time of the slowest device."""
        return float(self.device_seconds.max())


def solve_without_too_costly(
    problem: RoundProblem,
    solver: Callable[[RoundProblem, BoolArray], Solution],
    slowest_clock: float = 1.0,
) -> Solution:
    """Solves a problem without the devices that alone put the energy cap out of reach (`find_too_costly`).

    They get ρ = θ = 0 and cost nothing; what is proven is proven for the others. The solver gets the problem
    of those, and which devices they are.
    """
    too_costly = find_too_costly(problem, slowest_clock)
    if not too_costly.any():
        return solver(problem, ~too_costly)
    found = solver(problem.take(~too_costly), ~too_costly)

    def spread(values: FloatArray, missing: float = 0.0) -> FloatArray:
        whole = np.full(problem.devices, missing)
        whole[~too_costly] = values
        return whole

    return replace(
        found,
        rho=spread(found.rho),
        theta=spread(found.theta),
        feasible=False,
        violations=(*describe_too_costly(problem, too_costly, slowest_clock), *found.violations),
        device_seconds=spread(found.device_seconds),
        device_joules=spread(found.device_joules),
        clock=None if found.clock is None else spread(found.clock, 1.0),
    )


def prove(problem: RoundProblem, limits: Limits, found: Proposal) -> Solution:
    """Checks a plan against every limit and builds its solution.

    Raises:
        SolverDefectError: the plan breaks a limit.
    """
    rho, theta = found.rho, found.theta
    seconds = problem.seconds(rho, theta, found.clock)
    joules = problem.joules(rho, theta, found.clock)
    _reject_excess("seconds", seconds, limits.seconds)
    _reject_excess("joules", np.array([joules.sum()]), np.array([limits.joules]))
    if limits.battery is not None:
        _reject_excess("battery", joules, limits.battery)
    objective = problem.objective(rho, theta) if found.objective is None else found.objective
    return Solution(
        rho=rho,
        theta=theta,
        objective=objective,
        # Both are rounded, so the bound may end up above the objective it bounds.
        lower_bound=min(found.lower_bound, objective),
        feasible=not limits.violations,
        violations=limits.violations,
        device_seconds=seconds,
        device_joules=joules,
        time_cap=limits.time_cap,
        energy_cap=limits.joules,
        multiplier=found.multiplier,
        method=found.method,
        iterations=found.iterations,
        clock=found.clock,
    )


def _reject_excess(what: str, used: FloatArray, allowed: FloatArray) -> None:
    """Raises `SolverDefectError` where a plan uses more than it may, beyond rounding."""
    excess = used > allowed * (1.0 + ROUNDING)
    # A NaN exceeds nothing, so it has to be looked for.
    if excess.any() or np.isnan(used).any():
        first = int(np.argmax(excess))
        raise SolverDefectError(f"plan uses {used[first]!r} {what} of {allowed[first]!r} at entry {first}")
