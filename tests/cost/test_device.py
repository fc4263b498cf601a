"""A device's seconds and joules, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.cost import device_joules, device_seconds, realised_joules, realised_seconds

share = st.floats(0, 1)
amount = st.floats(0, 1e4)


def test_expected_seconds() -> None:
    """0.5·5·100 + 0.1·20 = 252 and 1·5·75 + 1·4 = 379."""
    assert device_seconds([0.5, 1], [0.1, 1], 5, [100, 75], [20, 4]).tolist() == [252, 379]


def test_expected_joules() -> None:
    """0.5·5·0.4 + 0.5·0.1·20 = 2 and 1·5·0.2 + 1·1·4 = 5."""
    assert device_joules([0.5, 1], [0.1, 1], 5, [0.4, 0.2], [20, 4], [0.5, 1]) == pytest.approx([2, 5])


def test_realised_cost_counts_steps_and_bits() -> None:
    """3 steps of 100 s and 0.2 of 20 s: 304 s; 3·0.4 + 0.5·0.2·20 = 3.2 J."""
    assert realised_seconds(3, 0.2, 100, 20) == pytest.approx(304)
    assert realised_joules(3, 0.2, 0.4, 20, 0.5) == pytest.approx(3.2)


@given(share, share, st.integers(1, 10), amount, amount)
def test_expected_is_the_mean_of_realised(rho: float, theta: float, tau: int, mu: float, nu: float) -> None:
    """Steps are binomial(τ, ρ) with mean ρτ, and seconds are linear in the steps."""
    steps = np.arange(tau + 1)
    chance = np.ones(1)
    for _ in range(tau):
        chance = np.convolve(chance, [1 - rho, rho])
    mean = chance @ realised_seconds(steps, theta, mu, nu)
    assert mean == pytest.approx(float(device_seconds(rho, theta, tau, mu, nu)), rel=1e-9, abs=1e-9)
