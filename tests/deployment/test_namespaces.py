"""A partition of real hosts: each edge server and its device in a network namespace of its own.

The coordinator's cable is pulled and plugged in again. Needs root and `ip`; makes its own namespaces, touches
no other network and takes them down again.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cfel.deployment.node import Node
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.experiment import experiment_toml
from cfel.launch.node import NodeFile, write_node
from cfel.runlog.records import read_log
from tests.deployment.conftest import deployed

EDGES = 3
GLOBAL_ROUNDS = 8
PATIENCE_SECONDS = 90.0
IP = shutil.which("ip")

pytestmark = [pytest.mark.long, pytest.mark.chaos, pytest.mark.timeout(400)]


def ip(*arguments: str) -> None:
    """The `ip` command."""
    subprocess.run([str(IP), *arguments], check=True, capture_output=True, timeout=20)


class Hosts:
    """Namespaces joined by a bridge that lives in one more of them."""

    def __init__(self, prefix: str) -> None:
        self.hub = f"{prefix}-hub"
        self.names = [f"{prefix}-{i}" for i in range(EDGES)]

    def make(self) -> None:
        """Plugs everything together."""
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.hub, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            peer = ("peer", "name", "eth0", "netns", name)
            ip("-n", self.hub, "link", "add", f"cable{i}", "type", "veth", *peer)
            ip("-n", self.hub, "link", "set", f"cable{i}", "master", "bridge", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "address", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")

    def pull(self, edge: int) -> None:
        """Cuts one host off."""
        ip("-n", self.hub, "link", "set", f"cable{edge}", "down")

    def plug(self, edge: int) -> None:
        """Joins it again."""
        ip("-n", self.hub, "link", "set", f"cable{edge}", "up")

    def remove(self) -> None:
        """Takes everything down that is there."""
        for name in (*self.names, self.hub):
            subprocess.run([str(IP), "netns", "delete", name], check=False, capture_output=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if IP is None or os.geteuid() != 0:
        pytest.skip("needs root and the `ip` command to make network namespaces")
    made = Hosts(f"cfel{os.getpid()}")
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"this system lets no network namespaces be made: {error.stderr.decode().strip()}")
    yield made
    made.remove()


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
    command = [str(IP), "netns", "exec", hosts.names[int(number)], sys.executable, "-m", "cfel", role]
    with configuration.with_suffix(".log").open("wb") as log:
        return subprocess.Popen([*command, "--config", str(configuration)], stdout=log, stderr=log)


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
