"""Checks at the door: the message names field, index, value and what is allowed.

JSON and TOML may be anybody's: what could not be written out again, or would take all of the time or memory
there is, is rejected.
"""

import json
import math
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from cfel import validation
from cfel.errors import InputError
from cfel.validation import Range, check_fields


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


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\uDfff": 1}', '["\\ude00\\ud83d"]'])
def test_half_of_a_surrogate_pair_is_rejected(text: str) -> None:
    """Python reads it, but no file or terminal takes it."""
    with pytest.raises(InputError, match="surrogates not allowed"):
        validation.parse_json(text)


@pytest.mark.parametrize("value", ["\N{GRINNING FACE}", "\\ud800", "𝔘 ü"])
def test_whole_characters_are_read(value: str) -> None:
    assert validation.parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" + " " * validation.MOST_CHARACTERS + "]", "at most 67108864"),
        ("[" * 100_000, "recursion"),
        ("[NaN]", "NaN is not a value"),
        ("-Infinity", "-Infinity is not a value"),
    ],
    ids=["long", "nested", "nan", "infinity"],
)
def test_json_that_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        validation.parse_json(text)


def test_infinity_is_read_where_it_is_allowed() -> None:
    assert validation.parse_json("[Infinity]", finite=False) == [math.inf]


DOTTED = ".".join(["a"] * 100_000)
QUOTED = ".".join(['"\\""'] * 100_000)


def test_what_experiments_look_like_is_read() -> None:
    """Numbers and texts have dots, too."""
    numbers = ", ".join(["0.5"] * 100)
    text = f'rounds.global = 3\n[a . "b.c".\'d\']\nvalues = [{numbers}]\nhost = "1.2.3.4"\n# a.b.c\n'
    document = validation.parse_toml(text)
    assert document["rounds"]["global"] == 3
    assert document["a"]["b.c"]["d"]["values"] == [0.5] * 100


@pytest.mark.parametrize(
    "text", [f"{DOTTED} = 1", f"[{DOTTED}]", f"[[ {DOTTED} ]]", f"x = {{ {DOTTED} = 1 }}", f"{QUOTED} = 1"]
)
def test_keys_without_end_are_rejected_at_once(text: str) -> None:
    """Python's reader takes minutes and 9 GB for the first."""
    with pytest.raises(InputError, match="a key of more than 32 parts"):
        validation.parse_toml(text)


@pytest.mark.parametrize("character", [" ", "a", '"', "'", "\t", "\\", ".", '"a', "a ", "a. "])
def test_the_search_for_long_keys_takes_little_time(character: str) -> None:
    """A megabyte each; quadratic time would take hours."""
    began = time.monotonic()
    with pytest.raises(InputError):
        validation.parse_toml("[" + character * (1_000_000 // len(character)))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = " + "[" * 100_000, "recursion"),
        ("a", "Expected '='"),
        ("#" * (validation.MOST_TOML_CHARACTERS + 1), "at most 16777216"),
    ],
    ids=["nested", "no value", "long"],
)
def test_toml_that_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        validation.parse_toml(text)


@dataclass(frozen=True)
class Section:
    """One field of each kind."""

    rate: Annotated[float, Range(above=0)] = 1.0
    count: Annotated[int, Range(least=1, most=9)] | None = None
    name: str = "a"
    on: bool = False
    kind: Literal["b", "c"] = "b"
    shares: tuple[Annotated[float, Range(most=1)], ...] = ()
    other: float | str = 0.0
    renamed: Annotated[int, Range(least=0)] = field(default=0, metadata={"key": "short"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": 0}, r"^s\.rate = 0: must be a finite number > 0$"),
        ({"count": 10}, r"^s\.count = 10: must be a whole number ≥ 1 and ≤ 9$"),
        ({"name": ""}, r"^s\.name = ''"),
        ({"on": 1}, r"^s\.on = 1: must be true or false$"),
        ({"kind": "d"}, r"^s\.kind: unknown 'd'"),
        ({"shares": (0.5, 2)}, r"^s\.shares\[1\] = 2: "),
        ({"shares": 0.5}, r"^s\.shares = 0\.5: must be a list$"),
        ({"renamed": -1}, r"^s\.short = -1: "),
    ],
)
def test_fields_are_checked_by_their_types(wrong: dict[str, Any], message: str) -> None:
    check_fields("s", Section(count=3, shares=(0.5,), other="anything"))
    with pytest.raises(InputError, match=message):
        check_fields("s", Section(**wrong))
