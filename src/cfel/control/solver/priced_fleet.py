"""All devices of a round together: given a price of energy, each one responds with its best (ρ, θ).

The energy cap that couples the devices is not here; `dual_search` finds the price at which they keep to it.

Devices are kept in blocks small enough for the solver's temporaries to stay in the processor's cache. That is
why a million devices cost little more per device than ten thousand.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import FloatArray, IndexArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.device_segments import DeviceSegments
from cfel.control.solver.feasible_limits import Limits
from cfel.control.solver.segment_limits import DeviceTerms, build_segments

BLOCK = 4096

Choices = NDArray[np.int8]
"""Per device, the index of the segment (in a `PricedFleet`) or of the pair (in a `StepGrid`) it is on."""


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """Every device's best response to one price of energy.

    Attributes:
        price: λ, per joule, in units of the objective divided by A.
        rho: ρ of every device.
        choice: the segment, or the θ of the grid, that every device is on.
        joules: energy of all devices.
        objective: the P2 sum divided by A.
    """

    price: float
    rho: FloatArray
    choice: NDArray[Any]
    joules: float
    objective: float


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
        blocks = (build_segments(terms.take(block), noise, gradient) for block in _blocks(len(terms.seconds)))
        return cls(terms, noise, gradient, tuple(blocks))

    @classmethod
    def from_problem(cls, problem: RoundProblem, limits: Limits) -> "PricedFleet":
        """Builds the fleet of a round under limits it can meet."""
        scale = problem.sigma2 + problem.g2
        gradient = problem.g2 / scale if scale > 0 else 0.0
        return cls.from_terms(DeviceTerms.from_problem(problem, limits), problem.noise_weight, gradient)

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

    def hold(self, choice: Choices) -> "PricedFleet":
        """Keeps every device on one segment, which leaves a convex problem."""
        blocks = tuple(segments.hold(choice[block]) for block, segments in self._each())
        return replace(self, blocks=blocks)

    def hold_without(self, device: int, choice: Choices) -> "PricedFleet":
        """Leaves out one device and keeps every other one on its segment."""
        kept = np.delete(np.arange(self.size), device)
        # The segments are taken over as they are. Building them again without the device could number them
        # differently: a limit that binds for nobody has no segment.
        whole = DeviceSegments.join(self.hold(choice).blocks).take(kept)
        blocks = tuple(whole.take(block) for block in _blocks(len(kept)))
        return replace(self, terms=self.terms.take(kept), blocks=blocks)

    def plan_alone(self, devices: IndexArray, joules: FloatArray) -> Candidate:
        """Plans each listed device at its best within its own energy; a device may be listed many times."""
        terms = self.terms.take(devices)
        limited = replace(terms, joules=np.minimum(joules, terms.joules))
        fleet = PricedFleet.from_terms(limited, self.noise, self.gradient)
        response = fleet.respond(0.0)
        return Candidate(response.rho, fleet.theta(response.choice, response.rho), response.objective)

    def theta(self, choice: Choices, rho: FloatArray) -> FloatArray:
        """θ of every device at ρ on the given segment."""
        return self._map(DeviceSegments.theta, choice, rho)

    def joules(self, choice: Choices, rho: FloatArray) -> FloatArray:
        """Energy of every device at ρ on the given segment."""
        return self._map(DeviceSegments.joules, choice, rho)

    def costs(self, choice: Choices, rho: FloatArray) -> FloatArray:
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
        return zip(_blocks(self.size), self.blocks, strict=True)

    def _map(
        self,
        function: Callable[[DeviceSegments, Choices, FloatArray], FloatArray],
        choice: Choices,
        rho: FloatArray,
    ) -> FloatArray:
        return np.concatenate(
            [function(segments, choice[block], rho[block]) for block, segments in self._each()]
        )


def _blocks(devices: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, devices, BLOCK))
