"""Shares of a batch: plans, devices and accounts mean the same number of samples."""

import numpy as np
import pytest

from cfel.system.batch_shares import BatchShares


@pytest.mark.parametrize("batch", [1, 2, 7, 20, 32, 50, 512])
@pytest.mark.parametrize("overhead", [0.0, 0.05, 0.4])
def test_a_listed_share_is_charged_as_planned(batch: int, overhead: float) -> None:
    shares = BatchShares(batch, overhead)
    listed = shares.list_shares(0.1)
    np.testing.assert_allclose(shares.charge(listed), listed)
    assert listed[-1] == pytest.approx(1.0)
    assert (np.diff(listed) > 0).all()
    samples = [shares.count_samples(rho) for rho in listed]
    np.testing.assert_allclose(listed, overhead + (1 - overhead) * np.array(samples) / batch)
    assert samples[0] == max(1, round(0.1 * batch))


def test_at_least_one_sample_and_at_most_all_are_used() -> None:
    shares = BatchShares(20, 0.25)
    assert [shares.count_samples(rho) for rho in (0.0, 0.25, 0.5, 1.0)] == [1, 1, 7, 20]
    # Less than the fixed part cannot be had: it is charged.
    assert shares.charge(0.1) == pytest.approx(0.25 + 0.75 / 20)
