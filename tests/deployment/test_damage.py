"""Damaged files: a node recovers from the others where that is safe, and says what to do where not."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from cfel.deployment.security.identity import Identity
from cfel.errors import DamagedError
from cfel.runlog.records import read_log
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, until

pytestmark = pytest.mark.long

HURT = Identity("edge", 1)
ROUNDS = {"rounds": {"global": 4}}


def has_round(federation: Federation, edge: int) -> bool:
    """Whether an edge server has finished a round."""
    return edge in federation.edges and federation.edges[edge].server.log.last_round >= 1


def flip(path: Path) -> None:
    """Changes one byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def flip_models(directory: Path) -> None:
    """Changes every model."""
    for path in (directory / "models").iterdir():
        flip(path)


def harm_all(directory: Path) -> None:
    """Damages all of it."""
    flip(directory / "state.bin")
    flip(directory / "vote.json")
    flip(directory / "rounds.jsonl")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda directory: flip(directory / "state.bin"), "state.bin is damaged"),
        (lambda directory: (directory / "state.bin").unlink(), "state.bin does not exist"),
        (flip_models, "is damaged: its SHA-256 is not its name"),
        (lambda directory: flip(directory / "rounds.jsonl"), "rounds.jsonl was cut before line"),
        (lambda directory: flip(directory / "vote.json"), "vote.json: not a vote"),
        (harm_all, "state.bin is damaged"),
    ],
    ids=["state", "no state", "models", "log", "vote", "all"],
)
def test_an_edge_server_recovers_from_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], words: str
) -> None:
    """It says what is wrong, comes back, and has the whole log at the end."""

    async def play() -> None:
        async with Federation(deployed(ROUNDS), tmp_path) as federation:
            federation.start()
            await until("a round is over", lambda: has_round(federation, 1))
            await federation.kill(HURT)
            harm(tmp_path / str(HURT))
            federation.start(HURT)
            await federation.finished()
            assert not federation.edges[1].server.loss
            assert federation.edges[1].member.problem == ""

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())
    assert words in caplog.text
    logs = [read_log(tmp_path / f"edge-{i}" / "rounds.jsonl").records for i in range(3)]
    assert [each.round for each in logs[1]] == [1, 2, 3, 4]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.long
def test_a_run_does_not_begin_again_when_all_have_lost_their_state(tmp_path: Path) -> None:
    """The coordinator waits; `problem` says what to do. One that knows the state is enough to continue."""

    async def play() -> None:
        async with Federation(deployed(ROUNDS), tmp_path) as federation:
            edges = [Identity("edge", i) for i in range(3)]
            federation.start()
            await until("a round is over", lambda: has_round(federation, 1))
            for edge in edges:
                await federation.kill(edge)
            kept = (tmp_path / "edge-0" / "state.bin").read_bytes()
            for edge in edges:
                flip(tmp_path / str(edge) / "state.bin")
            federation.start(*edges)
            await until("somebody leads", lambda: federation.coordinator() is not None)
            await asyncio.sleep(1.0)
            for node in federation.edges.values():
                assert node.server.state.position == (0, 0, 0)
                assert "delete them all to begin the experiment anew" in node.take_snapshot().problem
            await federation.kill(edges[0])
            (tmp_path / "edge-0" / "state.bin").write_bytes(kept)
            federation.start(edges[0])
            await federation.finished()

    asyncio.run(play())
    assert [each.round for each in read_log(tmp_path / "edge-2" / "rounds.jsonl").records] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["state.bin", "rounds.jsonl"])
def test_without_others_it_says_what_to_do(tmp_path: Path, name: str) -> None:
    async def play() -> None:
        alone = deployed(ROUNDS, {"fleet": {"clusters": 1}, "topology": {"kind": "complete"}})
        async with Federation(alone, tmp_path) as federation:
            federation.start()
            await until("a round is over", lambda: has_round(federation, 0))
            for member in federation.everybody():
                await federation.kill(member)
            flip(tmp_path / "edge-0" / name)
            federation.start(Identity("edge", 0))
            with pytest.raises(DamagedError, match=r"restore .* from a backup"):
                await federation.finished()

    asyncio.run(play())


@pytest.mark.long
def test_a_device_continues_without_its_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    device = Identity("device", 1)

    async def play() -> None:
        async with Federation(deployed(ROUNDS, gone_seconds=1.0), tmp_path) as federation:
            federation.start()
            await until("it remembers", (tmp_path / str(device) / "memory.bin").exists)
            await federation.kill(device)
            flip(tmp_path / str(device) / "memory.bin")
            federation.start(device)
            await federation.finished()
            assert federation.records()[-1].devices_taking_part == 6

    asyncio.run(play())
    assert "memory.bin is damaged" in caplog.text
    assert (tmp_path / str(device) / "memory.bin.damaged").exists()
