"""TOML that would take all of the time or memory there is."""

import time

import pytest

from cfel.errors import InputError
from cfel.validation import MOST_TOML_CHARACTERS as MOST_CHARACTERS
from cfel.validation import parse_toml

DOTTED = ".".join(["a"] * 100_000)
QUOTED = ".".join(['"\\""'] * 100_000)


def test_what_experiments_look_like_is_read() -> None:
    """Numbers and texts have dots, too."""
    numbers = ", ".join(["0.5"] * 100)
    text = f'rounds.global = 3\n[a . "b.c".\'d\']\nvalues = [{numbers}]\nhost = "1.2.3.4"\n# a.b.c\n'
    document = parse_toml(text)
    assert document["rounds"]["global"] == 3
    assert document["a"]["b.c"]["d"]["values"] == [0.5] * 100


@pytest.mark.parametrize(
    "text", [f"{DOTTED} = 1", f"[{DOTTED}]", f"[[ {DOTTED} ]]", f"x = {{ {DOTTED} = 1 }}", f"{QUOTED} = 1"]
)
def test_keys_without_end_are_rejected_at_once(text: str) -> None:
    """Python's reader takes minutes and 9 GB for the first."""
    with pytest.raises(InputError, match="a key of more than 32 parts"):
        parse_toml(text)


@pytest.mark.parametrize("character", [" ", "a", '"', "'", "\t", "\\", ".", '"a', "a ", "a. "])
def test_the_search_for_them_takes_little_time(character: str) -> None:
    """A megabyte each; quadratic time would take hours."""
    began = time.monotonic()
    with pytest.raises(InputError):
        parse_toml("[" + character * (1_000_000 // len(character)))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = " + "[" * 100_000, "recursion"),
        ("a", "Expected '='"),
        ("#" * (MOST_CHARACTERS + 1), "at most 16777216"),
    ],
    ids=["nested", "no value", "long"],
)
def test_other_documents_that_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_toml(text)
