"""Checks at the door: the message names field, index, value and what is allowed."""

import numpy as np
import pytest

from cfel import validation
from cfel.errors import InputError


def test_floats_are_float64_and_cannot_be_written() -> None:
    array = validation.check_floats("mu", [1, 2], above=0)
    assert array.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 3


def test_first_offending_entry_is_named() -> None:
    with pytest.raises(InputError, match=r"mu\[2\] = -1\.0: must be a finite number > 0"):
        validation.check_floats("mu", [1, 2, -1, -5], above=0)


def test_nan_is_never_allowed() -> None:
    with pytest.raises(InputError, match=r"cap\[1\] = nan: must be a number"):
        validation.check_floats("cap", [np.inf, np.nan], finite=False)


def test_text_in_an_array_is_named() -> None:
    with pytest.raises(InputError, match=r"nu\[1\] = 'fast': must be a number"):
        validation.check_floats("nu", ["1.0", "fast"])


def test_length_and_shape_are_checked() -> None:
    with pytest.raises(InputError, match="nu: must have 3 entries, got 2"):
        validation.check_floats("nu", [1, 2], length=3)
    with pytest.raises(InputError, match=r"nu: must be one row of numbers, got shape \(1, 1\)"):
        validation.check_floats("nu", [[1]])


@pytest.mark.parametrize("value", [True, "3", None, [1]])
def test_a_number_is_a_number(value: object) -> None:
    with pytest.raises(InputError, match=r"jitter = .*: must be a finite number ≥ 0 and ≤ 1"):
        validation.check_number("jitter", value, least=0, most=1)


@pytest.mark.parametrize("value", [0, 2.0, True, "2"])
def test_a_whole_number_is_whole(value: object) -> None:
    with pytest.raises(InputError, match=r"clusters = .*: must be a whole number ≥ 1 and ≤ 8"):
        validation.check_whole("clusters", value, least=1, most=8)


def test_interval_must_be_two_ordered_numbers() -> None:
    assert validation.check_interval("watts", [1, 2], above=0) == (1.0, 2.0)
    with pytest.raises(InputError, match=r"watts = \[2\.0, 1\.0\]: the lowest must not exceed"):
        validation.check_interval("watts", [2, 1], above=0)
    with pytest.raises(InputError, match="watts = 3: must be two numbers"):
        validation.check_interval("watts", 3, above=0)


def test_booleans_are_not_numbers() -> None:
    with pytest.raises(InputError, match="available: must be truth values, got int64"):
        validation.check_booleans("available", np.array([1, 0]), length=2)
    with pytest.raises(InputError, match="available: must have 3 entries"):
        validation.check_booleans("available", [True, False], length=3)


def test_large_limits_are_written_out() -> None:
    assert (
        validation.describe_range(least=1, most=10**6, integral=True) == "a whole number ≥ 1 and ≤ 1,000,000"
    )
    assert validation.describe_range(above=0.25, most=1.0) == "a finite number > 0.25 and ≤ 1"
