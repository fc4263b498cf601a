"""Estimates of one device that nobody can believe: they do not rule the plans of all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.arrays import FloatArray
from cfel.control.scheme import LEAST_GRADIENT_SHARE
from cfel.learning.local.estimates import Estimates
from cfel.rounds.estimates import MOST_INFLUENCE, combine_estimates, implausible_devices

HONEST = (Estimates(1.0, 2.0), Estimates(2.0, 4.0), Estimates(3.0, 3.0))
SEVEN = tuple(Estimates(2.0 + 0.1 * n, 1.0 + 0.05 * n) for n in range(7))
"""σ² twice G², which leaves ρ at about a half."""


def noise_ratio(sigma2: FloatArray, g2: FloatArray) -> float:
    """(σ² + G²)/G² of the means, as schemes see it: ρ falls with it."""
    mean = float(sigma2.mean())
    return 1 + mean / max(float(g2.mean()), LEAST_GRADIENT_SHARE * mean)


def test_one_absurd_number_counts_as_none() -> None:
    """The liar is taken to be like the mean of the others."""
    for liar in (Estimates(1e300, 1.0), Estimates(1.0, -1.7e308), Estimates(1.7e308, 1.7e308)):
        assert implausible_devices((*HONEST, liar)) == [3]
        sigma2, g2, _ = combine_estimates((*HONEST, liar))
        np.testing.assert_array_equal(sigma2, [1.0, 2.0, 3.0, 2.0])
        np.testing.assert_array_equal(g2, [2.0, 4.0, 3.0, 3.0])


@pytest.mark.parametrize(
    "liar",
    [
        Estimates(500.0, 1.0),  # below 1,000 medians
        Estimates(30.0, 1.0),
        Estimates(0.0, -5.0),  # impossible: G² is a square less at most σ²
        Estimates(2.0, -2.5),
        Estimates(9.0, -9.0),
    ],
)
def test_one_of_eight_does_not_put_all_on_the_floor(liar: Estimates) -> None:
    """Means with the liar are those without it."""
    assert implausible_devices((*SEVEN, liar)) == [7]
    sigma2, g2, _ = combine_estimates((*SEVEN, liar))
    assert sigma2.mean() == pytest.approx(2.3)
    assert g2.mean() == pytest.approx(1.15)


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=7, max_size=7),
    st.floats(0, 1.7e308),
    st.floats(-1.7e308, 1.7e308),
)
def test_no_device_of_eight_raises_the_noise_ratio_by_more_than_half(
    honest: list[tuple[float, float]], sigma2: float, g2: float
) -> None:
    """At most `MOST_INFLUENCE` eighths more than without it, whatever it reports."""
    known = [Estimates(*each) for each in honest]
    without, with_it = combine_estimates(known), combine_estimates([*known, Estimates(sigma2, g2)])
    most = (1 + MOST_INFLUENCE / 8) * noise_ratio(without.sigma2, without.g2)
    assert noise_ratio(with_it.sigma2, with_it.g2) <= most * (1 + 1e-9)


def test_honest_differences_stay_to_the_last_bit() -> None:
    """On uneven data σ² and G² grow together: 300 times the median is no reason."""
    known = (*HONEST, Estimates(1800.0, 1200.0), None)
    assert implausible_devices(known) == []
    sigma2, g2, _ = combine_estimates(known)
    np.testing.assert_array_equal(sigma2, [1.0, 2.0, 3.0, 1800.0, 1806 / 4])
    np.testing.assert_array_equal(g2, [2.0, 4.0, 3.0, 1200.0, 1209 / 4])
    noisy = (Estimates(2.0, -0.4), Estimates(3.0, 2.0), Estimates(2.5, 1.0), Estimates(2.0, 0.7))
    assert implausible_devices(noisy) == []


def test_only_devices_that_take_part_are_compared() -> None:
    """Of eight, three take part: among them the noisy one would rule the plan."""
    known = (*SEVEN, Estimates(15.0, 1.0))
    present = np.arange(8) >= 5
    assert implausible_devices(known) == []
    assert implausible_devices(known, present) == [7]
    sigma2, g2, _ = combine_estimates(known, present)
    assert noise_ratio(sigma2[present], g2[present]) == pytest.approx(3.0, rel=0.01)


def test_of_two_that_contradict_each_other_neither_is_bounded() -> None:
    assert implausible_devices((Estimates(1.0, 1.0), Estimates(100.0, 1.0))) == []


def test_zeros_have_no_say() -> None:
    """Devices with one batch of data tell σ² = 0; where G² is 0, too, they are no measure for the others."""
    zeros = (Estimates(0.0, 0.0),) * 5
    assert implausible_devices((*zeros, Estimates(1.0, 1.0))) == []
    assert implausible_devices(zeros) == []
    assert implausible_devices((None, None)) == []
