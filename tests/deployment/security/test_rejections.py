"""A member that is rejected again and again, each time with another long reason, fills no memory."""

from cfel.deployment.security.limits import (
    MOST_CHARACTERS,
    MOST_REASONS,
    MOST_REASONS_OF_ONE,
    OTHERS,
    count_rejection,
    shorten,
)


def test_reasons_stay_short() -> None:
    assert shorten("too large") == "too large"
    assert len(shorten("x" * 3_000_000)) == MOST_CHARACTERS


def test_reasons_stay_few_and_none_is_lost() -> None:
    counts: dict[str, int] = {}
    for number in range(1000):
        count_rejection(counts, f"steps = {number}: at most 5 were asked", set())
    count_rejection(counts, "steps = 3: at most 5 were asked", set())
    assert len(counts) == MOST_REASONS + 1
    assert sum(counts.values()) == 1001
    assert counts["steps = 3: at most 5 were asked"] == 2
    assert counts[OTHERS] == 1000 - MOST_REASONS


def test_one_caller_does_not_hide_the_reasons_of_others() -> None:
    """Reasons quote rounds and sizes: one device filled the table within 20 rounds."""
    counts: dict[str, int] = {}
    added: set[str] = set()
    for number in range(100):
        count_rejection(counts, f"update of round {number}", added)
    assert count_rejection(counts, "too large", set()) == 1
    assert len(counts) == MOST_REASONS_OF_ONE + 2
    assert counts[OTHERS] == 100 - MOST_REASONS_OF_ONE
