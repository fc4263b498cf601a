"""Real processes over TLS, killed and frozen at moments chosen by what they are doing.

The bounded tests (`make chaos-quick`) mostly use three edge servers. The slow ones (`make chaos`) use five
and eight, and mix all faults for minutes.
"""

import asyncio
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cfel.deployment.node import Node
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.edge_requests import StatusAnswer, StatusRequest
from cfel.deployment.protocol.grpc_transport import GrpcClient
from cfel.deployment.security.credentials import Credentials
from cfel.deployment.security.identity import Identity
from cfel.experiment import Experiment
from cfel.launch.federation import LaunchOptions, Processes, launch_federation
from cfel.launch.node import read_node
from cfel.runlog import RoundRecord, RunDirectory
from tests.deployment.conftest import deployed
from tests.simulation.drive import records, timeless

pytestmark = [pytest.mark.timeout(300), pytest.mark.long, pytest.mark.chaos]

Snapshots = Mapping[int, StatusAnswer]
LOOK_SECONDS = 0.005
PATIENT_LOOK_SECONDS = 0.05
LOG = logging.getLogger(__name__)


class Tormentor(threading.Thread):
    """Watches a federation as its operator does, and acts on what it sees.

    Args:
        out: the federation's directory.
        processes: its processes.
        act: called with every look; true when it wants to see no more.
        look_seconds: between two looks.
    """

    def __init__(
        self,
        out: Path,
        processes: Processes,
        act: Callable[[Processes, Snapshots], bool],
        look_seconds: float,
    ) -> None:
        super().__init__(daemon=True)
        self._out, self._processes, self._act, self._look_seconds = out, processes, act, look_seconds
        self.over = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Looks until it is stopped."""
        try:
            asyncio.run(self._watch(read_node(self._out / "nodes" / "operator-0.toml").node))
        except Exception as error:  # noqa: BLE001 — shown by the test, which runs in another thread
            self.failure = error

    async def _watch(self, node: Node) -> None:
        client = GrpcClient(Credentials.read(node.certificates, node.identity), node.peers(), 0)
        try:
            while not self.over.is_set() and not self._act(self._processes, await self._look(client, node)):
                await asyncio.sleep(self._look_seconds)
        finally:
            await client.close()

    async def _look(self, client: GrpcClient, node: Node) -> Snapshots:
        async def ask(edge: Identity) -> StatusAnswer | None:
            try:
                return await RemoteCalls(client).call(edge, StatusRequest(), 0.5)
            except Exception:  # noqa: BLE001 — dead, or about to be
                return None

        answers = await asyncio.gather(*(ask(edge) for edge in node.peers()))
        return {number: answer for number, answer in enumerate(answers) if answer is not None}


def tormented(
    experiment: Experiment,
    out: Path,
    act: Callable[[Processes, Snapshots], bool],
    look_seconds: float = LOOK_SECONDS,
) -> list[RoundRecord]:
    """Runs a federation to its end while `act` does its worst."""
    torments: list[Tormentor] = []

    def begin(processes: Processes) -> None:
        torments.append(Tormentor(out, processes, act, look_seconds))
        torments[0].start()

    try:
        return launch_federation(experiment, out, LaunchOptions(on_start=begin))
    finally:
        for torment in torments:
            torment.over.set()
            torment.join()
            if torment.failure is not None:
                raise torment.failure


def leader(seen: Snapshots) -> int | None:
    """The coordinator of the newest term."""
    found = [(each.status.term or 0, number) for number, each in seen.items() if each.role == "leader"]
    return max(found)[1] if found else None


class KillCoordinator:
    """Kills the coordinator once in a phase."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.killed: tuple[float, int] | None = None

    def __call__(self, processes: Processes, seen: Snapshots) -> bool:
        """One look."""
        self._perhaps_kill(processes, seen)
        return self.killed is not None

    def _perhaps_kill(self, processes: Processes, seen: Snapshots) -> None:
        own = leader(seen)
        if own is None or seen[own].position[0] < 1 or seen[own].status.phase != self.phase:
            return
        term = seen[own].status.term or 0
        os.kill(processes.pid(f"edge-{own}"), signal.SIGKILL)
        self.killed = (time.time(), term)

    def empty_seconds(self, out: Path) -> float:
        """How long there was no coordinator, by the nodes' own logs: polling would disturb it."""
        assert self.killed is not None, f"no coordinator was seen {self.phase}"
        at, term = self.killed
        return min(elected for found, elected in elections(out) if found > term) - at


def elections(out: Path) -> list[tuple[int, float]]:
    """(term, when by the wall clock) of every election, as its winner tells."""
    found = []
    for log in (out / "nodes").glob("edge-*.log"):
        own = log.stem.removeprefix("edge-")
        for when, term in re.findall(
            rf"^(\S+ \S+) INFO cfel.deployment.election.member: term (\d+): leader {own}$",
            log.read_text(),
            re.MULTILINE,
        ):
            found.append((int(term), datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp()))
    return found


def slowly(clusters: int, *changes: Mapping[str, Any], **deployment: Any) -> Experiment:
    """Rounds that last long enough to be caught in every phase."""
    return deployed(
        {"fleet": {"devices": 2 * clusters, "clusters": clusters}, "rounds": {"global": 4, "edge": 1}},
        *changes,
        **{"time_scale": 0.002, "election_seconds": 0.7, **deployment},
    )


def check_kill(clusters: int, phase: str, out: Path) -> None:
    """Another coordinator is elected, and the outcome is that of a run without any kill."""
    fresh = {"local": {"estimator": "fresh" if phase == "planning" else "reuse"}}
    experiment, kill = slowly(clusters, fresh), KillCoordinator(phase)
    found = timeless(tormented(experiment, out, kill))
    seconds = kill.empty_seconds(out)
    assert seconds < 10, "no coordinator was elected"
    LOG.info("%s, %d edge servers: no coordinator for %.2f s", phase, clusters, seconds)
    assert found == timeless(records(experiment))


@pytest.mark.parametrize("phase", ["training", "gossip", "waiting"])
def test_kill_of_the_coordinator_in_every_phase(tmp_path: Path, phase: str) -> None:
    check_kill(3, phase, tmp_path / "run")


# Planning with five is bounded: no other bounded test kills a coordinator while it plans.
MORE = [
    pytest.param(phase, clusters, marks=[] if (phase, clusters) == ("planning", 5) else pytest.mark.slow)
    for phase in ("planning", "training", "gossip", "waiting")
    for clusters in (5, 8)
]


@pytest.mark.parametrize(("phase", "clusters"), MORE)
def test_kill_of_the_coordinator_among_more(tmp_path: Path, phase: str, clusters: int) -> None:
    check_kill(clusters, phase, tmp_path / "run")


class FreezeCoordinator:
    """Stops the coordinator in a training phase and lets it continue once another one leads."""

    def __init__(self) -> None:
        self.frozen: tuple[int, int, int] | None = None
        self.successor: int | None = None
        self.thawed_at = 0.0
        self.terms_after: set[int] = set()

    def __call__(self, processes: Processes, seen: Snapshots) -> bool:
        """One look."""
        own = leader(seen)
        if self.frozen is None:
            if own is not None and seen[own].position[0] >= 1 and seen[own].status.phase == "training":
                self.frozen = (own, (seen[own].status.term or 0), processes.pid(f"edge-{own}"))
                os.kill(self.frozen[2], signal.SIGSTOP)
        elif self.successor is None:
            if own is not None and (seen[own].status.term or 0) > self.frozen[1]:
                self.successor, self.thawed_at = own, time.monotonic()
                os.kill(self.frozen[2], signal.SIGCONT)
        elif own is not None and time.monotonic() - self.thawed_at > 1.0:
            self.terms_after.add(seen[own].status.term or 0)
        return False


def test_a_frozen_coordinator_is_replaced_and_does_not_depose_its_successor(tmp_path: Path) -> None:
    """It thaws in the middle of a round; what it still had to say does not count, the outcome is the same."""
    # On a busy machine a healthy coordinator may be silent for a second: that must not count as dead here.
    experiment = slowly(3, {"rounds": {"global": 6}}, election_seconds=4.0)
    freeze = FreezeCoordinator()
    found = timeless(tormented(experiment, tmp_path / "run", freeze))
    assert freeze.frozen is not None
    assert freeze.successor not in (None, freeze.frozen[0])
    assert len(freeze.terms_after) == 1
    assert found == timeless(records(experiment))


class Freeze:
    """Stops a device in the second round, and lets it continue when the others are two rounds further."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen: int | None = None
        self.thawed = False

    def __call__(self, processes: Processes, seen: Snapshots) -> bool:
        """One look."""
        now = min((each.position[0] for each in seen.values()), default=0)
        if self.frozen is None and now >= 1:
            self.frozen = processes.pid(self.name)
            os.kill(self.frozen, signal.SIGSTOP)
        elif self.frozen is not None and now >= 3:
            os.kill(self.frozen, signal.SIGCONT)
            self.thawed = True
        return self.thawed


def test_a_frozen_device_holds_nobody_up_and_comes_back(tmp_path: Path) -> None:
    """All others take part in every round; the rounds without it end at the deadline at the latest."""
    freeze = Freeze("device-1")
    experiment = slowly(3, {"rounds": {"global": 8}}, round_seconds=4.0, gone_seconds=1.0)
    begin = time.monotonic()
    found = tormented(experiment, tmp_path / "run", freeze)
    assert freeze.thawed
    assert [record.round for record in found] == list(range(1, 9))
    assert time.monotonic() - begin < 120
    steps = participation(tmp_path / "run", 6)
    assert all(all(rounds) for device, rounds in steps.items() if device != 1)
    assert not all(steps[1])
    assert steps[1][-1]


def test_a_third_of_the_devices_vanish_and_return(tmp_path: Path) -> None:
    """Killed in training, they are started again; momentum and residual survive, so nothing changes."""
    killed: set[int] = set()

    def act(processes: Processes, seen: Snapshots) -> bool:
        now = min((each.position[0] for each in seen.values()), default=0)
        if now not in killed and any(each.status.phase == "training" for each in seen.values()):
            killed.add(now)
            for n in (now % 6, (now + 3) % 6):
                os.kill(processes.pid(f"device-{n}"), signal.SIGKILL)
        return False

    experiment = slowly(3)
    assert timeless(tormented(experiment, tmp_path / "run", act)) == timeless(records(experiment))
    assert len(killed) >= 3


def participation(out: Path, devices: int) -> dict[int, list[bool]]:
    """Round by round, whether a device took part, as the plans of the run directory say."""
    directory = RunDirectory.open(out)
    tables = [directory.plan(number, directory.fleet().devices) for number in directory.plan_rounds()]
    return {n: [n in table.device for table in tables] for n in range(devices)}


def test_an_edge_server_killed_again_and_again_changes_nothing(tmp_path: Path) -> None:
    """Edge server 1 is killed in every global round, whatever it is doing then."""
    killed: set[int] = set()

    def act(processes: Processes, seen: Snapshots) -> bool:
        if 1 in seen and seen[1].position[0] not in killed and seen[1].status.phase != "finished":
            killed.add(seen[1].position[0])
            os.kill(processes.pid("edge-1"), signal.SIGKILL)
        return False

    experiment = slowly(3)
    assert timeless(tormented(experiment, tmp_path / "run", act)) == timeless(records(experiment))
    assert len(killed) >= 3


class FreezeMajority:
    """Stops three of five edge servers in training, until another one says that there is no majority."""

    def __init__(self) -> None:
        self.frozen: list[int] = []
        self.said = ""

    def __call__(self, processes: Processes, seen: Snapshots) -> bool:
        """One look."""
        if not self.frozen:
            if len(seen) == 5 and min(each.position[0] for each in seen.values()) >= 1:
                self.frozen = [processes.pid(f"edge-{i}") for i in (0, 2, 3)]
                for process in self.frozen:
                    os.kill(process, signal.SIGSTOP)
            return False
        self.said = next(
            (each.status.problem for each in seen.values() if "no majority" in each.status.problem), ""
        )
        if self.said:
            for process in self.frozen:
                resume(process)
        return bool(self.said)


def test_without_a_majority_nothing_is_lost(tmp_path: Path) -> None:
    """The two that are left report it; the run continues when the others are back, to the same bits."""
    freeze, experiment = (
        FreezeMajority(),
        slowly(5, round_seconds=60.0, gossip_seconds=30.0, gone_seconds=40.0),
    )
    found = timeless(tormented(experiment, tmp_path / "run", freeze, PATIENT_LOOK_SECONDS))
    assert freeze.said.startswith("no majority: 2 of 5 edge servers are in touch, 3 are needed")
    assert found == timeless(records(experiment))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_everything_at_once(tmp_path: Path) -> None:
    """Kills and freezes of anybody, every second or so: the run ends, every round is written down once."""
    chance, frozen = Random(5), list[int]()  # noqa: S311 (repeatable chance is the point)
    next_at = time.monotonic() + 5

    def act(processes: Processes, seen: Snapshots) -> bool:
        nonlocal next_at
        if time.monotonic() < next_at or not seen:
            return False
        next_at = time.monotonic() + chance.uniform(0.5, 3.0)
        while frozen:
            resume(frozen.pop())
        name = chance.choice([*(f"edge-{i}" for i in range(5)), *(f"device-{n}" for n in range(10))])
        number = chance.choice([signal.SIGKILL, signal.SIGSTOP])
        try:
            os.kill(processes.pid(name), number)
        except ProcessLookupError:
            return False
        if number == signal.SIGSTOP:
            frozen.append(processes.pid(name))
        return False

    experiment = slowly(
        5, {"rounds": {"global": 15}}, round_seconds=6.0, gossip_seconds=6.0, gone_seconds=3.0
    )
    found = tormented(experiment, tmp_path / "run", act)
    assert [record.round for record in found] == list(range(1, 16))
    assert found[-1].accuracy is not None


def resume(process: int) -> None:
    """Lets a stopped process continue, if it is still there."""
    try:
        os.kill(process, signal.SIGCONT)
    except ProcessLookupError:
        return
