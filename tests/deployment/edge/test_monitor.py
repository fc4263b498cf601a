"""What an edge server knows of the others: who is alive, that there is no majority, that all is over."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cfel import __version__
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.edge_requests import HelloRequest, ReleaseRequest
from cfel.deployment.security.identity import Identity
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, MemoryClient, Network, until
from tests.simulation.drive import timeless

pytestmark = pytest.mark.long


def edges(*numbers: int) -> list[Identity]:
    return [Identity("edge", number) for number in numbers]


def test_an_edge_server_that_runs_twice_is_noticed(tmp_path: Path) -> None:
    """Another process with the certificate of edge server 1 greets edge server 0, as the real one does."""

    async def play() -> None:
        async with Federation(deployed(join_seconds=600.0), tmp_path) as federation:
            federation.start(*edges(0, 1, 2))
            await until("all are there", lambda: len(federation.edges) == 3)
            node, double = federation.edges[0], MemoryClient(Identity("edge", 1), federation.network)
            while "runs twice: edge-1; stop one" not in node.take_snapshot().problem:
                await RemoteCalls(double).call(Identity("edge", 0), HelloRequest(False, "another"), 60.0)
                await asyncio.sleep(0.05)
            assert [cluster.doubled for cluster in node.take_snapshot().clusters] == [False, True, False]

    asyncio.run(asyncio.wait_for(play(), 120))


def test_status_shows_who_is_lost_and_what_devices_of_others_do(tmp_path: Path) -> None:
    """Edge server 2 is killed before the first round: the others say so, of its devices too."""

    async def play() -> None:
        async with Federation(deployed(join_seconds=600.0, gone_seconds=1.0), tmp_path) as federation:
            federation.start(*edges(0, 1, 2), Identity("device", 0), Identity("device", 4))
            node = federation.edges

            def states(number: int) -> list[str]:
                return [cluster.state for cluster in node[number].take_snapshot().clusters]

            await until("all are there", lambda: len(node) == 3 and states(0) == ["alive"] * 3)
            await until("reported", lambda: node[0].take_snapshot().clusters[2].devices[0].state == "idle")
            await until("lost", lambda: node[0].take_snapshot().clusters[2].devices[1].state == "lost")
            assert node[0].take_snapshot().majority
            await federation.kill(Identity("edge", 2))
            await until("its loss is seen", lambda: states(0) == states(1) == ["alive", "alive", "lost"])
            await until("it is said", lambda: bool(node[0].take_snapshot().problem))
            seen = node[0].take_snapshot()
            assert [device.state for device in seen.clusters[2].devices] == ["absent", "absent"]
            assert seen.problem == (
                "not in touch: edge-2; the others continue without; if it is gone for good, "
                "`cfel fleet remove edge 2`"
            )
            assert seen.majority
            assert seen.unready == ""
            assert [cluster.version for cluster in seen.clusters] == [__version__] * 3
            assert seen.clusters[0].devices[0].version == __version__

    asyncio.run(play())


def test_without_a_majority_all_report_it_and_continue_when_it_is_back(
    tmp_path: Path, simulated: list[dict[str, Any]]
) -> None:
    """Two of three are killed in round 2; the third waits and says why; all end as if nothing had been."""
    experiment = deployed(round_seconds=60.0, gone_seconds=60.0, gossip_seconds=60.0)

    async def play() -> list[dict[str, Any]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await until(
                "a round is done",
                lambda: any(n.server.log.records for n in federation.edges.values()),
            )
            for gone in edges(1, 2):
                await federation.kill(gone)
            alone = federation.edges[0]
            await until("it says so", lambda: "no majority: 1 of 3" in alone.take_snapshot().problem)
            assert "edge-1, edge-2" in alone.take_snapshot().problem
            assert alone.take_snapshot().elections[-1].kind == "no-majority"
            assert alone.take_snapshot().coordinator is None
            assert alone.take_snapshot().majority is False
            assert alone.take_snapshot().unready
            federation.start(*edges(1, 2))
            await until("all is well again", lambda: not alone.take_snapshot().problem)
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == simulated


@pytest.mark.parametrize("missed", ["all", "the end"])
def test_an_edge_server_that_comes_after_the_end_learns_of_it(tmp_path: Path, missed: str) -> None:
    """It was away from round 1 (or 3) on; the others wait for it; it gets log and model, and ends."""
    experiment = deployed(
        {"rounds": {"global": 4, "edge": 1}}, round_seconds=2.0, gossip_seconds=1.5, linger_seconds=50.0
    )

    async def play() -> None:
        async with Federation(experiment, tmp_path, Network()) as federation:
            federation.start()
            node = federation.edges
            rounds = 1 if missed == "all" else 3
            await until("away", lambda: any(len(n.server.log.records) >= rounds for n in node.values()))
            await federation.kill(Identity("edge", 1))
            await until(
                "the end",
                lambda: node[0].server.finished.is_set() and node[2].server.finished.is_set(),
            )
            federation.start(Identity("edge", 1))
            await federation.finished(40.0)
            late = node[1].server
            assert late.state.position == (4, 0, 0)
            assert late.log.last_round == 4
            if missed == "all":
                others = {node[i].server.state.model.sha256() for i in (0, 2)}
                assert late.state.model.sha256() in others

    asyncio.run(play())


def test_one_that_has_finished_and_is_started_again_ends_by_itself(tmp_path: Path) -> None:
    async def play(who: list[Identity]) -> None:
        async with Federation(
            deployed({"rounds": {"global": 1}}, gossip_seconds=2.0), tmp_path
        ) as federation:
            federation.start(*who)
            await federation.finished()
            seen = federation.edges[0].take_snapshot()
            assert seen.phase == "finished"
            assert seen.unready == ""
            assert seen.problem == ""
            if not who:  # started again, it has not heard of anybody
                assert {device.state for each in seen.clusters for device in each.devices} == {"done"}
            assert all(device.seconds for device in seen.clusters[0].devices)
            assert seen.history[-1].wall_seconds
            assert seen.wire_bytes > 0

    asyncio.run(play([]))
    asyncio.run(play(edges(0)))


def test_nobody_waits_for_itself(tmp_path: Path) -> None:
    """An edge server that comes back between the last round and the release is named there as missing."""

    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start(*edges(1))
            await until("it is there", lambda: 1 in federation.edges)
            server = federation.edges[1].server
            await server.release(Identity("edge", 0), ReleaseRequest((1, 2)))
            assert server.awaited == (2,)

    asyncio.run(play())
