"""Devices that fetch differences: what is on the wire, and restarts that change no bit."""

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from cfel.deployment.payloads import count_difference_bytes, model_size
from cfel.deployment.protocol.messages import Message
from cfel.deployment.security.identity import Identity
from cfel.world import World
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Network, play_to_the_end
from tests.deployment.test_changes import Changing, experiment, play
from tests.simulation.drive import records, timeless

DOWNLOADS = {"compression": {"download_theta": 0.05, "download_bits": 8}}


class Models(Network):
    """Notes how many bytes each device fetched at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[int, list[int]] = defaultdict(list)

    async def deliver(self, caller: Identity, to: Identity, method: str, message: Message) -> Message:
        """See `Network`."""
        answer = await super().deliver(caller, to, method, message)
        if method == "model":
            self.bytes[caller.number].append(len(answer.body))
        return answer


def sizes(world: World) -> tuple[int, int]:
    """Bytes of a whole model, and of a difference."""
    assert world.downloads is not None
    return model_size(world.start), count_difference_bytes(world.downloads, world.start)


def test_a_device_fetches_the_first_model_and_the_last_one_whole(tmp_path: Path) -> None:
    """Three rounds of two edge rounds: one whole model, five differences, and the last model to publish."""
    asked, network = deployed(DOWNLOADS), Models()
    whole, step = sizes(asked.build_world())
    assert step < whole / 20
    play_to_the_end(asked, tmp_path, network)
    assert network.bytes == {n: [whole, *[step] * 5, whole] for n in range(6)}


def test_one_that_was_not_drawn_fetches_the_differences_since_then(tmp_path: Path) -> None:
    """The log says what was fetched, but for a header of 13 bytes and the bits that fill up a byte."""
    drawn = {"fleet": {"participation": 3}, "rounds": {"global": 4}, "scheme": {"name": "cef"}}
    asked, network = deployed(DOWNLOADS, drawn), Models()
    whole, step = sizes(asked.build_world())
    lines = play_to_the_end(asked, tmp_path, network)
    fetched = [each for every in network.bytes.values() for each in every]
    assert set(fetched) == {whole, step}
    assert fetched.count(whole) == 6 + 6  # of each device the first, and the last one to publish
    # Of two devices in each of three clusters one is drawn, so some lack several differences.
    assert fetched.count(step) > 3 * 8 - 6
    counted, last = sum(each.download_bytes or 0 for each in lines), 6 * whole
    assert 0 <= sum(fetched) - last - counted <= 14 * fetched.count(step)


@pytest.mark.parametrize("seconds", [1.0, 2.5, 4.0])
@pytest.mark.parametrize("killed", [Identity("device", 3), Identity("edge", 1)])
def test_a_restart_changes_no_bit(killed: Identity, seconds: float) -> None:
    """A device has forgotten its model and fetches one whole; an edge server still has what devices have."""

    async def operate(federation: Changing) -> None:
        await asyncio.sleep(seconds)
        await federation.kill(killed)
        federation.start(killed)

    asked, network = experiment("differences to devices"), Models()
    world = asked.build_world()
    _, lines = play(operate, asked, world, network)
    assert not any(each.losses for each in lines)
    assert timeless(lines) == timeless(records(asked))
    wholes = {n: fetched.count(sizes(world)[0]) for n, fetched in network.bytes.items()}
    assert wholes == {n: 3 if Identity("device", n) == killed else 2 for n in range(6)}
