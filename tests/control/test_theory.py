"""Theorem 1 by hand."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from cfel.control import Landscape, Rounds, omega1, theorem_1
from cfel.control.theory import combine_terms, compute_terms
from cfel.errors import InputError

LANDSCAPE = Landscape(smoothness=2.0, initial_gap=3.0, sigma2=1.0, g2=0.5, learning_rate=0.01)
ROUNDS = Rounds(global_rounds=1, edge_rounds=2, local_steps=5)
PLANS = [
    (np.array([1.0, 0.5]), np.array([1.0, 0.8])),
    (np.array([0.5, 0.5]), np.array([0.9, 1.0])),
]


def test_omega_by_hand() -> None:
    """ζ = 0: 1 + 2 + 0. ζ = ½: 1/(3/4) + 2/(1/2) + (1/2)/(1/4) = 4/3 + 4 + 2 = 22/3."""
    assert omega1(0.0) == 3.0
    assert omega1(0.5) == pytest.approx(22 / 3)


@pytest.mark.parametrize("zeta", [-0.1, 1.0, 2.0, np.nan])
def test_omega_needs_a_connected_backhaul(zeta: float) -> None:
    with pytest.raises(InputError, match="zeta = "):
        omega1(zeta)


def test_terms_by_hand() -> None:
    """Two devices, two edge rounds (φq = 2), τ = 5.

    Progress: 4 · 3 / (0.01 · 2 · 5) = 120.
    Noise: the means of (2−θ)ρ are (1 + 0.6)/2 = 0.8 and (0.55 + 0.5)/2 = 0.525; 8 · 0.01 · 2 · 1.5 · 1.325/2
    = 0.159. Skipped: the means of (1−ρ)² are 0.125 and 0.25; 12 · 0.5 · 0.375/2 = 1.125.
    """
    bound = theorem_1(LANDSCAPE, ROUNDS, 0.0, PLANS)
    assert bound.progress == pytest.approx(120)
    assert bound.noise == pytest.approx(0.159)
    assert bound.skipped == pytest.approx(1.125)
    assert bound.total == pytest.approx(121.284)


def test_step_size_limits_by_hand() -> None:
    """Backhaul: 1/(4 · 2 · (2 · 5)² · 3) = 1/2400.

    Plans: ρ(2θ−1)/(4(2−θ)) is 1/4 and 0.3/4.8 = 1/16 in the first round, 0.4/4.4 and 1/8 in the second.
    """
    bound = theorem_1(LANDSCAPE, ROUNDS, 0.0, PLANS)
    assert bound.topology_limit == pytest.approx(1 / 2400)
    assert bound.plan_limit == pytest.approx(1 / 16)


@pytest.mark.parametrize(("rate", "holds"), [(0.01, False), (4e-4, True)])
def test_step_size_condition_both_ways(rate: float, holds: bool) -> None:
    """1/2400 = 4.17 · 10⁻⁴ lies between the two."""
    landscape = replace(LANDSCAPE, learning_rate=rate)
    assert theorem_1(landscape, ROUNDS, 0.0, PLANS).holds is holds


def test_plans_can_be_what_breaks_the_condition() -> None:
    """θ ≤ ½ for a single device leaves no positive step size at all; nothing is raised."""
    tiny = replace(LANDSCAPE, learning_rate=1e-12)
    half = [(np.array([1.0, 1.0]), np.array([1.0, 0.5]))]
    less = [(np.array([1.0, 1.0]), np.array([1.0, 0.2]))]
    assert theorem_1(tiny, ROUNDS, 0.0, half).plan_limit == 0.0
    assert theorem_1(tiny, ROUNDS, 0.0, less).plan_limit < 0.0
    assert not theorem_1(tiny, ROUNDS, 0.0, half).holds
    assert not theorem_1(tiny, ROUNDS, 0.0, less).holds


def test_round_without_devices_counts_but_adds_nothing() -> None:
    nobody = (np.array([]), np.array([]))
    bound = theorem_1(LANDSCAPE, ROUNDS, 0.0, [*PLANS, nobody, nobody])
    assert bound.progress == pytest.approx(60)
    assert bound.noise == pytest.approx(0.159 / 2)
    assert bound.plan_limit == pytest.approx(1 / 16)


def test_rounds_apart_and_together() -> None:
    """Each of the two edge rounds as a global round of its own; together they are the whole again.

    At η = 0.1 the limits are 1/4 and 1/16 in the first and 1/11 and 1/8 in the second: one breach in each.
    """
    landscape = replace(LANDSCAPE, learning_rate=0.1)
    parts = [compute_terms(landscape, [plan]) for plan in PLANS]
    assert [(part.breaches, part.devices, part.edge_rounds) for part in parts] == [(1, 2, 1), (1, 2, 1)]
    assert [part.plan_limit for part in parts] == pytest.approx([1 / 16, 1 / 11])
    assert [part.skipped for part in parts] == pytest.approx([12 * 0.5 * 0.125, 12 * 0.5 * 0.25])
    whole = asdict(theorem_1(landscape, ROUNDS, 0.0, PLANS))
    assert asdict(combine_terms(landscape, ROUNDS, 0.0, parts)) == pytest.approx(whole)


def test_rounds_of_unequal_length_count_by_their_edge_rounds() -> None:
    short, long = compute_terms(LANDSCAPE, PLANS[:1]), compute_terms(LANDSCAPE, [*PLANS[1:], *PLANS[1:]])
    assert combine_terms(LANDSCAPE, ROUNDS, 0.0, [short, long]).skipped == pytest.approx(12 * 0.5 * 0.625 / 3)


def test_thin_backhaul_asks_for_smaller_steps() -> None:
    limits = [theorem_1(LANDSCAPE, ROUNDS, zeta, PLANS).topology_limit for zeta in (0.0, 0.5, 0.8, 0.99)]
    assert limits == sorted(limits, reverse=True)


def test_no_plans_are_rejected() -> None:
    with pytest.raises(InputError, match="at least one edge round"):
        theorem_1(LANDSCAPE, ROUNDS, 0.0, [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("smoothness", 0.0),
        ("learning_rate", -1.0),
        ("initial_gap", -1.0),
        ("sigma2", np.nan),
        ("g2", np.inf),
    ],
)
def test_bad_landscape_is_rejected(field: str, value: float) -> None:
    fields = {
        name: getattr(LANDSCAPE, name)
        for name in ("smoothness", "initial_gap", "sigma2", "g2", "learning_rate")
    }
    with pytest.raises(InputError, match=f"{field} = "):
        Landscape(**(fields | {field: value}))
