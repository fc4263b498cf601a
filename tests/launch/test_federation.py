"""The files that `cfel up` writes for its nodes, and what it reads of their logs while it waits."""

import socket
import stat
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.edge.storage import EdgeDisk, EdgeState
from cfel.deployment.host import RealDisk
from cfel.deployment.protocol.addresses import split_address
from cfel.durable import read_bytes
from cfel.errors import StorageError
from cfel.experiment import load_experiment
from cfel.launch import federation
from cfel.launch.federation import LaunchOptions, launch_federation, prepare_nodes
from cfel.launch.node import read_node
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
                EdgeDisk(RealDisk(), log.parent, start).save(EdgeState((0, 0, 0), start, start))

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


def test_the_log_of_an_edge_server_that_joined_later_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes]
) -> None:
    """The first edge servers log 10 rounds and leave; edge 3 has all 30."""

    def write(look: int, logs: list[Path]) -> None:
        if look == 0:
            append(logs[0], b"".join(lines[:10]))
            later = logs[0].parents[1] / "edge-3"
            later.mkdir()
            append(later / "rounds.jsonl", b"".join(lines))

    assert launch(tmp_path, monkeypatch, write) == list(range(1, ROUNDS + 1))


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


TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def prepare(out: Path) -> list[Path]:
    experiment = load_experiment(TINY)
    return prepare_nodes(experiment, experiment.build_world(), out, LaunchOptions())


def test_what_nodes_keep_is_private(tmp_path: Path) -> None:
    files = prepare(tmp_path)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("nodes", "certificates")}
    assert modes == {"nodes": 0o700, "certificates": 0o700}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="needs ::1")
def test_ipv6(tmp_path: Path) -> None:
    """Addresses have brackets, and dashboards are on the loopback address of the same kind."""
    experiment = load_experiment(TINY)
    experiment = replace(experiment, deployment=replace(experiment.deployment, host="::1"))
    files = prepare_nodes(experiment, experiment.build_world(), tmp_path, LaunchOptions())
    edge = read_node(files[0])
    assert len(edge.node.addresses) == 3
    for address in (*edge.node.addresses, edge.dashboard):
        host, port = split_address("address", address)
        assert host == "::1"
        assert port > 0


@pytest.mark.parametrize("name", ["nodes", "certificates", "nodes/edge-1", "nodes/device-0"])
def test_a_linked_directory_is_rejected(tmp_path: Path, name: str) -> None:
    """As in a directory that somebody else sent, and that is resumed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=f"{name} is a link, which is not followed"):
        prepare(tmp_path / "run")
    assert list((tmp_path / "elsewhere").iterdir()) == []
