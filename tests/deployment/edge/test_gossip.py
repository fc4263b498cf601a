"""A gossip step: which mixing matrices an edge server mixes with."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.coordinator.control_state import initial_coordinator_state
from cfel.deployment.protocol.coordinator_requests import MixAnswer, MixCommand, MixingRows
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import led_edge_server

EDGE, OTHER = Identity("edge", 0), Identity("edge", 1)
ALONE: MixingRows = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
LINE = {"topology": {"kind": "line"}}


def mix(tmp_path: Path, rows: MixingRows, sections: Mapping[str, Any]) -> MixAnswer:
    async def play() -> MixAnswer:
        async with led_edge_server(EDGE, OTHER, deployed(sections), tmp_path) as (federation, calls):
            state = initial_coordinator_state(federation.world)
            return await calls.call(EDGE, MixCommand(1, (0, 0, 0), rows, False, state), 5)

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("rows", "sections", "reason"),
    [
        (((-9.0, 10.0, 0.0), *ALONE[1:]), {}, r"rows\[0\]\[0\] = -9"),
        (((1.5, 0.0, 0.0), *ALONE[1:]), {}, r"rows\[0\]\[0\] = 1\.5"),
        (((0.5, 0.0, 0.0), *ALONE[1:]), {}, "row 0 sums to 0.5, must be 1"),
        # Each row is an average, but all move towards the model of edge server 2.
        (((0.5, 0.0, 0.5), (0.0, 0.5, 0.5), (0.0, 0.0, 1.0)), {}, "must be π there"),
        (((0.5, 0.0, 0.5), (0.0, 1.0, 0.0), (0.5, 0.0, 0.5)), LINE, "the backhaul has no such link"),
        (ALONE[:2], {}, "must be 3 rows of 3 weights"),
        (((1.0, 0.0), (0.0, 1.0)), {}, "must be 3 rows of 3 weights"),
    ],
)
def test_matrices_that_are_rejected(
    tmp_path: Path, rows: MixingRows, sections: Mapping[str, Any], reason: str
) -> None:
    """A coordinator that lies cannot blow up a model, nor pull all models towards its own."""
    with pytest.raises(RejectedError, match=reason):
        mix(tmp_path, rows, sections)


def test_a_step_that_the_others_miss(tmp_path: Path) -> None:
    """It keeps its model, the mean of all models stays where it is, and nothing has to be fetched."""
    assert mix(tmp_path, ALONE, {"rounds": {"edge": 1}}).rows == ALONE
