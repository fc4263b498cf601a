"""Counts rejections by reason; keeps reasons short and few, because a rejected caller can influence them."""

from cfel.wording import escape_control

MOST_CHARACTERS = 200
MOST_REASONS = 50
MOST_REASONS_OF_ONE = 10
"""Different reasons that one caller may add; the rest are for others."""
OTHERS = "other reasons"
ALWAYS_LOGGED = 10
LOGGED_EVERY = 100


def shorten(reason: str) -> str:
    """A reason on one line and not too long: it may quote what came in, and that may be anything."""
    reason = escape_control(reason[: 2 * MOST_CHARACTERS])
    return reason if len(reason) <= MOST_CHARACTERS else reason[: MOST_CHARACTERS - 1] + "…"


def count_rejection(counts: dict[str, int], reason: str, added: set[str]) -> int:
    """Counts one more rejection; beyond a limit, new reasons are counted together.

    Args:
        counts: how often each reason was counted.
        reason: why the call was rejected.
        added: the reasons that this caller was the first to be rejected for.

    Returns:
        How often this reason has been counted.
    """
    name = shorten(reason)
    # Reasons may quote the caller, who could otherwise fill the memory, or hide the reasons of others.
    if name not in counts:
        if len(counts) >= MOST_REASONS or len(added) >= MOST_REASONS_OF_ONE:
            name = OTHERS
        else:
            added.add(name)
    counts[name] = counts.get(name, 0) + 1
    return counts[name]


def should_log(times: int) -> bool:
    """Whether to log the n-th rejection for a reason: a flood must not fill the disk."""
    return times <= ALWAYS_LOGGED or times % LOGGED_EVERY == 0
