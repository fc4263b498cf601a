"""JSON that could not be written out again, or would take all of the memory there is."""

import json
import math

import pytest

from cfel.errors import InputError
from cfel.validation import MOST_CHARACTERS, parse_json


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\uDfff": 1}', '["\\ude00\\ud83d"]'])
def test_half_of_a_surrogate_pair_is_rejected(text: str) -> None:
    """Python reads it, but no file or terminal takes it."""
    with pytest.raises(InputError, match="surrogates not allowed"):
        parse_json(text)


@pytest.mark.parametrize("value", ["\N{GRINNING FACE}", "\\ud800", "𝔘 ü"])
def test_whole_characters_are_read(value: str) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" + " " * MOST_CHARACTERS + "]", "at most 67108864"),
        ("[" * 100_000, "recursion"),
        ("[NaN]", "NaN is not a value"),
        ("-Infinity", "-Infinity is not a value"),
    ],
    ids=["long", "nested", "nan", "infinity"],
)
def test_documents_that_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_json(text)


def test_infinity_is_read_where_it_is_allowed() -> None:
    assert parse_json("[Infinity]", finite=False) == [math.inf]
