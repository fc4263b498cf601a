"""All devices of a round together, still without the energy cap that couples them.

They are kept in blocks small enough that the solver's temporaries stay in the processor's cache; that, and
nothing else, is why a million devices cost little more per device than ten thousand.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import FloatArray, IndexArray
from cfel.control.problem import RoundProblem
from cfel.control.solver.device_segments import Pieces
from cfel.control.solver.feasible_limits import Limits
from cfel.control.solver.segment_limits import DeviceTerms, device_pieces

BLOCK = 4096

Assignment = NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Every device's best answer to one price.

    Attributes:
        multiplier: the price λ of a joule, in units of the objective divided by A.
        rho: ρ of every device.
        piece: the line every device is on, an index into its block's `Pieces`.
        joules: energy of all devices.
        objective: the P2 sum divided by A.
    """

    multiplier: float
    rho: FloatArray
    piece: Assignment
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
class Crew:
    """The devices of a round and what each can do.

    Attributes:
        terms: limits, bounds and costs of every device.
        noise: w, the weight of the objective's first term.
        gradient: G²/A, the weight of its second term (before the factor 3), A = σ² + G².
        blocks: the lines of every device, `BLOCK` devices at a time.
    """

    terms: DeviceTerms
    noise: float
    gradient: float
    blocks: tuple[Pieces, ...]

    @classmethod
    def of(cls, terms: DeviceTerms, noise: float, gradient: float) -> "Crew":
        """Works out the lines of every device."""
        blocks = (device_pieces(terms.take(block), noise, gradient) for block in _blocks(len(terms.seconds)))
        return cls(terms, noise, gradient, tuple(blocks))

    @classmethod
    def of_problem(cls, problem: RoundProblem, limits: Limits) -> "Crew":
        """The devices of a round under limits it can meet."""
        scale = problem.sigma2 + problem.g2
        gradient = problem.g2 / scale if scale > 0 else 0.0
        return cls.of(DeviceTerms.of(problem, limits), problem.noise_weight, gradient)

    @property
    def size(self) -> int:
        """Number of devices, N."""
        return len(self.terms.seconds)

    def cheapest(self, multiplier: float) -> Choice:
        """Every device's exact minimum of objective + λ · energy."""
        rho, piece = np.empty(self.size), np.empty(self.size, dtype=np.int8)
        joules = objective = 0.0
        for block, pieces in self._each():
            spent, cost = pieces.cheapest(multiplier, rho[block], piece[block])
            joules += spent
            objective += cost
        return Choice(multiplier, rho, piece, joules, objective)

    def least(self) -> Choice:
        """Every device at its least energy on line 0: the answer to an infinite price."""
        answers = [pieces.least() for pieces in self.blocks]
        rho = np.concatenate([answer[0] for answer in answers])
        joules, objective = sum(answer[1] for answer in answers), sum(answer[2] for answer in answers)
        return Choice(np.inf, rho, np.zeros(self.size, dtype=np.int8), joules, objective)

    def every(self, stride: int) -> "Crew":
        """One device in `stride`."""
        return Crew.of(self.terms.take(slice(None, None, stride)), self.noise, self.gradient)

    def held(self, piece: Assignment) -> "Crew":
        """The same devices, each kept on one line: a convex problem."""
        blocks = tuple(pieces.on(piece[block]) for block, pieces in self._each())
        return replace(self, blocks=blocks)

    def held_without(self, device: int, piece: Assignment) -> "Crew":
        """All devices but one, each kept on its line.

        The lines are taken over as they are. Working them out again without the device would number them
        differently where it was the only one that a limit concerns.
        """
        kept = np.delete(np.arange(self.size), device)
        whole = Pieces.joined(self.held(piece).blocks).take(kept)
        blocks = tuple(whole.take(block) for block in _blocks(len(kept)))
        return replace(self, terms=self.terms.take(kept), blocks=blocks)

    def alone(self, devices: IndexArray, joules: FloatArray) -> Candidate:
        """Each listed device at its best within its own energy; the same device may be listed many times."""
        terms = self.terms.take(devices)
        own = Crew.of(replace(terms, joules=np.minimum(joules, terms.joules)), self.noise, self.gradient)
        choice = own.cheapest(0.0)
        return Candidate(choice.rho, own.theta(choice.piece, choice.rho), choice.objective)

    def theta(self, piece: Assignment, rho: FloatArray) -> FloatArray:
        """θ of every device standing at ρ on the given line."""
        return self._map(Pieces.theta, piece, rho)

    def joules(self, piece: Assignment, rho: FloatArray) -> FloatArray:
        """Energy of every device standing at ρ on the given line."""
        return self._map(Pieces.joules, piece, rho)

    def costs(self, piece: Assignment, rho: FloatArray) -> FloatArray:
        """Objective of every device standing at ρ on the given line."""
        return self._map(Pieces.costs, piece, rho)

    def plan_joules(self, rho: FloatArray, theta: FloatArray) -> FloatArray:
        """Energy of every device at any plan, on a line or not."""
        return rho * self.terms.step_joules + theta * self.terms.upload_joules

    def plan_costs(self, rho: FloatArray, theta: FloatArray) -> FloatArray:
        """Objective of every device at any plan, on a line or not."""
        return self.noise * (2.0 - theta) * rho + 3.0 * self.gradient * (1.0 - rho) ** 2

    def candidate(self, rho: FloatArray, theta: FloatArray) -> Candidate:
        """A plan with its objective."""
        return Candidate(rho, theta, float(self.plan_costs(rho, theta).sum()))

    def _each(self) -> Iterator[tuple[slice, Pieces]]:
        return zip(_blocks(self.size), self.blocks, strict=True)

    def _map(
        self,
        function: Callable[[Pieces, Assignment, FloatArray], FloatArray],
        piece: Assignment,
        rho: FloatArray,
    ) -> FloatArray:
        return np.concatenate([function(pieces, piece[block], rho[block]) for block, pieces in self._each()])


def _blocks(devices: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, devices, BLOCK))
