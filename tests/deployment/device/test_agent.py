"""A device that missed the end of the experiment stops asking."""

import asyncio
import time
from pathlib import Path

import pytest

from cfel.deployment.security.identity import Identity
from cfel.errors import SilentEdgeServerError
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation

DEVICE = Identity("device", 5)


def test_a_device_ends_when_its_edge_server_has_been_silent_for_long(tmp_path: Path) -> None:
    """Nobody is there: all edge servers have ended, and none is left to say so."""

    async def play() -> float:
        async with Federation(deployed(give_up_seconds=0.5), tmp_path) as federation:
            began = time.monotonic()
            federation.start(DEVICE)
            with pytest.raises(SilentEdgeServerError, match=r"edge-2 has not answered for \d+ s: the exp"):
                await federation.finished()
            return time.monotonic() - began

    assert asyncio.run(play()) > 0.5


def test_a_device_that_shall_never_give_up_keeps_asking(tmp_path: Path) -> None:
    async def play() -> None:
        async with Federation(deployed(give_up_seconds=0.0), tmp_path) as federation:
            federation.start(DEVICE)
            with pytest.raises(AssertionError, match="device-5"):
                await federation.finished(1.0)

    asyncio.run(play())
