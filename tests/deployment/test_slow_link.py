"""Devices behind slow links take part: over gRPC with certificates, through a shaped link."""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.node import Node, run_device, run_edge
from cfel.deployment.protocol.calls import ExperimentCheck
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.experiment import Experiment, parse_experiment
from cfel.launch.federation import find_free_ports
from cfel.plugins import ANY_CODE
from cfel.runlog import RoundRecord
from cfel.runlog.directory import read_plan
from cfel.runlog.records import read_log
from tests.support.link_shaper import Link, Relay, shape

ROUNDS = 2
SLOW = Identity("device", 0)
# 200 kbit/s and a round trip of 500 ms: a model of 63 kB takes 2.5 s one way.
MOBILE = Link(200_000, delay_seconds=0.25)


def one_cluster(**deployment: Any) -> Experiment:
    """One edge server with two devices that train a model of 63 kB, with the default keep-alive."""
    return parse_experiment(
        {
            "rounds": {"global": ROUNDS, "edge": 1, "local": 1},
            "fleet": {"devices": 2, "clusters": 1},
            "topology": {"kind": "complete"},
            "model": {"name": "small_cnn"},
            "scheme": {"name": "cef"},
            "simulation": {"evaluate_samples": 10},
            "deployment": {"round_seconds": 60.0, "linger_seconds": 0.0, **deployment},
        },
        ANY_CODE,
    )


async def _do_nothing(_: Relay) -> None: ...


async def run_behind(
    link: Link,
    experiment: Experiment,
    directory: Path,
    disturb: Callable[[Relay], Coroutine[None, None, None]] = _do_nothing,
) -> list[RoundRecord]:
    """Runs the federation with device 0 behind the link, while `disturb` does what it likes with the link."""
    world = experiment.build_world()
    (port,) = find_free_ports("127.0.0.1", 1)
    make_authority(directory)
    check = ExperimentCheck({})

    def node(who: Identity, at: int) -> Node:
        issue(directory, who, 1.0)
        return Node(who, (f"127.0.0.1:{at}",), directory / str(who), directory, energy="model")

    async with shape(link, "127.0.0.1", port) as relay:
        edge = run_edge(world, experiment.deployment, node(Identity("edge", 0), port), check)
        beside = [
            asyncio.create_task(run_device(world, experiment.deployment, node(SLOW, relay.port), check)),
            asyncio.create_task(
                run_device(world, experiment.deployment, node(Identity("device", 1), port), check)
            ),
            asyncio.create_task(disturb(relay)),
        ]
        try:
            async with asyncio.timeout(100):
                await edge
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
    return list(read_log(directory / "edge-0" / "rounds.jsonl").records)


def taking_part(directory: Path) -> list[bool]:
    """Round by round, whether the device behind the link took part."""
    tables = [read_plan(directory / "edge-0", number) for number in range(1, ROUNDS + 1)]
    return [SLOW.number in table.device.tolist() for table in tables]


@pytest.mark.long
def test_a_device_behind_a_mobile_link_takes_part_in_every_round(tmp_path: Path) -> None:
    records = asyncio.run(run_behind(MOBILE, one_cluster(), tmp_path))
    assert [record.devices_taking_part for record in records] == [2, 2]
    assert taking_part(tmp_path) == [True, True]


# On a busy machine a transfer can miss its round: `make chaos` runs it, CI does not.
@pytest.mark.slow
def test_transfers_resume_where_they_broke(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The link breaks every 4 s, in which it carries 100 kB at most; a round takes twice 63 kB and more."""
    caplog.set_level(logging.INFO)

    async def disturb(relay: Relay) -> None:
        while True:
            await asyncio.sleep(4.0)
            relay.break_connections()

    records = asyncio.run(run_behind(MOBILE, one_cluster(), tmp_path, disturb))
    assert [record.devices_taking_part for record in records] == [2, 2]
    resumed = [int(at) for at in re.findall(r"resumes at byte (\d+)", caplog.text)]
    assert any(at > 0 for at in resumed)
