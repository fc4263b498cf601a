"""Reasons of refusals: kept short and few, as whoever is refused has a hand in their words."""

MOST_CHARACTERS = 200
MOST_REASONS = 50
OTHERS = "other reasons"
ALWAYS_LOGGED = 10
LOGGED_EVERY = 100


def shortened(reason: str) -> str:
    """The reason, cut where it stops being one: it may quote what came in, and that may be megabytes."""
    return reason if len(reason) <= MOST_CHARACTERS else reason[: MOST_CHARACTERS - 1] + "…"


def count(counts: dict[str, int], reason: str) -> int:
    """Counts one more refusal; beyond `MOST_REASONS` different ones, new ones are counted together.

    Returns:
        How often this reason has been counted.
    """
    name = shortened(reason)
    if name not in counts and len(counts) >= MOST_REASONS:
        name = OTHERS
    counts[name] = counts.get(name, 0) + 1
    return counts[name]


def is_worth_a_line(times: int) -> bool:
    """Whether a refusal is logged, the n-th for its reason: a flood must not fill the disk."""
    return times <= ALWAYS_LOGGED or times % LOGGED_EVERY == 0
