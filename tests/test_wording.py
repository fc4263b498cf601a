"""Numbers with their nouns."""

import math

import pytest

from cfel.wording import format_amount, plural


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds"), (10_000, "10,000 rounds")]
)
def test_plural(count: int, text: str) -> None:
    """Only one is singular."""
    assert plural(count, "round") == text


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [
        (2198.7, 0, "2,199"),
        (383.1, 0, "383"),
        (56.14, 0, "56.1"),
        (0.0663, 0, "0.0663"),
        (450.0, 1, "450.0"),
        (14.622, 2, "14.62"),
        (0.0, 1, "0.0"),
        (1.234e-7, 0, "1.23e-07"),
        (math.inf, 1, "inf"),
    ],
)
def test_amounts(value: float, places: int, text: str) -> None:
    """Three digits at least, so that nothing small becomes 0."""
    assert format_amount(value, places) == text
