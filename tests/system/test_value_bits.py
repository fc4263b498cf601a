"""What an upload with few bits per value takes, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.errors import InputError
from cfel.system.value_bits import ValueBits, place_bits, update_bits


def test_a_tenth_of_the_entries_in_eight_bits() -> None:
    """Of 100,000 entries 10,000: 8 bits each, ten scales and the least magnitude at 32, and the places.

    10 entries to a place: indices keep ⌊log₂ 10⌋ = 3 bits each; a one each, and a zero for every whole step
    of 8 below 99,999, which are 12,499. That is 1.33 bits per entry, where values of 32 bits and a bitmap
    take 4.2.
    """
    expected = 80_000 + 32 * 11 + 10_000 * (3 + 1) + 12_499
    assert update_bits(100_000, 10_000, 8) == expected == 132_851
    assert update_bits(100_000, 10_000, 32) == 320_000 + 100_000


def test_many_places_are_a_bitmap_and_all_of_them_nothing() -> None:
    assert place_bits(1000, 300) == 1000
    assert place_bits(1000, 1000) == 0
    assert update_bits(1000, 1000, 4) == 4000 + 2 * 32


def test_a_full_upload_has_the_most_bits() -> None:
    """1,000 entries of 8 bits, one scale and the least magnitude: 8,064 bits of 32,000."""
    assert ValueBits((4, 8)).full_bits(1000) == 8064
    assert ValueBits((4, 8)).share_of_floats(1000) == 0.252
    assert ValueBits((4, 32)).share_of_floats(1000) == 1.0


@given(st.floats(1e-6, 1.0), st.integers(1, 10**7), st.sampled_from([(4,), (8,), (4, 8, 16), (4, 8, 16, 32)]))
def test_as_many_entries_as_fit(theta: float, size: int, choices: tuple[int, ...]) -> None:
    """One more would not fit; at least one is sent, whatever it takes."""
    bits, most = ValueBits(choices), theta * ValueBits(choices).full_bits(size)
    for each in choices:
        kept = bits.count_entries(theta, size, each)
        assert 1 <= kept <= size
        assert kept == 1 or update_bits(size, kept, each) <= most
        assert kept == size or update_bits(size, kept + 1, each) > most


@pytest.mark.parametrize("choices", [(), (3,), (8, 4), (8, 8), (64,)])
def test_bits_that_cannot_be_chosen(choices: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"compression.bits = .*: must be some of 4, 8, 16, 32, ascending"):
        ValueBits(choices)
