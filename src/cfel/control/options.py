"""`[scheme.options]` of one scheme, from a table of the experiment file to the scheme's own dataclass."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from cfel.errors import InputError, unknown_name

Options = TypeVar("Options")


def read_options(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Makes a scheme's options; the dataclass checks their values.

    Raises:
        InputError: there is no such option; the message names the nearest one.
    """
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise InputError(unknown_name("scheme.options", name, known))
    return kind(**given)
