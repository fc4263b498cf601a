"""Estimates of one device that nobody can believe: they do not rule the plans of all."""

import numpy as np

from cfel.learning.local.estimates import Estimates
from cfel.rounds.estimates import combine_estimates, implausible_devices

HONEST = (Estimates(1.0, 2.0), Estimates(2.0, 4.0), Estimates(3.0, 3.0))


def test_one_absurd_number_counts_as_none() -> None:
    """Median of σ² + |G²| over (3, 6, 6, huge) is 6; the liar is taken to be like the mean of the others."""
    for liar in (Estimates(1e300, 1.0), Estimates(1.0, -1.7e308), Estimates(1.7e308, 1.7e308)):
        assert implausible_devices((*HONEST, liar)) == [3]
        sigma2, g2, _ = combine_estimates((*HONEST, liar))
        np.testing.assert_array_equal(sigma2, [1.0, 2.0, 3.0, 2.0])
        np.testing.assert_array_equal(g2, [2.0, 4.0, 3.0, 3.0])


def test_honest_differences_stay_to_the_last_bit() -> None:
    """5,999 is 1,000 times the median of (3, 6, 6, 5,999) less one."""
    known = (*HONEST, Estimates(5999.0, 0.0), None)
    assert implausible_devices(known) == []
    sigma2, g2, _ = combine_estimates(known)
    np.testing.assert_array_equal(sigma2, [1.0, 2.0, 3.0, 5999.0, 6005 / 4])
    np.testing.assert_array_equal(g2, [2.0, 4.0, 3.0, 0.0, 9 / 4])
    assert implausible_devices((*HONEST, Estimates(6001.0, 0.0))) == [3]


def test_zeros_have_no_say() -> None:
    """Devices with one batch of data tell σ² = 0; where G² is 0, too, they are no measure for the others."""
    zeros = (Estimates(0.0, 0.0),) * 5
    assert implausible_devices((*zeros, Estimates(1.0, 1.0))) == []
    assert implausible_devices(zeros) == []
    assert implausible_devices((None, None)) == []
