"""A round is closed with one record everywhere, whoever dies, is cut off or loses its state meanwhile."""

import asyncio
from pathlib import Path

import pytest

from cfel.deployment.security.identity import Identity
from cfel.errors import UnreachableError
from cfel.runlog import RoundRecord
from cfel.runlog.records import read_log
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, Network, until

pytestmark = pytest.mark.long

EDGES = [Identity("edge", i) for i in range(3)]
TWO_ROUNDS = {"rounds": {"global": 2}}


def has_logged(federation: Federation, number: int) -> bool:
    """Whether an edge server has logged a round."""
    return federation.edges[number].server.log.last_round >= 1


def read_logs(directory: Path) -> list[tuple[RoundRecord, ...]]:
    return [read_log(directory / str(edge) / "rounds.jsonl").records for edge in EDGES]


async def stop_in_the_middle(federation: Federation, network: Network) -> Identity:
    """Runs until the coordinator alone has logged the first round; returns it."""

    def lose(caller: Identity, to: Identity, method: str) -> None:
        del caller
        if method == "close":
            raise UnreachableError(f"{to}, {method}: nobody answers")

    network.on_call = lose
    federation.start()
    await until("all are there", lambda: len(federation.edges) == len(EDGES))
    await until("one has logged", lambda: any(has_logged(federation, edge.number) for edge in EDGES))
    (first,) = (edge for edge in EDGES if has_logged(federation, edge.number))
    return first


def let_through(network: Network) -> None:
    network.on_call = lambda _from, _to, _method: None


@pytest.mark.parametrize("file", ["state.bin", "proposal.bin"])
def test_a_successor_logs_what_the_coordinator_that_died_has_logged(tmp_path: Path, file: str) -> None:
    """The coordinator dies; another one has lost a file, and cannot repeat the gossip step."""

    async def play() -> None:
        network = Network()
        async with Federation(deployed(TWO_ROUNDS, gone_seconds=2.0), tmp_path, network) as federation:
            first = await stop_in_the_middle(federation, network)
            hurt = next(edge for edge in EDGES if edge != first)
            await federation.kill(first)
            await federation.kill(hurt)
            (tmp_path / str(hurt) / file).write_bytes(b"damaged")
            let_through(network)
            federation.start(hurt)
            await until("the others have logged it", lambda: has_logged(federation, hurt.number))
            federation.start(first)
            await federation.finished()

    asyncio.run(play())
    logs = read_logs(tmp_path)
    assert [each.round for each in logs[0]] == [1, 2]
    assert logs[0] == logs[1] == logs[2]


def test_a_coordinator_that_was_cut_off_logs_nothing_that_the_others_do_not(tmp_path: Path) -> None:
    """It has the models of all, its successor only those of the others: their records would differ."""

    async def play() -> None:
        network = Network()
        experiment = deployed(TWO_ROUNDS, gone_seconds=2.0)
        async with Federation(experiment, tmp_path, network) as federation:

            def cut_off(caller: Identity, to: Identity, method: str) -> None:
                del to
                if method in ("propose", "close") and not network.cut:
                    network.cut |= {frozenset((caller, other)) for other in EDGES if other != caller}

            network.on_call = cut_off
            federation.start()
            await until("the coordinator is cut off", lambda: bool(network.cut))
            alone = frozenset.intersection(*network.cut)
            others = [edge for edge in EDGES if edge not in alone]
            await until("another closes it", lambda: all(has_logged(federation, e.number) for e in others))
            let_through(network)
            network.cut.clear()
            await federation.finished()

    asyncio.run(play())
    logs = read_logs(tmp_path)
    assert [each.round for each in logs[0]] == [1, 2]
    assert logs[0] == logs[1] == logs[2]
