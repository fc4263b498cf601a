"""Members that go and do not come back in time: the others continue, with the right weights."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from cfel.deployment.coordinator.counting import mixing_rows
from cfel.deployment.security.identity import Identity
from cfel.experiment import Experiment
from cfel.rounds.records import mean_metric
from cfel.runlog import RoundRecord
from cfel.runlog.directory import read_plan
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, Network
from tests.simulation.drive import records, timeless

pytestmark = pytest.mark.long


def test_device_that_vanishes_is_left_out_and_returns(tmp_path: Path) -> None:
    """Device 5 goes after round 1 and comes back after round 3; nobody waits for it in between."""
    experiment = deployed({"rounds": {"global": 20, "edge": 1}}, gone_seconds=0.2)
    gone = Identity("device", 5)

    async def play() -> list[RoundRecord]:
        network = Network()
        async with Federation(experiment, tmp_path, network) as federation:
            federation.start()
            await _logged(federation, 1)
            await federation.kill(gone)
            await _logged(federation, 3)
            federation.start(gone)
            await federation.finished()
            return federation.records()

    lines = asyncio.run(play())
    assert len(lines) == 20
    assert lines[0].devices_taking_part == 6
    assert lines[2].devices_taking_part == 5
    assert 5 not in read_plan(tmp_path / "edge-0", 3).device.tolist()
    assert lines[19].devices_taking_part == 6


def test_edge_server_that_is_lost_is_left_out_of_gossip(tmp_path: Path) -> None:
    experiment = deployed({"rounds": {"global": 4, "edge": 1}}, round_seconds=1.0, gossip_seconds=0.4)

    async def play() -> tuple[list[RoundRecord], int]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await _logged(federation, 1)
            lost = federation.coordinator()
            assert lost is not None
            await federation.kill(Identity("edge", lost))
            for n in np.flatnonzero(federation.world.setting.fleet.cluster == lost):
                await federation.kill(Identity("device", int(n)))
            await federation.finished()
            return federation.records(), lost

    lines, lost = asyncio.run(play())
    assert [line.round for line in lines] == [1, 2, 3, 4]
    assert lines[3].devices_taking_part == 4
    assert lines[3].model_sha256 != lines[2].model_sha256
    assert lines[3].slowest_cluster != lost


@pytest.mark.parametrize(("leads", "fault"), [(False, "killed"), (True, "frozen"), (False, "blocked")])
def test_edge_server_gone_for_good_holds_up_the_others_once(tmp_path: Path, leads: bool, fault: str) -> None:
    """The deadlines are minutes long; after `gone_seconds` the others plan and gossip without it."""
    experiment = deployed(
        {"rounds": {"global": 6, "edge": 2}},
        round_seconds=300.0,
        gossip_seconds=300.0,
        gone_seconds=4.0,
        linger_seconds=0.0,
        fail_over="never",
    )

    async def play() -> tuple[list[RoundRecord], int, float]:
        network = Network()
        async with Federation(experiment, tmp_path, network) as federation:
            federation.start()
            await _logged(federation, 1)
            gone = federation.coordinator()
            assert gone is not None
            gone = gone if leads else (gone + 1) % 3
            began = monotonic()
            if fault == "killed":
                await federation.kill(Identity("edge", gone))
            else:
                (network.frozen if fault == "frozen" else network.blocked).add(Identity("edge", gone))
            alive = (gone + 1) % 3
            await _logged(federation, 6, at=alive)
            seconds = monotonic() - began
            network.frozen.clear()
            return list(federation.edges[alive].server.log.records), gone, seconds

    lines, gone, seconds = asyncio.run(play())
    assert [line.round for line in lines] == [1, 2, 3, 4, 5, 6]
    assert seconds < 60  # one wait for a deadline would take longer, even on a slow machine
    cluster = deployed().build_world().setting.fleet.cluster
    last = [read_plan(tmp_path / f"edge-{(gone + 1) % 3}", number) for number in (4, 5, 6)]
    # On a busy machine, another one may seem gone for a moment, too.
    assert not any(gone in cluster[table.device] for table in last)


def test_accuracy_is_the_mean_of_the_edge_models_that_are_there() -> None:
    """Clusters of two devices each, metrics 0.2, 0.4 and 0.9."""
    setting = deployed().build_world().setting
    assert mean_metric(setting, (0.2, 0.4, 0.9)) == pytest.approx(0.5)
    assert mean_metric(setting, (0.2, 0.4, 0.9), {0, 1}) == pytest.approx(0.3)


def test_mean_model_is_evaluated_without_a_lost_edge_server(tmp_path: Path) -> None:
    experiment = deployed(
        {"rounds": {"global": 3, "edge": 1}, "simulation": {"evaluate_on": "mean"}},
        round_seconds=1.0,
        gossip_seconds=0.4,
    )

    async def play() -> list[RoundRecord]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await _logged(federation, 1)
            for gone in (Identity("edge", 2), Identity("device", 4), Identity("device", 5)):
                await federation.kill(gone)
            await federation.finished()
            return federation.records()

    lines = asyncio.run(play())
    assert [line.round for line in lines] == [1, 2, 3]
    assert all(line.accuracy is not None for line in lines)


def test_edge_server_away_for_long_catches_up_from_a_neighbour(tmp_path: Path) -> None:
    experiment = deployed({"rounds": {"global": 6, "edge": 1}}, round_seconds=0.8, gossip_seconds=0.4)

    async def play() -> tuple[Any, ...]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await _logged(federation, 1)
            leader = federation.coordinator()
            away = next(i for i in range(3) if i != leader)
            await federation.kill(Identity("edge", away))
            await _logged(federation, 4, at=leader)
            federation.start(Identity("edge", away))
            await federation.finished()
            own = federation.edges[away].server
            return own.state.position, own.log.last_round, len(federation.records())

    position, logged, rounds = asyncio.run(play())
    assert rounds == 6
    assert logged == 6
    assert position == (6, 0, 0)


def test_partition_heals_without_two_coordinators_in_one_term(tmp_path: Path) -> None:
    """Edge server 2 is cut off with its devices; the others continue, and it catches up to the same log."""
    experiment = deployed({"rounds": {"global": 6, "edge": 1}}, round_seconds=0.8, gossip_seconds=0.4)

    async def play() -> tuple[list[RoundRecord], dict[int, set[int]]]:
        network = Network()
        async with Federation(experiment, tmp_path, network) as federation:
            leaders: dict[int, set[int]] = {}

            def note(caller: Identity, _to: Identity, method: str) -> None:
                if method in ("plan", "mix") and caller.role == "edge":
                    term = federation.edges[caller.number].member.state.term
                    leaders.setdefault(term, set()).add(caller.number)

            network.on_call = note
            federation.start()
            await _logged(federation, 1)
            for other in (0, 1):
                network.cut.add(frozenset((Identity("edge", 2), Identity("edge", other))))
            await _logged(federation, 3)
            network.cut.clear()
            await federation.finished()
            return federation.records(), leaders

    lines, leaders = asyncio.run(play())
    assert [line.round for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(len(who) == 1 for who in leaders.values())


@pytest.mark.parametrize("topology", [{}, {"theta": 0.1, "bits": 8}])
def test_all_stopped_and_started_again(tmp_path: Path, topology: dict[str, Any]) -> None:
    """Everybody is killed in the middle of the second round; the second start ends as if nothing had been."""

    async def play(experiment: Experiment, stop_after: int | None) -> list[dict[str, Any]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            if stop_after is not None:
                await _logged(federation, stop_after)
                await asyncio.sleep(0.05)
                return []
            await federation.finished()
            return timeless(federation.records())

    experiment = deployed({"topology": topology})
    asyncio.run(play(experiment, 1))
    assert asyncio.run(play(experiment, None)) == timeless(records(experiment))


def test_weights_of_the_live_graph() -> None:
    """All there: the experiment's own weights, bit for bit. One missing: it keeps its own model."""
    backhaul = deployed().build_world().setting.backhaul
    everybody = {i: [j for j in range(3) if j != i] for i in range(3)}
    assert np.array(mixing_rows(backhaul, everybody)).tolist() == backhaul.weights.tolist()
    two = np.array(mixing_rows(backhaul, {0: [1], 1: [0]}))
    np.testing.assert_allclose(two, [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    one_way = np.array(mixing_rows(backhaul, {0: [1, 2], 1: [2], 2: [0, 1]}))
    assert one_way[0, 1] == one_way[1, 0] == 0
    np.testing.assert_allclose(one_way.sum(axis=1), 1)


def test_weights_of_all_at_once() -> None:
    """Edge server 2's model is accepted by nobody, or misses one other model: the others share their mean."""
    backhaul = deployed({"scheme": {"name": "fedavg"}}).build_world().setting.backhaul
    everybody = {i: [j for j in range(3) if j != i] for i in range(3)}
    assert np.array(mixing_rows(backhaul, everybody, at_once=True)).tolist() == backhaul.weights.tolist()
    two = [*(backhaul.target[:2] / backhaul.target[:2].sum()), 0.0]
    without = [two, two, [0.0, 0.0, 1.0]]
    for got in ({0: [1], 1: [0], 2: [0, 1]}, {0: [1, 2], 1: [0, 2], 2: [0]}, {0: [1], 1: [0]}):
        np.testing.assert_allclose(np.array(mixing_rows(backhaul, got, at_once=True)), without)
    nobody = mixing_rows(backhaul, {0: [], 1: [], 2: []}, at_once=True)
    assert np.array(nobody).tolist() == np.eye(3).tolist()


async def _logged(federation: Federation, rounds: int, at: int | None = None) -> None:
    """Returns when an edge server has written that many rounds down."""
    deadline = asyncio.get_running_loop().time() + 60
    while asyncio.get_running_loop().time() < deadline:
        nodes = [federation.edges[at]] if at is not None else list(federation.edges.values())
        if any((node.server.log.last_round or 0) >= rounds for node in nodes):
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"round {rounds} was not reached")
