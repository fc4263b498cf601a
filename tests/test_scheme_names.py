"""Names of schemes with variants: read, written, and rejected when there is no such variant."""

import pytest

from cfel.errors import InputError
from cfel.plugins import name_variants, parse_variants


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("cef", {"name": "cef"}),
        ("cef+slow_clocks", {"name": "cef", "slow_clocks": True}),
        ("hcef+whole_steps+edge_gossip", {"name": "hcef", "steps": "whole", "gossip": "edge_round"}),
        ("cef+deadline_300", {"name": "cef", "deadline_seconds": 300.0}),
        ("module:function+edge_gossip", {"name": "module:function", "gossip": "edge_round"}),
    ],
)
def test_names_stand_for_keys_and_back(text: str, fields: dict[str, object]) -> None:
    assert parse_variants(text) == fields
    assert name_variants(fields) == text


def test_defaults_have_no_name() -> None:
    table = {"name": "hcef", "steps": "local", "gossip": "scheme", "slow_clocks": False}
    assert name_variants(table) == "hcef"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hcef+slow_clock", r"hcef\+slow_clock.*unknown 'slow_clock'"),
        ("hcef+", r"HCEF\+ is written hcef_plus$"),
        ("cef+deadline_soon", "'deadline_soon' must end with seconds, as deadline_300"),
        ("hcef+whole_steps+small_batches", "two of its variants contradict"),
    ],
    ids=["unknown", "HCEF+ as texts write it", "deadline without seconds", "contradiction"],
)
def test_variants_that_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_variants(text)
