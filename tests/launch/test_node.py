"""How a node's process starts and fails; the node itself is tested in `tests/deployment`."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from cfel.deployment.node import Node, run_device, run_edge
from cfel.deployment.security.experiment_check import ExperimentCheck
from cfel.deployment.security.identity import Identity
from cfel.errors import DashboardError, InputError
from cfel.launch.node import run_until_stopped
from tests.simulation.drive import tiny

SAME = ExperimentCheck({})


async def fail(error: Exception) -> None:
    raise error


async def together(*errors: Exception) -> None:
    """As an edge server: one task ends all others."""
    async with asyncio.TaskGroup() as outer:
        outer.create_task(asyncio.sleep(60))
        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(fail(error))


def test_the_expected_error_of_a_group_of_tasks_is_reported() -> None:
    with pytest.raises(DashboardError, match="taken") as reported:
        asyncio.run(run_until_stopped(together(DashboardError("taken"))))
    assert reported.value.__suppress_context__


def test_a_defect_is_reported_with_its_trace() -> None:
    with pytest.raises(ExceptionGroup) as reported:
        asyncio.run(run_until_stopped(together(DashboardError("taken"), ZeroDivisionError())))
    assert reported.group_contains(ZeroDivisionError)


def test_a_node_that_the_experiment_does_not_have(tmp_path: Path) -> None:
    experiment = tiny(fleet={"devices": 4, "clusters": 2})
    world, deployment = experiment.build_world(), experiment.deployment
    node = Node(Identity("edge", 7), ("a:1", "b:2"), tmp_path, tmp_path)
    with pytest.raises(InputError, match="edge-7: the experiment has edge servers 0 to 1"):
        asyncio.run(run_edge(world, deployment, node, SAME))
    node = replace(node, identity=Identity("device", 4))
    with pytest.raises(InputError, match="device-4: the experiment has devices 0 to 3"):
        asyncio.run(run_device(world, deployment, node, SAME))
    node = replace(node, identity=Identity("device", 3), addresses=("a:1",))
    with pytest.raises(InputError, match="device-3: addresses has 1 entries, the experiment 2 edge servers"):
        asyncio.run(run_device(world, deployment, node, SAME))
