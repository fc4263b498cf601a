"""Published models: whole and listed at every moment, on edge servers and devices, and rolled back."""

import hashlib
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from cfel.api.models import predict
from cfel.cli.dispatch import run_command
from cfel.deployment.host import RealDisk
from cfel.deployment.publishing import MODEL, PublishedModels
from cfel.errors import DiskError, InputError, StorageError
from cfel.learning.models.files import load_model
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, virtual_hosts
from tests.deployment.virtual_time import run_virtually
from tests.support.memory_disk import MemoryDisk

HOME = Path("/nowhere")


def rounds(models: PublishedModels) -> list[int]:
    return [each.round for each in models.list()]


def used(models: PublishedModels) -> int:
    found = models.find_used()
    assert found is not None
    return found.round


def test_the_newest_models_are_kept_and_the_last_one_is_used() -> None:
    disk = MemoryDisk()
    models = PublishedModels(disk, HOME, kept=2)
    for number in (10, 20, 30):
        models.publish(number, b"model %d" % number)
    assert rounds(models) == [20, 30]
    assert used(models) == 30
    assert disk.files[HOME / MODEL] == b"model 30"
    files = disk.list(HOME / "published")
    assert [path.name for path in files] == ["round-00020.safetensors", "round-00030.safetensors"]


def test_a_model_that_is_rolled_back_to_stays_in_use_and_is_kept() -> None:
    models = PublishedModels(MemoryDisk(), HOME, kept=2)
    for number in (10, 20):
        models.publish(number, b"model %d" % number)
    models.use(models.find(None))
    assert used(models) == 10
    for number in (30, 40):
        models.publish(number, b"model %d" % number)
    assert (used(models), rounds(models)) == (10, [10, 30, 40])
    models.use(None)
    assert used(models) == 40


def test_a_model_that_is_not_there_or_damaged_cannot_be_rolled_back_to() -> None:
    disk = MemoryDisk()
    models = PublishedModels(disk, HOME, kept=2)
    for number in (10, 20):
        models.publish(number, b"model %d" % number)
    with pytest.raises(InputError, match="no model of round 15; kept are those of rounds 10, 20"):
        models.find(15)
    disk.files[HOME / "published" / "round-00010.safetensors"] = b"model 1"
    with pytest.raises(StorageError, match="damaged"):
        models.find(10)
    assert used(models) == 20


@pytest.mark.parametrize("writes", range(4))
def test_the_list_has_the_model_in_use_whenever_the_power_fails(writes: int) -> None:
    """A publication is three writes: the model, the list, and the model in use."""
    for seed in range(4):
        disk = MemoryDisk()
        models = PublishedModels(disk, HOME, kept=2)
        models.publish(1, b"model 1")
        disk.tear_write(writes, Random(seed), lambda: None)  # noqa: S311
        if writes < 3:
            with pytest.raises(DiskError):
                models.publish(2, b"model 2")
        disk.turn_on()
        assert used(models) in (1, 2)
        models.publish(2, b"model 2")
        assert (used(models), rounds(models)) == (2, [1, 2])


@pytest.fixture(scope="module")
def federation() -> tuple[Federation, MemoryDisk]:
    """Ended after three rounds; models were published after the second and the last."""
    disk = MemoryDisk()
    experiment = deployed({"rounds": {"global": 3}}, publish_every=2)

    async def run() -> Federation:
        async with Federation(experiment, HOME, make=virtual_hosts(disk, 0)) as federation:
            federation.start()
            await federation.finished(600.0)
            return federation

    return run_virtually(run()), disk


def test_edge_servers_and_devices_publish_the_model_after_the_last_round(
    federation: tuple[Federation, MemoryDisk], tmp_path: Path
) -> None:
    """A device publishes the model of its edge server, bit for bit."""
    played, disk = federation
    clusters = played.world.setting.fleet.cluster.tolist()
    for member in played.everybody():
        models = PublishedModels(disk, HOME / str(member))
        assert (rounds(models), used(models)) == ([2, 3], 3)
        edge = member.number if member.role == "edge" else clusters[member.number]
        file = disk.files[HOME / str(member) / MODEL]
        assert file == disk.files[HOME / f"edge-{edge}" / MODEL]
        (tmp_path / MODEL).write_bytes(file)
        loaded = load_model(tmp_path / MODEL, played.world.task.build())
        assert loaded.sha256() == played.edges[edge].server.state.model.sha256()


def test_a_published_model_runs_on_raw_samples(
    federation: tuple[Federation, MemoryDisk], tmp_path: Path
) -> None:
    played, disk = federation
    data = played.world.task.data
    (tmp_path / MODEL).write_bytes(disk.files[HOME / "device-0" / MODEL])
    np.save(tmp_path / "samples.npy", data.test_inputs[:5].numpy())
    found = predict(tmp_path / MODEL, tmp_path / "samples.npy")
    flat = played.world.task.build()
    flat.load(load_model(tmp_path / MODEL, flat))
    wanted = flat.module.eval()(data.scale(data.test_inputs[:5]))
    assert np.array_equal(found.outputs, wanted.detach().numpy())


def test_the_command_rolls_all_nodes_of_a_directory_back_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [tmp_path / "nodes" / name for name in ("device-0", "edge-0")]
    for node in nodes:
        node.mkdir(parents=True)
        for number in (10, 20):
            PublishedModels(RealDisk(), node).publish(number, b"model %d" % number)
    assert run_command(["rollback", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    digest = hashlib.sha256(b"model 10").hexdigest()
    assert [each["used"] for each in found.values()] == [10, 10]
    assert found[str(nodes[0])]["kept"][0] == {"round": 10, "sha256": digest}
    (nodes[1] / "published" / "round-00020.safetensors").write_bytes(b"damaged")
    assert run_command(["rollback", str(tmp_path), "--to", "20"]) == 1
    assert {(node / MODEL).read_bytes() for node in nodes} == {b"model 10"}
    assert run_command(["rollback", str(tmp_path / "nodes" / "device-0"), "--newest"]) == 0
    assert (nodes[0] / MODEL).read_bytes() == b"model 20"
    assert run_command(["rollback", str(tmp_path / "elsewhere")]) == 2
