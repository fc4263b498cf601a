"""Numbers with their nouns."""

import pytest

from cfel.wording import plural


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds"), (10_000, "10,000 rounds")]
)
def test_plural(count: int, text: str) -> None:
    """Only one is singular."""
    assert plural(count, "round") == text
