"""An edge server as a whole: how it ends."""

import asyncio
from pathlib import Path

from cfel.deployment.security.identity import Identity
from cfel.errors import UnreachableError
from cfel.learning.torch_state import prepare_process, prepare_thread
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, Network, until, virtual_hosts
from tests.deployment.virtual_time import run_virtually
from tests.support.memory_disk import MemoryDisk


def test_one_that_is_not_released_waits_for_those_that_may_not_know_of_the_end() -> None:
    """One is away when the run ends, and the coordinator dies before it says who has logged that.

    The third one reports the end for `linger_seconds` after 5 s for devices and 2 · `gossip_seconds` for the
    release. The one that was away, and
    is back after 10 s of that, hears of it.
    """
    waits = {"gossip_seconds": 4.0, "gone_seconds": 3.0, "linger_seconds": 30.0, "time_scale": 0.02}
    experiment = deployed({"rounds": {"global": 1, "edge": 1}}, **waits, election_seconds=1.5)

    async def play() -> int:
        network, hosts = Network(), virtual_hosts(MemoryDisk(), 0)
        async with Federation(experiment, Path("/nowhere"), network, hosts) as federation:
            network.on_call = lose_release
            federation.start()
            await until("all are there", lambda: len(federation.edges) == 3)
            nodes = federation.edges
            await until("a round is under way", lambda: nodes[1].server.newest_state is not None)
            leader = federation.coordinator()
            assert leader is not None
            away, third = (i for i in range(3) if i != leader)
            await federation.kill(Identity("edge", away))
            await until("the end", lambda: nodes[third].server.finished.is_set())
            await federation.kill(Identity("edge", leader))
            await asyncio.sleep(5.0 + 2 * 4.0 + 10.0)
            if federation.tasks[Identity("edge", third)].done():
                network.members.pop(Identity("edge", third))
            federation.start(Identity("edge", away))
            await federation.finished(60.0)
            return nodes[away].server.log.last_round

    prepare_process()
    prepare_thread()
    assert run_virtually(play()) == 1


def lose_release(_caller: Identity, to: Identity, method: str) -> None:
    if method == "release":
        raise UnreachableError(f"{to}, {method}: nobody answers")
