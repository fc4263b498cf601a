"""Names of schemes with their variants, as lists, folders and tables write them: `hcef+edge_gossip`.

A variant is a key of `[scheme]`; `cfel.control.variants` says what each does.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cfel.errors import InputError, unknown_name

VARIANTS: Mapping[str, tuple[str, str | bool]] = MappingProxyType(
    {
        "whole_steps": ("steps", "whole"),
        "small_batches": ("steps", "small_batches"),
        "edge_gossip": ("gossip", "edge_round"),
        "slow_clocks": ("slow_clocks", True),
    }
)
"""Names of variants, and the key and value of `[scheme]` that each stands for."""


def parse_variants(text: str) -> dict[str, Any]:
    """The fields of `SchemeParameters` that "hcef+edge_gossip" stands for.

    Raises:
        InputError: there is no such variant.
    """
    name, *variants = text.split("+")
    for variant in variants:
        if variant not in VARIANTS:
            hint = "" if variant else "; HCEF+ is written hcef_plus"
            raise InputError(unknown_name(f"scheme {text!r}: variant", variant, VARIANTS) + hint)
    pairs = [VARIANTS[variant] for variant in variants]
    if len({key for key, _ in pairs}) < len(pairs):
        raise InputError(f"scheme {text!r}: two of its variants contradict each other")
    return {"name": name, **dict(pairs)}


def name_variants(scheme: Mapping[str, Any]) -> str:
    """The name of a scheme with its variants, from a `[scheme]` table; the reverse of `parse_variants`."""
    set_here = [variant for variant, (key, value) in VARIANTS.items() if scheme.get(key) == value]
    return "+".join([str(scheme["name"]), *set_here])
