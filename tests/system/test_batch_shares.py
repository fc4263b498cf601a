"""Shares of a batch: plans, devices and accounts mean the same number of samples."""

import numpy as np
import pytest

from cfel.system.batch_shares import BatchShares


@pytest.mark.parametrize("batch", [1, 2, 7, 20, 32, 50, 512])
@pytest.mark.parametrize("overhead", [0.0, 0.05, 0.4])
def test_a_listed_share_is_charged_as_planned(batch: int, overhead: float) -> None:
    shares = BatchShares(batch, overhead)
    listed = shares.list_shares(0.1)
    np.testing.assert_allclose(shares.round_down(listed), listed)
    assert listed[-1] == pytest.approx(1.0)
    assert (np.diff(listed) > 0).all()
    samples = [shares.count_samples(rho) for rho in listed]
    np.testing.assert_allclose(listed, overhead + (1 - overhead) * np.array(samples) / batch)
    np.testing.assert_allclose(shares.find_part(listed), np.array(samples) / batch)
    assert samples[0] == min(batch, max(2, round(0.1 * batch)))


# Those for which plain rounding gives 1.0000000000000002, in different batches, and many others.
OVERHEADS = [0.0, 0.05, 0.067, 0.08, 0.19, 0.344, 0.999999, *np.random.default_rng(3).random(200).tolist()]


@pytest.mark.parametrize("overhead", OVERHEADS)
def test_no_batch_costs_more_than_a_full_step(overhead: float) -> None:
    """A full batch costs exactly one step: an order with ρ above 1 is rejected."""
    for batch in range(1, 257):
        shares = BatchShares(batch, overhead)
        assert shares.round_down(1.0) == 1.0
        listed = shares.list_shares(0.1)
        assert 0 < listed[0] <= listed[-1] == 1.0
        assert (np.diff(listed) > 0).all()
        np.testing.assert_array_equal(shares.round_down(listed), listed)


def test_a_share_pays_for_whole_samples() -> None:
    """Two at least, whatever they cost: one sample has no halves, and batch norm cannot train on it."""
    shares = BatchShares(20, 0.25)
    assert [shares.count_samples(rho) for rho in (0.0, 0.25, 0.5, 0.99, 1.0)] == [2, 2, 6, 19, 20]
    assert shares.least == pytest.approx(0.25 + 0.75 * 2 / 20)
    assert shares.round_down([0.1, 0.5]).tolist() == pytest.approx([shares.least, 0.25 + 0.75 * 6 / 20])
    assert BatchShares(1).least == 1.0
