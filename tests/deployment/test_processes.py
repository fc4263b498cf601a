"""A federation of real processes over TLS: equal to the simulation, also when killed and interrupted."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from cfel.deployment.node import ask_status
from cfel.deployment.security.certificates import revoke
from cfel.deployment.security.identity import Identity
from cfel.launch.federation import LaunchOptions, Processes, launch_federation
from cfel.launch.node import read_node
from cfel.learning.edge import read_edge_models
from cfel.learning.models.flat import model_sha256
from cfel.runlog import RoundRecord, RunDirectory
from cfel.status import Status
from tests.deployment.conftest import deployed
from tests.simulation.drive import records, timeless

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]


def run(out: Path, options: LaunchOptions, time_scale: float = 0.0) -> list[dict[str, Any]]:
    return timeless(launch_federation(deployed(election_seconds=1.0, time_scale=time_scale), out, options))


def shown(out: Path) -> Status:
    """What the dashboard of edge server 0 shows."""
    address = read_node(out / "nodes" / "edge-0.toml").dashboard
    with urlopen(f"http://{address}/status.json", timeout=20) as answer:
        return Status.from_json(answer.read())


def test_equals_the_simulation(tmp_path: Path, simulated: list[dict[str, Any]]) -> None:
    seen: list[dict[int, Status | str]] = []
    pages: list[Status] = []

    def look(record: RoundRecord) -> None:
        if record.round == 1:
            node = read_node(tmp_path / "run" / "nodes" / "operator-0.toml").node
            seen.append(asyncio.run(ask_status(node)))
            pages.append(shown(tmp_path / "run"))

    # Slowed down, so that there is somebody to look at after the first round.
    assert run(tmp_path / "run", LaunchOptions(on_round=look), time_scale=3e-3) == simulated
    (answers,) = seen
    alive = [answer for answer in answers.values() if isinstance(answer, Status)]
    assert alive, answers
    assert alive[0].term
    assert (alive[0].rounds, alive[0].edge_rounds) == (3, 2)
    assert [cluster.size for cluster in alive[0].clusters] == [2, 2, 2]
    # Not every edge server has written the round down when the first of them has.
    assert {each.history[0].round for each in alive if each.history} == {1}
    (page,) = pages
    assert (page.name, page.scheme, page.rounds) == ("demo", "hcef", 3)
    directory = RunDirectory.open(tmp_path / "run")
    assert directory.plan_rounds() == (1, 2, 3)
    checkpoint = directory.checkpoint()
    assert checkpoint is not None
    assert (
        model_sha256(read_edge_models(checkpoint, 3, deployed().build_world().start))
        == simulated[-1]["model_sha256"]
    )


def test_killed_and_started_again(tmp_path: Path, simulated: list[dict[str, Any]]) -> None:
    """Kill -9 of one edge server after the other and of a device; all come back, and nothing is different."""
    started: list[Processes] = []

    def kill(record: RoundRecord) -> None:
        if record.round == 3:
            return
        for name in (f"edge-{record.round - 1}", f"device-{record.round}"):
            os.kill(started[0].pid(name), signal.SIGKILL)

    # Slowed down, so that they are still at work when they are to be killed.
    options = LaunchOptions(on_start=started.append, on_round=kill)
    assert run(tmp_path / "run", options, time_scale=3e-3) == simulated


@pytest.mark.long
def test_interrupted_and_resumed(tmp_path: Path, simulated: list[dict[str, Any]]) -> None:
    out = tmp_path / "run"
    rounds: list[int] = []
    stopping = LaunchOptions(
        on_round=lambda record: rounds.append(record.round), interrupted=lambda: bool(rounds)
    )
    with pytest.raises(KeyboardInterrupt):
        run(out, stopping)
    assert len(RunDirectory.open(out).records()) < 3
    assert run(out, LaunchOptions(resume=True)) == simulated


@pytest.mark.long
def test_a_revoked_device_is_rejected_and_the_others_continue(tmp_path: Path) -> None:
    """Interrupted afterwards and resumed: it stays outside, though everybody else gets a new certificate."""
    experiment = deployed({"rounds": {"global": 5}}, election_seconds=1.0, gone_seconds=1.0)
    out, lost, rounds = tmp_path / "run", list[str](), list[RoundRecord]()

    def revoke_first(record: RoundRecord) -> None:
        rounds.append(record)
        if record.round == 1:
            revoke(out / "certificates", Identity("device", 3))

    def until_lost() -> bool:
        return bool(lost) and len(rounds) < 5

    with pytest.raises(KeyboardInterrupt):
        launch_federation(
            experiment, out, LaunchOptions(on_round=revoke_first, on_loss=lost.append, interrupted=until_lost)
        )
    assert lost == ["device-3"]
    log = (out / "nodes" / "device-3.log").read_text()
    assert log.splitlines()[-1].endswith("the certificate of device-3 was revoked")
    found = launch_federation(experiment, out, LaunchOptions(resume=True, on_loss=lost.append))
    assert lost == ["device-3", "device-3"]
    assert [record.round for record in found] == [1, 2, 3, 4, 5]
    assert (found[0].devices_taking_part, found[-1].devices_taking_part) == (6, 5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sixty_four_devices_in_eight_clusters(tmp_path: Path) -> None:
    """72 processes; on two cores heartbeats are late now and then, so members are given more time."""
    experiment = deployed(
        {"fleet": {"devices": 64, "clusters": 8}, "rounds": {"global": 2}},
        election_seconds=5.0,
        round_seconds=120.0,
        gossip_seconds=60.0,
        gone_seconds=60.0,
        join_seconds=300.0,
    )
    assert timeless(launch_federation(experiment, tmp_path / "run", LaunchOptions())) == timeless(
        records(experiment)
    )
