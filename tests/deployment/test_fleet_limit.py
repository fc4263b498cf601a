"""A fleet that the coordinator's messages cannot carry is refused before anything starts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cfel.deployment.fleet_limit import check_fleet_size, find_most_devices
from cfel.deployment.protocol.edge_requests import PeerModelAnswer
from cfel.deployment.protocol.messages import MOST_HEADER_BYTES, NO_BODY, encode
from cfel.errors import InputError
from cfel.world import World
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation


@pytest.mark.parametrize(
    ("scheme", "conditions", "edge_rounds", "least"),
    [
        ("hcef", "measured", 5, 2_000),
        ("hcef", "measured", 1, 2_000),
        ("hcef", "model", 5, 8_000),
        # Devices also report how much energy their largest entries carry, twelve numbers each.
        ("hcef_plus", "model", 5, 6_000),
    ],
)
def test_the_figure_is_in_the_message(scheme: str, conditions: str, edge_rounds: int, least: int) -> None:
    """Between what was measured on a real fleet (2,986 with q = 5, without accounts) and far too little."""
    rounds = {"rounds": {"global": 1, "edge": edge_rounds}}
    experiment = deployed(rounds, {"scheme": {"name": scheme}}, conditions=conditions)
    world = experiment.build_world()
    most = find_most_devices(world, experiment.deployment)
    assert least < most < 10_000
    check_fleet_size(world, experiment.deployment)
    fleet = replace(world.setting.fleet, cluster=np.zeros(most + 1, dtype=np.int64))
    large = replace(world, setting=replace(world.setting, fleet=fleet))
    with pytest.raises(InputError, match=rf"fleet.devices = {most + 1:,}: .* at most {most:,} devices"):
        check_fleet_size(large, experiment.deployment)


def test_real_messages_are_not_larger_than_computed(tmp_path: Path) -> None:
    """The state of a real federation, per device, against the share of a message that a device may take."""
    experiment = deployed(
        {"rounds": {"global": 1, "edge": 5}, "local": {"estimator": "reuse"}}, conditions="measured"
    )

    async def play() -> int:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await federation.finished()
            return max(len(encode(node.server.state.coordinator_state)) for node in federation.edges.values())

    devices = experiment.fleet.devices
    most = find_most_devices(experiment.build_world(), experiment.deployment)
    # What does not grow with the fleet, about a kilobyte of ledgers and digests, is left out here.
    assert (asyncio.run(play()) - 2_000) / devices < MOST_HEADER_BYTES / most


def test_a_large_fleet_is_limited_by_what_edge_servers_say_with_a_model() -> None:
    """3 MiB / 11 bytes: the number of a device in five, a round in six."""
    experiment = deployed({"scheme": {"name": "hcef"}})
    built = experiment.build_world()

    def grow(devices: int) -> World:
        fleet = replace(built.setting.fleet, cluster=np.zeros(devices, dtype=np.int64))
        return replace(built, setting=replace(built.setting, fleet=fleet, is_large=True))

    most = MOST_HEADER_BYTES // 11
    uses = {2**16 + n: (2**16 - 1, 255) for n in range(1000)}
    assert len(encode(PeerModelAnswer((0, 0, 0), "0" * 64, NO_BODY, uses))) < 11 * 1000 + 200
    check_fleet_size(grow(most), experiment.deployment)
    with pytest.raises(InputError, match=rf"fleet.devices = {most + 1:,}: .* at most {most:,} devices"):
        check_fleet_size(grow(most + 1), experiment.deployment)
