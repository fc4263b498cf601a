"""What `cfel up` reads of its nodes' logs while it waits, with nodes that only write logs."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.edge.state import EdgeDisk, EdgeState
from cfel.durable import read_bytes
from cfel.launch import federation
from cfel.launch.federation import LaunchOptions, launch_federation
from cfel.runlog import RoundRecord, RunDirectory
from cfel.validation import parse_toml
from tests.deployment.conftest import deployed
from tests.simulation.drive import records

ROUNDS, EDGES, LOOKS_PER_ROUND = 30, 3, 5


def nodes(write: Callable[[int, list[Path]], None]) -> type:
    """Processes whose only work is `write`, called at every look with its number and the edge logs."""

    class Nodes:
        def __init__(self, configurations: Iterable[Path]) -> None:
            edges = sorted(path for path in configurations if path.stem.startswith("edge-"))
            self._logs = [path.with_suffix("") / "rounds.jsonl" for path in edges]
            self._looks = 0
            start = deployed().build_world().start
            for log in self._logs:
                log.parent.mkdir(parents=True, exist_ok=True)
                EdgeDisk(log.parent, start).save(EdgeState((0, 0, 0), start, start))

        def __enter__(self) -> "Nodes":
            return self

        def __exit__(self, *_: object) -> None: ...

        def restart_dead(self) -> list[str]:
            write(self._looks, self._logs)
            self._looks += 1
            return []

        def wait(self, seconds: float) -> None: ...

    return Nodes


@pytest.fixture
def lines() -> list[bytes]:
    """The log of a run of `ROUNDS` rounds."""
    (record,) = records(deployed({"rounds": {"global": 1}}))
    return [replace(record, round=number).to_json_line().encode() for number in range(1, ROUNDS + 1)]


def launch(out: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[int, list[Path]], None]) -> list[int]:
    """The rounds in the log of a federation whose nodes are `write`."""
    monkeypatch.setattr(federation, "Processes", nodes(write))
    monkeypatch.setattr(federation, "_POLL_SECONDS", 0.0)
    experiment = deployed({"rounds": {"global": ROUNDS}})
    return [each.round for each in launch_federation(experiment, out, LaunchOptions())]


def append(log: Path, content: bytes) -> None:
    with log.open("ab") as file:
        file.write(content)


def test_each_line_of_a_log_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes]
) -> None:
    """30 rounds of 3 edge servers are 90 lines; the run's own log is read once at the end: 120."""

    def write(look: int, logs: list[Path]) -> None:
        if look % LOOKS_PER_ROUND == 0:
            for log in logs:
                append(log, lines[look // LOOKS_PER_ROUND])

    parsed: list[str] = []
    parse = RoundRecord.from_json_line

    def count(line: str) -> RoundRecord:
        parsed.append(line)
        return parse(line)

    read: list[int] = []

    def count_bytes(path: Path, **options: Any) -> bytes:
        content = read_bytes(path, **options)
        read.append(len(content))
        return content

    monkeypatch.setattr(RoundRecord, "from_json_line", count)
    monkeypatch.setattr("cfel.runlog.records.read_bytes", count_bytes)
    assert launch(tmp_path, monkeypatch, write) == list(range(1, ROUNDS + 1))
    assert len(parsed) == ROUNDS * EDGES + ROUNDS
    # At every look the last line of each log and what is new, so never more than two.
    looks = LOOKS_PER_ROUND * (ROUNDS - 1) + 1
    assert sum(read) <= (2 * EDGES * looks + ROUNDS) * len(lines[-1])


def test_logs_that_are_cut_and_torn_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes]
) -> None:
    """A line is written in two parts; later the log is cut to one line and grows again."""

    def write(look: int, logs: list[Path]) -> None:
        log = logs[0]
        match look:
            case 0:
                append(log, lines[0] + lines[1][:20])
            case 1:
                append(log, lines[1][20:] + lines[2])
            case 2:
                log.write_bytes(lines[0])
            case 3:
                append(log, b"".join(lines[1:ROUNDS]))

    assert launch(tmp_path, monkeypatch, write) == list(range(1, ROUNDS + 1))
    assert RunDirectory.open(tmp_path).records()[-1].round == ROUNDS


def test_no_engine_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes]) -> None:
    """None runs, so `auto` stays. A directory of an earlier version that names one is still resumed."""

    def write(_look: int, logs: list[Path]) -> None:
        append(logs[0], b"".join(lines) if not logs[0].exists() else b"")

    experiment = deployed({"rounds": {"global": ROUNDS}, "simulation": {"engine": "auto"}})
    monkeypatch.setattr(federation, "Processes", nodes(write))
    launch_federation(experiment, tmp_path, LaunchOptions())
    recorded = tmp_path / "experiment.toml"
    text = recorded.read_text()
    assert parse_toml(text)["simulation"]["engine"] == "auto"
    recorded.write_text(text.replace('engine = "auto"', 'engine = "batched"'))
    assert len(launch_federation(experiment, tmp_path, LaunchOptions(resume=True))) == ROUNDS
    assert parse_toml(recorded.read_text())["simulation"]["engine"] == "auto"
