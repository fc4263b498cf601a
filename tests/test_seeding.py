"""Streams that depend on their key and on nothing else."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.seeding import draw_uniforms, make_generator, make_key


def test_keys_never_change() -> None:
    """Written down once: another value here means that every old run can no longer be repeated."""
    assert make_key(0, "conditions", 3, 1) == 0xACA6441287E9ED54855DFC09B821591B
    assert make_generator(0, "conditions", 3, 1).random() == 0.08565880186906949
    assert draw_uniforms(0, "conditions", (3, 1), 2, 4)[0, 0] == 0.08565880186906949


@given(st.integers(-(2**70), 2**70), st.sampled_from(["a", "conditions"]), st.lists(st.integers(0, 9)))
def test_keys_fit_128_bits_and_repeat(seed: int, purpose: str, index: list[int]) -> None:
    assert 0 <= make_key(seed, purpose, *index) < 2**128
    assert make_key(seed, purpose, *index) == make_key(
        seed, purpose, *np.array(index, dtype=np.int64).tolist()
    )


def test_every_part_of_a_key_matters() -> None:
    parts: list[tuple[int, str, tuple[int, ...]]] = [
        (0, "a", ()),
        (1, "a", ()),
        (-1, "a", ()),
        (0, "b", ()),
        (0, "a", (0,)),
        (0, "a", (1,)),
        (0, "a", (0, 1)),
        (0, "a", (1, 0)),
        (0, "a", (10,)),
        (0, "a", (1, 0, 0)),
    ]
    assert len({make_key(seed, purpose, *index) for seed, purpose, index in parts}) == len(parts)
    draws = {make_generator(seed, purpose, *index).random() for seed, purpose, index in parts}
    assert len(draws) == len(parts)


@pytest.mark.parametrize("devices", [1, 7, 1000])
def test_a_larger_fleet_has_the_same_first_rows(devices: int) -> None:
    small, large = (draw_uniforms(5, "channel", (2, 3), n, 4) for n in (devices, 5000))
    assert small.shape == (devices, 4)
    assert (small == large[:devices]).all()
    assert large.min() >= 0
    assert large.max() < 1
    assert abs(large.mean() - 0.5) < 0.02


def test_nobody_else_is_disturbed() -> None:
    """Drawing changes no global generator, and global generators change no draw."""
    legacy = np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    plain = random.getstate()
    first, other = make_generator(1, "x"), make_generator(1, "y")
    other.random(100)
    random.seed(0)
    again = make_generator(1, "x")
    assert (first.random(10) == again.random(10)).all()
    random.setstate(plain)
    assert np.random.get_state()[1].tolist() == legacy  # type: ignore[index] # noqa: NPY002
