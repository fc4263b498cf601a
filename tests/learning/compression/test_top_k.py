"""Fast selection equals a full sort, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cfel.arrays import Float32Array, IntArray
from cfel.errors import InputError
from cfel.learning.top_k import find_largest, measure_kept_energy


def slow_largest(vector: Float32Array, k: int) -> IntArray:
    """Sort by magnitude, then by index; take k; put them in order."""
    order = np.lexsort((np.arange(vector.size), -np.abs(vector).astype(np.float64)))
    return np.sort(order[:k])


def check(vector: Float32Array, k: int) -> None:
    indices, values = find_largest(vector, k)
    expected = slow_largest(vector, k)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values.view(np.int32), vector[expected].view(np.int32))


few = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-40, -3.5])
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.data(), arrays(np.float32, st.integers(1, 60), elements=st.one_of(few, finite)))
def test_small_vectors_with_ties_and_zeros(data: st.DataObject, vector: Float32Array) -> None:
    check(vector, data.draw(st.integers(0, vector.size)))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.sampled_from(["normal", "ties", "layers", "sorted"]))
def test_large_vectors(seed: int, share: float, kind: str) -> None:
    draw = np.random.default_rng(seed)
    vector = draw.standard_normal(150_001).astype(np.float32)
    if kind == "ties":
        vector = (np.round(vector * 3) / 3).astype(np.float32)
    elif kind == "layers":
        vector *= np.repeat([1e-3, 1.0, 30.0], [100_000, 50_000, 1]).astype(np.float32)
    elif kind == "sorted":
        vector = np.sort(vector)
    check(vector, round(share * vector.size))


@pytest.mark.parametrize("k", [0, 1, 2, 99_999, 100_000])
@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_all_entries_equal(k: int, fill: float) -> None:
    check(np.full(100_000, fill, dtype=np.float32), k)


def test_a_sample_that_misleads_does_not_change_the_answer() -> None:
    """The sampled entries are the largest, so the bracket is far too high: fewer than k entries pass."""
    vector = np.full(200_001, 0.5, dtype=np.float32)
    vector[::3] = 9.0
    check(vector, 150_000)
    vector[::3] = 0.0
    check(vector, 100)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("k", [0, 3, 10])
def test_what_is_not_a_number_is_rejected(bad: float, size: int, k: int) -> None:
    vector = np.ones(size, dtype=np.float32)
    vector[7] = bad
    with pytest.raises(InputError, match="entry 7 is"):
        find_largest(vector, k)


def test_huge_numbers_whose_sum_overflows_are_fine() -> None:
    check(np.full(50, 3e38, dtype=np.float32), 20)


def test_k_out_of_range() -> None:
    with pytest.raises(InputError, match="k: must lie in 0 … 5, got 6"):
        find_largest(np.ones(5, dtype=np.float32), 6)


def test_kept_energy_by_hand() -> None:
    """Squares 16, 9, 0, 0: half of the entries carry all, a quarter 16/25."""
    vector = np.asarray([0, -4, 3, 0], dtype=np.float32)
    assert measure_kept_energy(vector, (0.0, 0.25, 0.5, 1.0)) == (0.0, 16 / 25, 1.0, 1.0)
    assert measure_kept_energy(np.zeros(4, dtype=np.float32), (0.5,)) == (1.0,)


def test_kept_energy_of_a_large_vector_is_close() -> None:
    vector = np.random.default_rng(0).standard_normal(400_000).astype(np.float32)
    kept = torch.from_numpy(find_largest(vector, 40_000)[1]).square().sum() / np.square(vector).sum()
    assert measure_kept_energy(vector, (0.1,))[0] == pytest.approx(float(kept), rel=0.02)
