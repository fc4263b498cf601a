"""A partition of real hosts: each edge server and its device in a network namespace of its own.

The coordinator's cable is pulled and plugged in again. Needs root and `ip`; makes its own namespaces, touches
no other network and takes them down again.
"""

import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cfel.deployment.node import Node
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.errors import DeploymentError
from cfel.experiment import experiment_toml
from cfel.launch.node import NodeFile, write_node
from cfel.runlog.records import read_log
from tests.deployment.conftest import deployed
from tests.support.hosts import Hosts, make_hosts

EDGES = 3
GLOBAL_ROUNDS = 8
PATIENCE_SECONDS = 90.0

pytestmark = [pytest.mark.long, pytest.mark.chaos, pytest.mark.timeout(400)]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(make_hosts(EDGES))
        except DeploymentError as error:
            pytest.skip(str(error))
        yield made


def configured(out: Path) -> list[Path]:
    """An experiment, certificates and one configuration per process: edge servers, then devices."""
    fleet = {"devices": EDGES, "clusters": EDGES}
    waits = {"round_seconds": 6.0, "gossip_seconds": 2.0, "gone_seconds": 2.0, "time_scale": 0.004}
    rounds = {"global": GLOBAL_ROUNDS, "edge": 1}
    experiment = deployed({"fleet": fleet, "rounds": rounds}, **waits, election_seconds=0.7)
    (out / "experiment.toml").write_text(experiment_toml(experiment.resolve(experiment.build_world())))
    make_authority(out / "certificates")
    addresses = tuple(f"10.77.0.{i + 1}:7400" for i in range(EDGES))
    configurations = []
    for member in (Identity(role, i) for role in ("edge", "device") for i in range(EDGES)):
        issue(out / "certificates", member, 1.0)
        node = Node(member, addresses, out / str(member), out / "certificates")
        write_node(out / f"{member}.toml", NodeFile(node, out / "experiment.toml"))
        configurations.append(out / f"{member}.toml")
    return configurations


def started(hosts: Hosts, configuration: Path) -> subprocess.Popen[bytes]:
    """One process in its namespace, its log beside its configuration."""
    role, number = configuration.stem.split("-")
    command = hosts.wrap(int(number), sys.executable, "-m", "cfel", role, "--config", str(configuration))
    with configuration.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def leaders(out: Path, edge: int) -> list[tuple[int, int | None]]:
    """(term, leader) in the order in which an edge server learned of them."""
    found = re.findall(r"term (\d+): leader (\d+|None)", (out / f"edge-{edge}.log").read_text())
    return [(int(term), None if leader == "None" else int(leader)) for term, leader in found]


def until(what: str, condition: Callable[[], bool]) -> None:
    """Waits."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


def rounds_done(out: Path, edge: int) -> int:
    """Rounds that an edge server has written down."""
    path = out / f"edge-{edge}" / "rounds.jsonl"
    return len(read_log(path).records) if path.exists() else 0


def test_the_coordinator_is_cut_off_and_joined_again(hosts: Hosts, tmp_path: Path) -> None:
    """The others elect another and continue; the old one follows when it is back; the run ends for all."""
    processes = [started(hosts, configuration) for configuration in configured(tmp_path)]
    try:
        until("a round is done", lambda: any(rounds_done(tmp_path, i) for i in range(EDGES)))
        # On a busy machine an election may be under way.
        until("its leader is known", lambda: leaders(tmp_path, 0)[-1][1] is not None)
        term, old = leaders(tmp_path, 0)[-1]
        assert old is not None
        others = [i for i in range(EDGES) if i != old]
        hosts.pull(old)
        until("the others have elected", lambda: all(leaders(tmp_path, i)[-1][0] > term for i in others))
        until("the old one steps down", lambda: leaders(tmp_path, old)[-1][1] is None)
        before = rounds_done(tmp_path, others[0])
        until("the others continue", lambda: rounds_done(tmp_path, others[0]) > before)
        assert all(leader != old for i in others for each, leader in leaders(tmp_path, i) if each > term)
        hosts.plug(old)
        until("all are done", lambda: all(process.poll() is not None for process in processes))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    by_term: defaultdict[int, set[int]] = defaultdict(set)
    for i in range(EDGES):
        for each, leader in leaders(tmp_path, i):
            by_term[each] |= set() if leader is None else {leader}
    assert all(len(found) <= 1 for found in by_term.values()), by_term
    assert [process.returncode for process in processes] == [0] * len(processes)
    logs = [read_log(tmp_path / f"edge-{i}" / "rounds.jsonl").records for i in range(EDGES)]
    assert [record.round for record in logs[0]] == list(range(1, GLOBAL_ROUNDS + 1))
    assert logs[0] == logs[1] == logs[2]
