"""Fleets that are planned by asking edge servers: the simulator's bits, and messages that do not grow."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfel.experiment import Experiment
from cfel.runlog import RoundRecord
from cfel.world import World
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation
from tests.simulation.drive import outcomes, timeless

TWO_ROUNDS = {"rounds": {"global": 2}}
EXPERIMENTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "HCEF": (),
    "HCEF+": (
        TWO_ROUNDS,
        {
            "scheme": {"name": "hcef_plus", "steps": "small_batches"},
            "budget": {"share_of_cef": 0.6},
            "fleet": {"devices": 12},
        },
    ),
}


def as_large(experiment: Experiment) -> World:
    """The world of an experiment as if it had a large fleet."""
    return experiment.build_world().with_settings(lambda setting: replace(setting, is_large=True))


@pytest.mark.parametrize("changes", [pytest.param(each, id=name) for name, each in EXPERIMENTS.items()])
def test_equals_the_simulation(tmp_path: Path, changes: tuple[Mapping[str, Any], ...]) -> None:
    experiment = deployed(*changes)
    world = as_large(experiment)
    assert world.setting.by_clusters
    expected = outcomes(experiment, world)

    async def play() -> list[RoundRecord]:
        async with Federation(experiment, tmp_path, world=world) as federation:
            federation.start()
            await federation.finished()
            return federation.records()

    assert timeless(asyncio.run(play())) == timeless([each.record for each in expected])
