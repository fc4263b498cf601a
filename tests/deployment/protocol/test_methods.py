"""The table in docs/protocol.md, and what both ends know of each method."""

import inspect
import re
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import get_args

import pytest

from cfel.deployment.protocol.calls import AnyRequest, Request, answer_type, serve
from cfel.deployment.protocol.edge_requests import (
    METHODS,
    Command,
    MeanMetricRequest,
    NewestRequest,
    ReleaseRequest,
)
from cfel.deployment.security.identity import Identity

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
OF_THE_COORDINATOR = (NewestRequest, MeanMetricRequest, ReleaseRequest)


def callers(request: type[AnyRequest]) -> str:
    """Who calls, as the table says it; a coordinator is an edge server with a role."""
    if issubclass(request, (Command, *OF_THE_COORDINATOR)):
        return "coordinator"
    return ", ".join(request.callers)


def answers(request: type[AnyRequest]) -> str:
    answer = answer_type(request)
    kinds = get_args(answer) if isinstance(answer, UnionType) else (answer,)
    return ", ".join(f"`{kind.__name__}`" for kind in kinds)


def test_the_table_of_methods_is_that_of_the_module() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| `(\w+)` \| ([\w`, ]+) \|", PAGE, re.MULTILINE)
    expected = [(each.method, callers(each), each.__name__, answers(each)) for each in METHODS]
    assert rows == expected


@pytest.mark.parametrize("request_type", METHODS, ids=lambda each: each.method)
def test_every_field_is_explained(request_type: type[AnyRequest]) -> None:
    """A reader finds each field in the docstring, or with a comment at or above it."""
    lines = ["", *inspect.getsource(request_type).splitlines()]
    own = [name for name in request_type.__struct_fields__ if name not in ("experiment", "term", "position")]
    explained = [
        name
        for above, line in pairwise(lines)
        for name in own
        if line.startswith(f"    {name}:") and ("#" in above + line or name in (request_type.__doc__ or ""))
    ]
    assert explained == own


def test_every_request_is_listed_once() -> None:
    def leaves(kind: type[AnyRequest]) -> set[type[AnyRequest]]:
        below = kind.__subclasses__()
        return {leaf for each in below for leaf in leaves(each)} if below else {kind}

    assert leaves(Request) == set(METHODS)
    assert len({each.method for each in METHODS}) == len(METHODS)


@pytest.mark.parametrize("request_type", METHODS)
def test_only_edge_servers_may_send_large_headers(request_type: type[AnyRequest]) -> None:
    """Decoding a header takes the event loop's time: megabytes a second of them stopped an edge server."""

    async def handle(caller: Identity, request: AnyRequest) -> None:
        del caller, request

    endpoint = serve(request_type, handle)
    assert (endpoint.most_header_bytes > 64 * 1024) == (set(request_type.callers) == {"edge"})
