"""The columns of a table as its heading names them: all that are needed, none misspelt.

A misspelt optional column would otherwise be ignored, and the file would mean something else.
"""

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from cfel.errors import FleetFileError

MISSPELT = 0.75
"""Similarity of names, from 0 to 1, from which on one counts as the other misspelt."""

_SEPARATORS = ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"))


def check_headings(
    place: str, headings: Sequence[str], required: Collection[str], known: Collection[str]
) -> None:
    """Checks the names of all columns.

    Args:
        place: file and line, for messages.
        headings: as they are in the file.
        required: columns that must be there.
        known: these and optional ones.

    Raises:
        FleetFileError: a column is missing, occurs twice or is misspelt, or the heading is not separated by
            commas.
    """
    names = [heading.strip() for heading in headings]
    if not any(names):
        file = place.partition(", line")[0]
        raise FleetFileError(f"{file}: is empty; must have a heading with the columns {', '.join(required)}")
    _reject_separators(place, names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FleetFileError(f"{place}: column {twice!r} occurs twice")
    for column in required:
        if column not in names:
            free = [name for name in names if name not in required]
            near = [n for n in free if n.lower() == column.lower()] or get_close_matches(column, free, n=1)
            hint = f"; is {near[0]!r} meant?" if near else ""
            found = ", ".join(repr(name) for name in names)
            raise FleetFileError(f"{place}: column {column!r} is missing{hint} (found: {found})")
    _reject_misspelt(place, names, known)


def _reject_separators(place: str, names: Sequence[str]) -> None:
    """Raises if a heading of one field has separators other than commas."""
    for sign, word in _SEPARATORS:
        if len(names) == 1 and sign in names[0]:
            raise FleetFileError(
                f"{place}: the columns seem to be separated by {word} ({names[0]!r}); must be separated by "
                "commas, with points as decimal marks"
            )


def _reject_misspelt(place: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raises for a column that would be ignored although it is named almost like an absent one."""
    absent = sorted(set(known).difference(names))
    for name in names:
        if name in known:
            continue
        near = [each for each in absent if _simplify(each) == _simplify(name)]
        near = near or get_close_matches(name.lower(), absent, n=1, cutoff=MISSPELT)
        if near:
            raise FleetFileError(
                f"{place}: column {name!r} is unknown; is {near[0]!r} meant? Rename or remove it; columns "
                "with other names are ignored"
            )


def _simplify(name: str) -> str:
    """A name without case, blanks, hyphens, underscores, a unit and a plural's s."""
    return re.sub(r"[\s_-]|[\s_-]*(joules|seconds|watts|s)$", "", name.strip().lower())
