"""The continuous responder: all devices of a round, each with its best (ρ, θ) at a price of energy.

At a price λ ≥ 0 of a joule, a device minimises

    w(2−θ)ρA + 3(1−ρ)²G² + λ(ρτα + pθν)            its term of P2, plus λ times its energy

which is linear in θ. The best θ is therefore either the lower bound or the largest that is allowed: the upper
bound, what the time cap leaves, or what the battery leaves. Each of these is a segment θ = c₀ − c₁ρ over an
interval of ρ. Along a segment the cost is a convex quadratic in ρ with a closed-form minimum. So the exact
answer for one device is the best of at most four numbers, and for a fleet it is a few array operations.

Objectives are divided by A = σ² + G², which keeps all numbers near 1. The energy cap that couples the devices
is not here; `prices.search_energy_price` finds the price at which they keep to it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import FloatArray, IndexArray
from cfel.control.prices import Response, split_into_blocks
from cfel.control.problem import Limits, RoundProblem

SegmentNumbers = NDArray[np.int8]
"""Per device, the number of the segment it is on."""

# A limit is widened by this share: where it leaves room for one ρ only, rounding must not take that away.
ROUNDING = 1e-12
# Entries up to which NumPy's own argmin over columns is the faster one.
SHORT = 2048


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSegments:
    """Segments θ = c₀ − c₁ρ, ρ in [low, high], for K kinds of segment and N devices; all arrays are K × N.

    Along a segment the objective is `square`·ρ² + `slope`·ρ + `constant` and the energy is
    `joules_constant` + `joules_slope`·ρ. A segment a device cannot use has `constant` = +inf. `turn` is
    −1/(2 `square`): multiplied by the slope at ρ = 0 it gives the minimum of the parabola.
    """

    theta_constant: FloatArray
    theta_slope: FloatArray
    low: FloatArray
    high: FloatArray
    square: FloatArray
    slope: FloatArray
    constant: FloatArray
    joules_constant: FloatArray
    joules_slope: FloatArray
    turn: FloatArray

    @classmethod
    def along(
        cls,
        segments: FloatArray,
        step_joules: FloatArray,
        upload_joules: FloatArray,
        noise: float,
        gradient: float,
    ) -> "DeviceSegments":
        """Computes cost and energy along segments: c₀, c₁, low, high, K × N each.

        low > high marks a segment that cannot be used. `noise` is w, `gradient` is G²/A.
        """
        constant, slope, low, high = segments
        usable = low <= high
        # Where steps are free, an unusable segment may begin at infinity; ρ never exceeds 1.
        low = np.minimum(low, 1.0)
        # Without curvature the minimum would be 0/0. A tiny one sends it to an end of the segment, which is
        # where a straight line has its minimum.
        square = np.maximum(3.0 * gradient + noise * slope, 1e-200)
        return cls(
            theta_constant=constant,
            theta_slope=slope,
            low=low,
            high=np.maximum(low, high),
            square=square,
            turn=-0.5 / square,
            slope=noise * (2.0 - constant) - 6.0 * gradient,
            constant=np.where(usable, 3.0 * gradient, np.inf),
            joules_constant=upload_joules * constant,
            joules_slope=step_joules - upload_joules * slope,
        )

    @classmethod
    def join(cls, blocks: Sequence["DeviceSegments"]) -> "DeviceSegments":
        """Puts blocks with the same number of kinds side by side."""
        columns = zip(*(block._arrays() for block in blocks), strict=True)
        return cls(*(np.concatenate(arrays, axis=1) for arrays in columns))

    @property
    def devices(self) -> int:
        """Number of devices, N."""
        return int(self.low.shape[1])

    def respond(self, price: float, rho: FloatArray, choice: SegmentNumbers) -> tuple[float, float]:
        """Finds every device's exact minimum of objective + λ · energy.

        Fills ρ and the segment of every device, and returns energy and objective of all devices together.
        """
        # The inner loop of every solve: in-place operations, as temporaries cost more than the arithmetic.
        slope = price * self.joules_slope
        slope += self.slope
        stand = slope * self.turn
        np.maximum(stand, self.low, out=stand)
        np.minimum(stand, self.high, out=stand)
        joules = self.joules_slope * stand
        joules += self.joules_constant
        cost = self.square * stand
        cost += self.slope
        cost *= stand
        cost += self.constant
        chosen = _find_least_row(cost + price * joules)
        choice[:] = chosen
        place = _flatten_places(chosen, self.devices)
        stand.take(place, out=rho)
        return float(np.add.reduce(joules.take(place))), float(np.add.reduce(cost.take(place)))

    def spend_least(self) -> tuple[FloatArray, float, float]:
        """Finds the least energy on segment 0 (θ at its lower bound): the response to an infinite price.

        Where ρ costs no energy, ρ minimises the objective. Returns ρ of every device, and energy and
        objective of all devices together.
        """
        low, high, slope = self.low[0], self.high[0], self.joules_slope[0]
        stand = np.clip(self.slope[0] * self.turn[0], low, high)
        rho = np.where(slope > 0, low, np.where(slope < 0, high, stand))
        joules = self.joules_constant[0] + slope * rho
        costs = (self.square[0] * rho + self.slope[0]) * rho + self.constant[0]
        return rho, float(joules.sum()), float(costs.sum())

    def hold(self, choice: SegmentNumbers) -> "DeviceSegments":
        """Keeps every device on one segment, which leaves a convex problem, K = 1."""
        return DeviceSegments(*(values[np.newaxis] for values in self._select(choice, *self._arrays())))

    def take(self, devices: IndexArray | slice) -> "DeviceSegments":
        """Selects some devices."""
        return DeviceSegments(*(values[:, devices] for values in self._arrays()))

    def theta(self, choice: SegmentNumbers, rho: FloatArray) -> FloatArray:
        """θ of every device at ρ on the given segment."""
        constant, slope = self._select(choice, self.theta_constant, self.theta_slope)
        return constant - slope * rho

    def joules(self, choice: SegmentNumbers, rho: FloatArray) -> FloatArray:
        """Energy of every device at ρ on the given segment."""
        constant, slope = self._select(choice, self.joules_constant, self.joules_slope)
        return constant + slope * rho

    def costs(self, choice: SegmentNumbers, rho: FloatArray) -> FloatArray:
        """Objective of every device at ρ on the given segment."""
        square, slope, constant = self._select(choice, self.square, self.slope, self.constant)
        return (square * rho + slope) * rho + constant

    def _select(self, choice: SegmentNumbers, *values: FloatArray) -> list[FloatArray]:
        place = _flatten_places(choice, self.devices)
        return [np.take(array, place) for array in values]

    def _arrays(self) -> tuple[FloatArray, ...]:
        return tuple(getattr(self, name) for name in FIELDS)


FIELDS = tuple(field.name for field in fields(DeviceSegments))


def _find_least_row(value: FloatArray) -> IndexArray:
    """The row of each column's least value; `argmin(axis=0)` is slow for a few long rows."""
    if value.size < SHORT:
        return np.asarray(value.argmin(axis=0))
    best = value[0]
    chosen = np.zeros(len(best), dtype=np.intp)
    for row in range(1, len(value)):
        chosen[value[row] < best] = row
        best = np.minimum(best, value[row])
    return chosen


def _flatten_places(row: NDArray[np.signedinteger[Any]], columns: int) -> IndexArray:
    """Flat positions of (row[n], n) in an array of that many columns; `take` on them beats fancy indexing."""
    place: IndexArray = np.multiply(row, columns, dtype=np.intp)
    place += np.arange(columns)
    return place


# From a device's limits to its segments. A limit is a budget that ρ and θ share linearly: of seconds (P2's
# time constraint) or of joules (the battery). At a given ρ the largest allowed θ is the least of θ_max and
# what each limit leaves: a concave chain of segments, each kept over the interval of ρ where it is the least.


class _Limit(NamedTuple):
    """ρ · step + θ · upload ≤ budget."""

    budget: FloatArray
    step: FloatArray
    upload: FloatArray


class _Segment(NamedTuple):
    """θ = constant − slope · ρ for ρ in [low, high]."""

    constant: FloatArray
    slope: FloatArray
    low: FloatArray
    high: FloatArray


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
    def from_problem(cls, problem: RoundProblem, limits: Limits) -> "DeviceTerms":
        """Collects the terms of every device of a problem."""
        least = problem.joules(problem.rho_min, problem.theta_min)
        # No device can use more than the energy cap less what the others need at least. With few devices
        # this sharpens the lower bound, so it is treated like a battery.
        joules = limits.joules - float(least.sum()) + least
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


TERMS = tuple(field.name for field in fields(DeviceTerms))


def build_segments(terms: DeviceTerms, noise: float, gradient: float) -> DeviceSegments:
    """Builds all segments of the devices, θ = θ_min first; noise is w, gradient is G²/A."""
    segments = _list_segments(terms)
    stacked = np.empty((4, len(segments), len(terms.seconds)))
    for kind, segment in enumerate(segments):
        for column, values in enumerate(segment):
            stacked[column, kind] = values
    return DeviceSegments.along(stacked, terms.step_joules, terms.upload_joules, noise, gradient)


def _list_segments(terms: DeviceTerms) -> list[_Segment]:
    """θ = θ_min, then θ = θ_max, then one segment for each limit that can matter."""
    limits = _select_limits(terms)
    bottom, top = terms.theta_min, terms.theta_max
    fits = np.minimum.reduce([terms.rho_max, *(_largest_rho(limit, bottom) for limit in limits)])
    # Limits are feasible at the lower bounds; where rounding says otherwise, ρ_min is allowed all the same.
    fits = np.maximum(fits, terms.rho_min)
    flat = np.zeros_like(fits)
    segments = [_Segment(bottom, flat, terms.rho_min, fits)]
    if (bottom == top).all():
        return segments
    full = [_largest_rho(limit, top) for limit in limits]
    segments.append(_Segment(top, flat, terms.rho_min, np.minimum.reduce([fits, *full])))
    for index, limit in enumerate(limits):
        # Below full[index] even θ_max is within this limit, so the limit does not bind there.
        low = np.maximum(terms.rho_min, full[index])
        others = [other for position, other in enumerate(limits) if position != index]
        segments.append(_follow_limit(limit, others, low, fits))
    return segments


def _select_limits(terms: DeviceTerms) -> list[_Limit]:
    """The limits that can bind for at least one of the devices; fewer kinds mean less work for all."""
    wider = 1.0 + ROUNDING
    time = _Limit(terms.seconds * wider, terms.step_seconds, terms.upload_seconds)
    energy = _Limit(terms.joules * wider, terms.step_joules, terms.upload_joules)
    return [limit for limit in (time, energy) if (_largest_use(limit, terms) > limit.budget).any()]


def _largest_use(limit: _Limit, terms: DeviceTerms) -> FloatArray:
    return terms.rho_max * limit.step + terms.theta_max * limit.upload


def _largest_rho(limit: _Limit, theta: FloatArray) -> FloatArray:
    """Largest ρ the limit allows beside θ; ±inf where steps are free."""
    left = limit.budget - theta * limit.upload
    free = np.where(left >= 0, np.inf, -np.inf)
    return np.divide(left, limit.step, out=free, where=limit.step > 0)


def _follow_limit(limit: _Limit, others: list[_Limit], low: FloatArray, high: FloatArray) -> _Segment:
    """The segment along which a limit is used up, where no other limit is tighter."""
    constant, slope = _coefficients(limit)
    for other in others:
        low, high = _narrow_to_below(constant, slope, *_coefficients(other), low, high)
    usable = np.isfinite(constant)
    return _Segment(
        np.where(usable, constant, 0.0), slope, np.where(usable, low, 1.0), np.where(usable, high, 0.0)
    )


def _coefficients(limit: _Limit) -> tuple[FloatArray, FloatArray]:
    """c₀ and c₁ of θ = c₀ − c₁ρ; c₀ = +inf where uploads are free and the limit does not restrict θ."""
    sends = limit.upload > 0
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


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A plan under consideration: ρ and θ of every device and the P2 sum divided by A."""

    rho: FloatArray
    theta: FloatArray
    objective: float

    def __lt__(self, other: "Candidate") -> bool:
        return self.objective < other.objective

    def gap(self, lower_bound: float) -> float:
        """How much worse than a lower bound this can be at most, relatively."""
        return (self.objective - lower_bound) / max(abs(lower_bound), 1e-300)


@dataclass(frozen=True, slots=True, eq=False)
class PricedFleet:
    """The devices of a round and what each can do.

    Attributes:
        terms: limits, bounds and costs of every device.
        noise: w, the weight of P2's first term.
        gradient: G²/A, the weight of its second term (before the factor 3), A = σ² + G².
        blocks: the segments of every device, `BLOCK` devices at a time.
    """

    terms: DeviceTerms
    noise: float
    gradient: float
    blocks: tuple[DeviceSegments, ...]

    @classmethod
    def from_terms(cls, terms: DeviceTerms, noise: float, gradient: float) -> "PricedFleet":
        """Builds the segments of every device."""
        blocks = split_into_blocks(len(terms.seconds))
        segments = (build_segments(terms.take(block), noise, gradient) for block in blocks)
        return cls(terms, noise, gradient, tuple(segments))

    @classmethod
    def from_problem(
        cls, problem: RoundProblem, limits: Limits, theta: FloatArray | None = None
    ) -> "PricedFleet":
        """Builds the fleet of a round under limits it can meet, with θ as given or within its bounds."""
        terms = DeviceTerms.from_problem(problem, limits)
        if theta is not None:
            terms = replace(terms, theta_min=theta, theta_max=theta)
        scale = problem.sigma2 + problem.g2
        return cls.from_terms(terms, problem.noise_weight, problem.g2 / scale if scale > 0 else 0.0)

    @property
    def size(self) -> int:
        """Number of devices, N."""
        return len(self.terms.seconds)

    def respond(self, price: float) -> Response:
        """Finds every device's exact minimum of objective + λ · energy."""
        rho, choice = np.empty(self.size), np.empty(self.size, dtype=np.int8)
        joules = objective = 0.0
        for block, segments in self._each():
            spent, cost = segments.respond(price, rho[block], choice[block])
            joules += spent
            objective += cost
        return Response(price, rho, choice, joules, objective)

    def spend_least(self) -> Response:
        """Puts every device at its least energy on segment 0: the response to an infinite price."""
        answers = [segments.spend_least() for segments in self.blocks]
        rho = np.concatenate([answer[0] for answer in answers])
        joules, objective = sum(answer[1] for answer in answers), sum(answer[2] for answer in answers)
        return Response(np.inf, rho, np.zeros(self.size, dtype=np.int8), joules, objective)

    def sample(self, stride: int) -> "PricedFleet":
        """Takes one device in `stride`."""
        return PricedFleet.from_terms(self.terms.take(slice(None, None, stride)), self.noise, self.gradient)

    def hold(self, choice: SegmentNumbers) -> "PricedFleet":
        """Keeps every device on one segment, which leaves a convex problem."""
        blocks = tuple(segments.hold(choice[block]) for block, segments in self._each())
        return replace(self, blocks=blocks)

    def hold_without(self, device: int, choice: SegmentNumbers) -> "PricedFleet":
        """Leaves out one device and keeps every other one on its segment."""
        kept = np.delete(np.arange(self.size), device)
        # The segments are taken over as they are. Building them again without the device could number them
        # differently: a limit that binds for nobody has no segment.
        whole = DeviceSegments.join(self.hold(choice).blocks).take(kept)
        blocks = tuple(whole.take(block) for block in split_into_blocks(len(kept)))
        return replace(self, terms=self.terms.take(kept), blocks=blocks)

    def plan_alone(self, devices: IndexArray, joules: FloatArray) -> Candidate:
        """Plans each listed device at its best within its own energy; a device may be listed many times."""
        terms = self.terms.take(devices)
        limited = replace(terms, joules=np.minimum(joules, terms.joules))
        fleet = PricedFleet.from_terms(limited, self.noise, self.gradient)
        response = fleet.respond(0.0)
        return Candidate(response.rho, fleet.theta(response.choice, response.rho), response.objective)

    def theta(self, choice: SegmentNumbers, rho: FloatArray) -> FloatArray:
        """θ of every device at ρ on the given segment."""
        return self._map(DeviceSegments.theta, choice, rho)

    def joules(self, choice: SegmentNumbers, rho: FloatArray) -> FloatArray:
        """Energy of every device at ρ on the given segment."""
        return self._map(DeviceSegments.joules, choice, rho)

    def costs(self, choice: SegmentNumbers, rho: FloatArray) -> FloatArray:
        """Objective of every device at ρ on the given segment."""
        return self._map(DeviceSegments.costs, choice, rho)

    def joules_of(self, rho: FloatArray, theta: FloatArray) -> FloatArray:
        """Energy of every device at any plan, on a segment or not."""
        return rho * self.terms.step_joules + theta * self.terms.upload_joules

    def costs_of(self, rho: FloatArray, theta: FloatArray) -> FloatArray:
        """Objective of every device at any plan, on a segment or not."""
        return self.noise * (2.0 - theta) * rho + 3.0 * self.gradient * (1.0 - rho) ** 2

    def evaluate(self, rho: FloatArray, theta: FloatArray) -> Candidate:
        """Computes a plan's objective."""
        return Candidate(rho, theta, float(self.costs_of(rho, theta).sum()))

    def _each(self) -> Iterator[tuple[slice, DeviceSegments]]:
        return zip(split_into_blocks(self.size), self.blocks, strict=True)

    def _map(
        self,
        function: Callable[[DeviceSegments, SegmentNumbers, FloatArray], FloatArray],
        choice: SegmentNumbers,
        rho: FloatArray,
    ) -> FloatArray:
        return np.concatenate(
            [function(segments, choice[block], rho[block]) for block, segments in self._each()]
        )
