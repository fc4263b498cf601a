"""Theorem 1 for a sequence of plans: the bound, term by term, and whether its condition holds.

    (1/φq) Σ E‖∇F(u)‖² ≤ 4(F(u⁰) − F_inf)/(ηφqτ)                      progress
                        + 8ηL(σ²+G²)/(Nφq) · ΣΣΣ (2−θ)ρ               noise
                        + 12G²/(Nφq) · ΣΣΣ (1−ρ)²                      skipped steps

    η ≤ min{ 1/(4Lq²τ²Ω₁), ρ(2θ−1)/(2L(2−θ)) for all devices and rounds }

The second condition needs θ > 1/2 for every device. Real runs break it; that is reported, never enforced.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.control.caps import Rounds
from cfel.errors import InputError


@dataclass(frozen=True, slots=True)
class Landscape:
    """What Theorem 1 assumes about the loss.

    Attributes:
        smoothness: L > 0.
        initial_gap: F(u⁰) − F_inf ≥ 0.
        sigma2, g2: bounds σ² and G² ≥ 0.
        learning_rate: η > 0.
    """

    smoothness: float
    initial_gap: float
    sigma2: float
    g2: float
    learning_rate: float

    def __post_init__(self) -> None:
        validation.check_number("smoothness", self.smoothness, above=0)
        validation.check_number("learning_rate", self.learning_rate, above=0)
        for field in ("initial_gap", "sigma2", "g2"):
            validation.check_number(field, getattr(self, field), least=0)


@dataclass(frozen=True, slots=True)
class Bound:
    """Theorem 1's right-hand side and its condition on the step size.

    Attributes:
        progress, noise, skipped: the three terms, in the order of the theorem.
        topology_limit: 1/(4Lq²τ²Ω₁), the largest η the backhaul allows.
        plan_limit: the largest η that every plan allows; ≤ 0 when some θ ≤ 1/2.
        holds: whether η is within both limits.
    """

    progress: float
    noise: float
    skipped: float
    topology_limit: float
    plan_limit: float
    holds: bool

    @property
    def total(self) -> float:
        """The bound on the mean squared gradient."""
        return self.progress + self.noise + self.skipped


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """What some edge rounds add to the bound, and how often their plans break its condition.

    Attributes:
        noise, skipped: the second and third term, averaged over these edge rounds.
        plan_limit: the largest η that all of their plans allow.
        edge_rounds: how many edge rounds.
        breaches: pairs of device and edge round whose plan allows only a smaller η.
        devices: all pairs of device and edge round.
    """

    noise: float
    skipped: float
    plan_limit: float
    edge_rounds: int
    breaches: int
    devices: int


def omega1(zeta: float) -> float:
    """Ω₁ = 1/(1−ζ²) + 2/(1−ζ) + ζ/(1−ζ)²: grows as the backhaul mixes more slowly; 3 for a complete graph."""
    if not 0 <= zeta < 1:
        raise InputError(f"zeta = {zeta!r}: must be within [0, 1), or gossip never agrees")
    return 1 / (1 - zeta**2) + 2 / (1 - zeta) + zeta / (1 - zeta) ** 2


def theorem_1(
    landscape: Landscape, rounds: Rounds, zeta: float, plans: Iterable[tuple[FloatArray, FloatArray]]
) -> Bound:
    """Computes the bound for the plans of a whole run, or of its first rounds.

    Args:
        landscape: L, F(u⁰) − F_inf, σ², G², η.
        rounds: q and τ of the run; φ follows from the number of plans.
        zeta: of the backhaul.
        plans: (ρ, θ) of the devices that took part, one pair per edge round.
    """
    return combine_terms(landscape, rounds, zeta, [compute_terms(landscape, plans)])


def compute_terms(landscape: Landscape, plans: Iterable[tuple[FloatArray, FloatArray]]) -> RoundTerms:
    """Computes what some edge rounds add to the bound, given their σ² and G² and the plans of `theorem_1`."""
    rate, smooth = landscape.learning_rate, landscape.smoothness
    noise, skipped, plan_limit, edge_rounds, breaches, devices = 0.0, 0.0, np.inf, 0, 0, 0
    for rho, theta in plans:
        # An edge round without devices makes no noise and no progress, but the mean is over all edge rounds.
        edge_rounds += 1
        if len(rho):
            noise += float(np.mean((2 - theta) * rho))
            skipped += float(np.mean((1 - rho) ** 2))
            limits = rho * (2 * theta - 1) / (2 * smooth * (2 - theta))
            plan_limit = min(plan_limit, float(np.min(limits)))
            breaches += int(np.count_nonzero(rate > limits))
            devices += len(rho)
    if edge_rounds == 0:
        raise InputError("plans: Theorem 1 needs at least one edge round, got none")
    return RoundTerms(
        noise=8 * rate * smooth * (landscape.sigma2 + landscape.g2) * noise / edge_rounds,
        skipped=12 * landscape.g2 * skipped / edge_rounds,
        plan_limit=plan_limit,
        edge_rounds=edge_rounds,
        breaches=breaches,
        devices=devices,
    )


def combine_terms(landscape: Landscape, rounds: Rounds, zeta: float, terms: Sequence[RoundTerms]) -> Bound:
    """Combines the terms of rounds, at least one, each with its own σ² and G², into the bound of a run."""
    rate, steps = landscape.learning_rate, rounds.local_steps
    edge_rounds = sum(each.edge_rounds for each in terms)
    spread = (rounds.edge_rounds * steps) ** 2 * omega1(zeta)
    topology_limit = 1 / (4 * landscape.smoothness * spread)
    plan_limit = min(each.plan_limit for each in terms)
    return Bound(
        progress=4 * landscape.initial_gap / (rate * edge_rounds * steps),
        noise=sum(each.noise * each.edge_rounds for each in terms) / edge_rounds,
        skipped=sum(each.skipped * each.edge_rounds for each in terms) / edge_rounds,
        topology_limit=topology_limit,
        plan_limit=plan_limit,
        holds=rate <= min(topology_limit, plan_limit),
    )
