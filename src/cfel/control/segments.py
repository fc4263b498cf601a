"""The continuous responder: all devices of a round, each with its best (ρ, θ) at a price of energy.

At a price λ ≥ 0 of a joule, a device minimises

    w(2−θ)ρA + 3(1−ρ)²G² + λ(ρτα + pθν)            its term of P2, plus λ times its energy

which is linear in θ. The best θ is therefore either the lower bound or the largest that is allowed: the upper
bound, what the time cap leaves, or what the battery leaves. Each of these is a segment θ = c₀ − c₁ρ over an
interval of ρ. Along a segment the cost is a convex quadratic in ρ with a closed-form minimum. So the exact
answer for one device is the best of at most four numbers, and for a fleet it is a few array operations.

Objectives are divided by A = σ² + G², which keeps all numbers near 1. The energy cap that couples the devices
is not here; `prices.search_price` finds the price at which they keep to it.
"""

from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import AT_A_TIME, FloatArray, IndexArray, narrow, run_blocks
from cfel.control.curves import Response, limit_prices
from cfel.control.problem import Limits, RoundProblem

SegmentNumbers = NDArray[np.int8]
"""Per device, the kind of segment it is on."""

BOTTOM, TOP, TIME, BATTERY = range(4)
"""The kinds of segments: θ at its lower bound, at its upper bound, or as large as a limit leaves it."""
# A limit is widened by this share: where it leaves room for one ρ only, rounding must not take that away.
ROUNDING = 1e-12
# Devices up to which segments are kept between responses; reading more takes as long as building them again.
MOST_KEPT = 65_536


class Segment(NamedTuple):
    """A segment θ = c₀ − c₁ρ, ρ in [low, high], of every device, with cost and energy along it.

    Along it the objective is `square`·ρ² + `slope`·ρ + `constant`, and the energy is `joules_constant` +
    `joules_slope`·ρ. Where a device cannot use it, `constant` is +inf. `turn` is −1/(2 `square`): multiplied
    by the slope at ρ = 0 it gives the minimum of the parabola. An array with one entry is the same for all.
    """

    low: FloatArray
    high: FloatArray
    square: FloatArray
    turn: FloatArray
    slope: FloatArray
    constant: FloatArray
    joules_constant: FloatArray
    joules_slope: FloatArray

    @classmethod
    def along(cls, line: "_Line", terms: "DeviceTerms", noise: float, gradient: float) -> "Segment":
        """Computes cost and energy; `noise` is w, `gradient` is G²/A."""
        constant, slope, low, high = line
        usable = low <= high
        joules_slope = terms.step_joules
        if slope is not FLAT:
            joules_slope = joules_slope - terms.upload_joules * slope
        # Where steps are free, an unusable segment may begin at infinity; ρ never exceeds 1.
        low = np.minimum(low, 1.0)
        # Without curvature the minimum would be 0/0. A tiny one sends it to an end of the segment, which is
        # where a straight line has its minimum.
        square = np.maximum(3.0 * gradient + noise * slope, 1e-200)
        return cls(
            low=low,
            high=np.maximum(low, high),
            square=square,
            turn=-0.5 / square,
            slope=noise * (2.0 - constant) - 6.0 * gradient,
            constant=np.where(usable, 3.0 * gradient, np.inf),
            joules_constant=terms.upload_joules * constant,
            joules_slope=joules_slope,
        )

    def respond(self, price: FloatArray) -> tuple[Response, FloatArray]:
        """Finds every device's exact minimum of objective + λ · energy along it, for prices × devices.

        Also returns the minima; the choice is left open.
        """
        # The inner loop of every solve: in-place operations, as temporaries cost more than the arithmetic.
        stand = price * self.joules_slope
        stand += self.slope
        with np.errstate(over="ignore"):  # what lies beyond all numbers is cut back to the segment
            stand *= self.turn
        np.maximum(stand, self.low, out=stand)
        np.minimum(stand, self.high, out=stand)
        joules = self.joules_slope * stand
        joules += self.joules_constant
        cost = self.square * stand
        cost += self.slope
        cost *= stand
        cost += self.constant
        value = price * joules
        value += cost
        return Response(np.empty(stand.shape, np.int8), stand, joules, cost), value


Segments = dict[int, Segment]
"""The segments of some devices by their kinds, θ = θ_min first."""


def respond_along(segments: Segments, price: FloatArray) -> Response:
    """Finds every device's exact minimum of objective + λ · energy, for prices × devices."""
    (first, segment), *others = segments.items()
    found, best = segment.respond(price)
    found.choice[:] = first
    for kind, segment in others:
        tried, value = segment.respond(price)
        better = value < best
        np.minimum(best, value, out=best)
        np.putmask(found.choice, better, kind)
        np.putmask(found.rho, better, tried.rho)
        np.putmask(found.joules, better, tried.joules)
        np.putmask(found.cost, better, tried.cost)
    return found


# From a device's limits to its segments. A limit is a budget that ρ and θ share linearly: of seconds (P2's
# time constraint) or of joules (the battery). At a given ρ the largest allowed θ is the least of θ_max and
# what each limit leaves: a concave chain of segments, each kept over the interval of ρ where it is the least.


class _Limit(NamedTuple):
    """ρ · step + θ · upload ≤ budget."""

    budget: FloatArray
    step: FloatArray
    upload: FloatArray


class _Line(NamedTuple):
    """θ = constant − slope · ρ for ρ in [low, high]; low > high where it cannot be used."""

    constant: FloatArray
    slope: FloatArray
    low: FloatArray
    high: FloatArray


FLAT = np.zeros(1)
"""The slope of a segment along which θ does not change."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTerms:
    """What one device's problem needs, for any list of devices (repetitions allowed).

    Attributes:
        step_seconds, step_joules: τμ and τα.
        upload_seconds, upload_joules: ν and pν.
        seconds, joules: the device's own limits; +inf where there is none.
        rho_min, rho_max, theta_min, theta_max: bounds.
    """

    step_seconds: FloatArray
    step_joules: FloatArray
    upload_seconds: FloatArray
    upload_joules: FloatArray
    seconds: FloatArray
    joules: FloatArray
    rho_min: FloatArray
    rho_max: FloatArray
    theta_min: FloatArray
    theta_max: FloatArray

    @classmethod
    def from_problem(cls, problem: RoundProblem, limits: Limits, room: float | None = None) -> "DeviceTerms":
        """Collects the terms of every device of a problem.

        `room` are the joules that all devices together leave at the lower bounds; None if the problem has
        all devices.
        """
        least = problem.joules(problem.rho_min, problem.theta_min)
        # No device can use more than the energy cap less what the others need at least. With few devices
        # this sharpens the lower bound, so it is treated like a battery.
        joules = (limits.joules - float(least.sum()) if room is None else room) + least
        if limits.battery is not None:
            joules = np.minimum(joules, limits.battery)
        return cls(
            step_seconds=problem.tau * problem.mu,
            step_joules=problem.tau * problem.alpha,
            upload_seconds=problem.nu,
            upload_joules=problem.power * problem.nu,
            seconds=limits.seconds,
            joules=joules,
            rho_min=problem.rho_min,
            rho_max=problem.rho_max,
            theta_min=problem.theta_min,
            theta_max=problem.theta_max,
        )

    @property
    def least_joules(self) -> FloatArray:
        """Energy at the lower bounds."""
        return self.rho_min * self.step_joules + self.theta_min * self.upload_joules

    def take(self, devices: IndexArray | slice) -> "DeviceTerms":
        """Selects some devices."""
        return DeviceTerms(*(getattr(self, name)[devices] for name in TERMS))

    def narrow(self) -> "DeviceTerms":
        """The same with one entry for bounds that all devices share."""
        return replace(self, **{name: narrow(getattr(self, name)) for name in _BOUNDS})


TERMS = tuple(field.name for field in fields(DeviceTerms))
_BOUNDS = ("rho_min", "rho_max", "theta_min", "theta_max")


def build_segments(terms: DeviceTerms, noise: float, gradient: float) -> Segments:
    """Builds all segments of the devices, θ = θ_min first; noise is w, gradient is G²/A."""
    terms = terms.narrow()
    lines = _list_lines(terms)
    return {kind: Segment.along(line, terms, noise, gradient) for kind, line in lines.items()}


def _list_lines(terms: DeviceTerms) -> dict[int, _Line]:
    """θ = θ_min, then θ = θ_max, then one line for each limit that can matter, by their kinds."""
    selected = _select_limits(terms)
    limits = list(selected.values())
    bottom, top = terms.theta_min, terms.theta_max
    fits = reduce(np.minimum, (_largest_rho(limit, bottom) for limit in limits), terms.rho_max)
    # Limits are feasible at the lower bounds; where rounding says otherwise, ρ_min is allowed all the same.
    fits = np.maximum(fits, terms.rho_min)
    lines = {BOTTOM: _Line(bottom, FLAT, terms.rho_min, fits)}
    if (bottom == top).all():
        return lines
    full = [_largest_rho(limit, top) for limit in limits]
    lines[TOP] = _Line(top, FLAT, terms.rho_min, reduce(np.minimum, full, fits))
    for index, (kind, limit) in enumerate(selected.items()):
        # Below full[index] even θ_max is within this limit, so the limit does not bind there.
        low = np.maximum(terms.rho_min, full[index])
        others = [other for position, other in enumerate(limits) if position != index]
        lines[kind] = _follow_limit(limit, others, low, fits)
    return lines


def list_limits(terms: DeviceTerms) -> dict[int, _Limit]:
    """The limits of every device, by the kind of segment along which they are used up."""
    wider = 1.0 + ROUNDING
    return {
        TIME: _Limit(terms.seconds * wider, terms.step_seconds, terms.upload_seconds),
        BATTERY: _Limit(terms.joules * wider, terms.step_joules, terms.upload_joules),
    }


def _select_limits(terms: DeviceTerms) -> dict[int, _Limit]:
    """The limits that can bind for at least one of the devices; fewer kinds mean less work for all."""
    limits = list_limits(terms)
    return {
        kind: limit for kind, limit in limits.items() if (_largest_use(limit, terms) > limit.budget).any()
    }


def _largest_use(limit: _Limit, terms: DeviceTerms) -> FloatArray:
    return terms.rho_max * limit.step + terms.theta_max * limit.upload


def _largest_rho(limit: _Limit, theta: FloatArray) -> FloatArray:
    """Largest ρ the limit allows beside θ; ±inf where steps are free."""
    left = limit.budget - theta * limit.upload
    if (limit.step > 0).all():
        return np.asarray(left / limit.step)
    free = np.where(left >= 0, np.inf, -np.inf)
    return np.divide(left, limit.step, out=free, where=limit.step > 0)


def _follow_limit(limit: _Limit, others: list[_Limit], low: FloatArray, high: FloatArray) -> _Line:
    """The segment along which a limit is used up, where no other limit is tighter."""
    constant, slope = _coefficients(limit)
    for other in others:
        low, high = _narrow_to_below(constant, slope, *_coefficients(other), low, high)
    usable = np.isfinite(constant)
    if usable.all():
        return _Line(constant, slope, low, high)
    return _Line(
        np.where(usable, constant, 0.0), slope, np.where(usable, low, 1.0), np.where(usable, high, 0.0)
    )


def _coefficients(limit: _Limit) -> tuple[FloatArray, FloatArray]:
    """c₀ and c₁ of θ = c₀ − c₁ρ; c₀ = +inf where uploads are free and the limit does not restrict θ."""
    sends = limit.upload > 0
    if sends.all():
        return limit.budget / limit.upload, limit.step / limit.upload
    constant = np.divide(limit.budget, limit.upload, out=np.full_like(limit.budget, np.inf), where=sends)
    slope = np.divide(limit.step, limit.upload, out=np.zeros_like(limit.budget), where=sends)
    return constant, slope


def _narrow_to_below(
    constant: FloatArray,
    slope: FloatArray,
    other_constant: FloatArray,
    other_slope: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Narrows [low, high] to where the first segment is not above the second."""
    with np.errstate(invalid="ignore"):
        rise = constant - other_constant
    rise = np.where(np.isnan(rise), 0.0, rise)
    steeper = slope - other_slope
    crossing = np.divide(rise, steeper, out=np.zeros_like(rise), where=steeper != 0)
    low = np.where(steeper > 0, np.maximum(low, crossing), low)
    high = np.where(steeper < 0, np.minimum(high, crossing), high)
    # Parallel and above everywhere: an empty interval.
    return low, np.where((steeper == 0) & (rise > 0), low - 1.0, high)


def _find_theta(terms: DeviceTerms, choice: SegmentNumbers, rho: FloatArray) -> FloatArray:
    """θ of every device at ρ on the given segment."""
    theta = np.where(choice == BOTTOM, terms.theta_min, terms.theta_max)
    for kind, limit in list_limits(terms).items():
        along = choice == kind
        if along.any():
            np.divide(limit.budget - rho * limit.step, limit.upload, out=theta, where=along)
    return theta


@dataclass(frozen=True, slots=True, eq=False)
class PricedFleet:
    """The devices of a round and what each can do.

    Attributes:
        terms: limits, bounds and costs of every device.
        noise: w, the weight of P2's first term.
        gradient: G²/A, the weight of its second term (before the factor 3), A = σ² + G².
        cluster, clusters: the cluster of every device, and how many there are.
        kept: the segments of all devices; None for a large fleet, which builds them again when asked.
    """

    terms: DeviceTerms
    noise: float
    gradient: float
    cluster: IndexArray
    clusters: int
    kept: Segments | None = None

    @classmethod
    def from_problem(
        cls,
        problem: RoundProblem,
        limits: Limits,
        theta: FloatArray | None = None,
        room: float | None = None,
    ) -> "PricedFleet":
        """Builds the fleet of a round under limits it can meet, with θ as given or within its bounds.

        `room` as for `DeviceTerms.from_problem`.
        """
        terms = DeviceTerms.from_problem(problem, limits, room)
        if theta is not None:
            terms = replace(terms, theta_min=theta, theta_max=theta)
        scale = problem.sigma2 + problem.g2
        gradient = problem.g2 / scale if scale > 0 else 0.0
        fleet = cls(terms, problem.noise_weight, gradient, problem.cluster, problem.clusters)
        return fleet.prepare()

    @property
    def size(self) -> int:
        """Number of devices, N."""
        return len(self.terms.seconds)

    def prepare(self) -> "PricedFleet":
        """The same fleet, with the segments of all devices kept if they are few."""
        few = self.kept is None and self.size <= MOST_KEPT
        return replace(self, kept=self._segments(slice(None))) if few else self

    def change(self, terms: DeviceTerms) -> "PricedFleet":
        """The same devices under other limits or bounds."""
        return replace(self, terms=terms, kept=None).prepare()

    def at(self, makespan: FloatArray) -> "PricedFleet":
        """One copy per makespan, in which devices have at most as many seconds."""
        spans = len(makespan)
        terms = self.terms.take(np.tile(np.arange(self.size), spans))
        seconds = np.minimum(self.terms.seconds, makespan[:, None]).ravel()
        cluster = (self.cluster + self.clusters * np.arange(spans)[:, None]).ravel()
        copies = replace(self, cluster=cluster, clusters=self.clusters * spans, kept=None)
        return copies.change(replace(terms, seconds=seconds))

    def take(self, devices: IndexArray | slice) -> "PricedFleet":
        """Some of the devices."""
        return replace(self, cluster=self.cluster[devices], kept=None).change(self.terms.take(devices))

    def respond(self, price: FloatArray) -> Response:
        """Finds every device's exact minimum of objective + λ · energy."""
        if self.kept is not None:
            return respond_along(self.kept, limit_prices(price))
        found = Response.empty(price.shape, np.int8)

        def work(block: slice) -> None:
            place = (slice(None), block)
            found.put(place, respond_along(self._segments(block), limit_prices(price[place])))

        run_blocks(work, self.size, AT_A_TIME // len(price))
        return found

    def place(self, choice: SegmentNumbers, rho: FloatArray) -> Response:
        """Every device at ρ on the given segment."""
        terms = self.terms
        theta = _find_theta(terms, choice, rho)
        joules = rho * terms.step_joules + theta * terms.upload_joules
        cost = self.noise * (2.0 - theta) * rho + 3.0 * self.gradient * (1.0 - rho) ** 2
        return Response(choice, rho, joules, cost)

    def theta(self, plan: Response) -> FloatArray:
        """θ of every device in a plan; a device that a plan gives less energy uses it up, as a battery."""
        theta = np.empty(self.size)

        def work(block: slice) -> None:
            terms = replace(self.terms.take(block), joules=plan.joules[block])
            theta[block] = _find_theta(terms, plan.choice[block], plan.rho[block])

        run_blocks(work, self.size)
        return theta

    def plan_within(self, joules: FloatArray) -> Response:
        """Every device at its least cost within given energies, rows × devices; infinite where none fits."""
        rows, least = len(joules), self.terms.least_joules
        fits = joules >= least * (1 - ROUNDING)
        terms = self.terms.take(np.tile(np.arange(self.size), rows))
        limited = replace(terms, joules=np.minimum(np.maximum(joules, least).ravel(), terms.joules))
        alone = replace(self, terms=limited, kept=None)
        found = alone.respond(np.zeros((1, rows * self.size))).pick(0)
        choice, rho, spent, cost = (
            values.reshape(joules.shape) for values in (found.choice, found.rho, found.joules, found.cost)
        )
        return Response(choice, rho, spent, np.where(fits, cost, np.inf))

    def find_ready(self, response: Response, shape: tuple[int, int]) -> FloatArray:
        """Nothing: all devices take as long as they may."""
        del response
        return np.zeros((*shape, self.clusters))

    def _segments(self, block: slice) -> Segments:
        if self.kept is None:
            return build_segments(self.terms.take(block), self.noise, self.gradient)
        return self.kept
