"""What does not depend on the machine is what it was: see `make` for how to change it on purpose."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.golden.collect import COLLECTORS
from tests.golden.make import read_values

EXACT = ("draws", "packed")
"""Whole numbers, bytes and draws only."""

# Last bits of exp, log and pow differ between processors. A search for an optimum makes more of them: 2e-7
# was seen. `compare_commits` compares such plans bit for bit on one machine.
RELATIVE = 1e-9
SEARCHED = {"plans": 2e-6, "observed": 2e-6, "problems": 2e-6}
# Of what is zero but for rounding, as a gap is.
ABSOLUTE = 1e-9


@pytest.mark.parametrize("name", COLLECTORS)
def test_values_are_as_stored(name: str) -> None:
    found, stored = COLLECTORS[name](), read_values(name)
    assert list(found) == list(stored)
    assert list(list_differences(stored, found, tolerance_of(name))) == []


def test_every_file_of_values_is_compared() -> None:
    for name in COLLECTORS:
        assert len(read_values(name)) > 3


@pytest.mark.parametrize(
    ("stored", "found", "count"),
    [
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0 + 1e-12]}, 0),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.001]}, 1),
        ({"a": [1.0]}, {"a": [1.0, 2.0]}, 1),
        ({"a": 1}, {"b": 1}, 1),
        ({"a": 1}, {"a": 2}, 1),
        ({"a": None}, {"a": 0.0}, 1),
        ({"a": math.nan}, {"a": math.nan}, 0),
        ({"a": math.inf}, {"a": 1e300}, 1),
        ({"a": True}, {"a": 1}, 1),
    ],
)
def test_differences_are_found(stored: Any, found: Any, count: int) -> None:
    assert len(list(list_differences(stored, found, RELATIVE))) == count


def tolerance_of(name: str) -> float:
    """Of a file's floats, relative; 0 where they must be equal."""
    return 0.0 if name in EXACT else SEARCHED.get(name, RELATIVE)


def list_differences(stored: Any, found: Any, tolerance: float, place: str = "") -> Iterator[str]:
    """Lines that say what differs where."""
    if isinstance(stored, dict) and isinstance(found, dict) and stored.keys() == found.keys():
        for key, each in stored.items():
            yield from list_differences(each, found[key], tolerance, f"{place}/{key}")
    elif isinstance(stored, list) and isinstance(found, list | tuple) and len(stored) == len(found):
        for index, (one, two) in enumerate(zip(stored, found, strict=True)):
            yield from list_differences(one, two, tolerance, f"{place}[{index}]")
    elif not _is_same(stored, found, tolerance):
        yield f"{place}: stored {stored!r}, found {found!r}"


def _is_same(stored: Any, found: Any, tolerance: float) -> bool:
    if isinstance(stored, float) and isinstance(found, float):
        if math.isnan(stored) or math.isnan(found):
            return math.isnan(stored) and math.isnan(found)
        if tolerance:
            return math.isclose(stored, found, rel_tol=tolerance, abs_tol=ABSOLUTE)
    return type(stored) is type(found) and bool(stored == found)
