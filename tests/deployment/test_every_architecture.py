"""Twelve kinds of models train in a deployment for three rounds, to the bits of the simulation."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.architectures import THREE_ROUNDS, TWELVE
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation
from tests.simulation.drive import records, timeless

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", TWELVE)
def test_equals_the_simulation(tmp_path: Path, name: str) -> None:
    experiment = deployed(THREE_ROUNDS, TWELVE[name])

    async def play() -> list[dict[str, Any]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await federation.finished()
            return timeless(federation.records())

    expected = timeless(records(experiment))
    assert asyncio.run(play()) == expected
    assert len({line["model_sha256"] for line in expected}) == 3
