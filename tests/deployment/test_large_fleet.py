"""Fleets that are planned by asking edge servers: the simulator's bits, and messages that do not grow."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.coordinator import Scales
from cfel.deployment.edge.storage import EdgeState, losses_path, read_losses
from cfel.deployment.protocol.messages import encode
from cfel.deployment.security.identity import Identity
from cfel.experiment import Experiment, experiment_toml
from cfel.launch.federation import LogMerger
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.membership import RoundLoss, merge_losses
from cfel.rounds.run_directory import create_run
from cfel.runlog import RoundRecord, RunDirectory
from cfel.runlog.directory import column_names, read_plan
from cfel.world import World
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, virtual_hosts
from tests.deployment.test_changes import HOME, Changing, play
from tests.deployment.test_changes import experiment as changing_experiment
from tests.deployment.virtual_time import run_virtually
from tests.simulation.drive import outcomes, timeless
from tests.support.memory_disk import MemoryDisk

TWO_ROUNDS = {"rounds": {"global": 2}}
EXPERIMENTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "HCEF": (),
    "HCEF+": (
        TWO_ROUNDS,
        {
            "scheme": {"name": "hcef_plus", "steps": "small_batches"},
            "budget": {"share_of_cef": 0.6},
            "fleet": {"devices": 12},
        },
    ),
    "differences to devices, some drawn": (
        {"compression": {"download_theta": 0.02, "download_bits": 8}},
        {"fleet": {"participation": 4}},
    ),
}


def as_large(experiment: Experiment) -> World:
    """The world of an experiment as if it had a large fleet."""
    return experiment.build_world().with_settings(lambda setting: replace(setting, is_large=True))


@pytest.mark.parametrize("changes", [pytest.param(each, id=name) for name, each in EXPERIMENTS.items()])
def test_equals_the_simulation(tmp_path: Path, changes: tuple[Mapping[str, Any], ...]) -> None:
    experiment = deployed(*changes)
    world = as_large(experiment)
    assert world.setting.by_clusters
    expected = outcomes(experiment, world)

    async def play() -> list[RoundRecord]:
        async with Federation(experiment, tmp_path, world=world) as federation:
            federation.start()
            await federation.finished()
            return federation.records()

    assert timeless(asyncio.run(play())) == timeless([each.record for each in expected])


def test_the_tables_of_edge_servers_are_joined(tmp_path: Path) -> None:
    """Each has logged its own devices; the run directory has the simulator's table, and all losses."""
    experiment, out = deployed({"rounds": {"global": 1}}), tmp_path / "run"
    world = as_large(experiment)
    loss = RoundLoss(1, 0, lost=(3,))

    async def play() -> None:
        async with Federation(experiment, out / "nodes", world=world) as federation:
            federation.start()
            await federation.finished()

    with create_run(out, world.setting, experiment_toml(experiment), ()) as writer:
        asyncio.run(play())
        path = losses_path(out / "nodes" / "edge-1", 1)
        path.parent.mkdir()
        path.write_bytes(msgspec.json.encode([loss]))
        LogMerger(out, writer, world, lambda _: None).merge()
    (record,) = RunDirectory.open(out).records()
    assert record.losses == (loss,)
    found, (expected,) = read_plan(out, 1), [each.plans for each in outcomes(experiment, world)]
    for name in column_names():
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()


def test_measurements_stay_with_the_edge_server_of_a_device(tmp_path: Path) -> None:
    experiment = deployed(
        {"rounds": {"global": 1, "edge": 2}, "scheme": {"name": "hcef_plus"}}, conditions="measured"
    )

    async def play() -> tuple[list[RoundRecord], list[EdgeState]]:
        async with Federation(experiment, tmp_path, world=as_large(experiment)) as federation:
            federation.start()
            await federation.finished()
            return federation.records(), [node.server.state for node in federation.edges.values()]

    records, states = asyncio.run(play())
    # How many depends on the load of this machine.
    assert [each.devices_taking_part > 0 for each in records] == [True]
    for number, state in enumerate(states):
        assert sorted(state.book) == [2 * number, 2 * number + 1]
        assert all(entry.report is not None for entry in state.book.values())
        found = state.coordinator_state
        assert found is not None
        assert found.measured is not None
        assert not found.measured.devices
        assert not found.estimates


async def lose_a_device(federation: Changing) -> None:
    """Device 1 is lost in the middle of an edge round, and comes back."""
    await federation.ask("extend", rounds=1)
    await federation.kill(Identity("device", 1))
    await asyncio.sleep(20)
    federation.start(Identity("device", 1))


async def move_a_device(federation: Changing) -> None:
    """Device 1 moves to edge 2, and takes along what is known of it."""
    await federation.ask("extend", rounds=1)
    await federation.ask("move device", device=(1,), edge=2)


@pytest.mark.parametrize("sent", ["whole models", "differences to devices"])
@pytest.mark.parametrize("operate", [lose_a_device, move_a_device])
def test_the_simulator_repeats_what_was_lost_and_moved(
    operate: Callable[[Changing], Awaitable[None]], sent: str
) -> None:
    """From the log, and from what edge servers say of their own devices."""
    asked = changing_experiment(sent)
    federation, records = play(operate, asked, as_large(asked))
    losses = [loss for record in records for loss in record.losses]
    for i in federation.edges:
        disk = federation.disks[Identity("edge", i)]
        losses += [loss for each in records for loss in read_losses(disk, HOME / f"edge-{i}", each.round)]
    assert bool(losses) == (operate is lose_a_device)
    changes = tuple(change for record in records for change in record.changes)
    fleet = replace(asked.fleet, changes=changes, losses=merge_losses(losses))
    repeated = replace(asked, fleet=fleet)
    expected = outcomes(repeated, as_large(repeated))
    assert timeless(records) == timeless([each.record for each in expected])


def weigh(devices: int) -> tuple[dict[str, int], int]:
    """The largest header of every method between edge servers, and the coordinator's state, in bytes."""
    experiment = deployed(
        {"rounds": {"global": 1, "edge": 2, "local": 1}, "scheme": {"name": "hcef_plus"}},
        {
            "fleet": {"devices": devices},
            "data": {"partition": "iid"},
            "simulation": {"device_accuracy": "never"},
        },
        join_seconds=600.0,
    )
    world, network = as_large(experiment), Scales()

    async def play() -> int:
        hosts = virtual_hosts(MemoryDisk(), 0)
        async with Federation(experiment, Path("/nowhere"), network, hosts, world) as federation:
            federation.start()
            await federation.finished(6000.0)
            return max(len(encode(node.server.state.coordinator_state)) for node in federation.edges.values())

    prepare_process()
    prepare_thread()
    state = run_virtually(play())
    return {
        name: max(size, network.answer_bytes[name]) for name, size in network.command_bytes.items()
    }, state


def test_messages_do_not_grow_with_devices() -> None:
    """Five times the devices, in three clusters: the same messages but for a few digits.

    With its model, an edge server says whose uploads are in it: 48 more devices, at most 11 bytes each.
    """
    (small, small_state), (large, large_state) = weigh(12), weigh(60)
    assert small.keys() == large.keys()
    assert large.pop("peer_model") <= small["peer_model"] + 11 * 48
    grown = {name: (small[name], size) for name, size in large.items() if size > 1.3 * small[name] + 200}
    assert not grown
    assert large_state <= 1.2 * small_state
