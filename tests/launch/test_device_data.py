"""A device with samples and a model of its own, as `cfel device --config` runs it."""

import re
import shutil
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cfel.deployment.device.memory import load_memory
from cfel.deployment.host import RealDisk
from cfel.errors import InputError
from cfel.experiment import experiment_toml
from cfel.launch.federation import LaunchOptions, Processes, prepare_nodes
from cfel.launch.node import load_samples, read_node, write_node
from cfel.learning.data import digits
from cfel.plugins import import_from
from cfel.runlog.records import read_log
from tests.simulation.drive import tiny

EXAMPLES = Path(__file__).parents[2] / "examples"


def a_few(path: Path, count: int = 20) -> None:
    """A file as `examples/custom_device_data.py` reads it."""
    data = digits()
    np.savez(path, images=data.train_inputs[:count].numpy(), digits=data.train_targets[:count].numpy())


@pytest.mark.timeout(240)
@pytest.mark.long
def test_runs_as_a_process(tmp_path: Path) -> None:
    """Two edge servers, a device of the experiment and one with 20 samples that nobody else can read."""
    pytest.importorskip("grpc")
    shutil.copy(EXAMPLES / "custom_model.py", tmp_path)
    shutil.copy(EXAMPLES / "custom_device_data.py", tmp_path)
    a_few(tmp_path / "samples.npz")
    import_from(tmp_path)
    experiment = tiny(
        rounds={"global": 2, "edge": 1},
        fleet={"devices": 2, "clusters": 2},
        model={"name": "custom_model:residual"},
        deployment={"election_seconds": 1.0, "gone_seconds": 60.0},
    )
    world = experiment.build_world()
    (tmp_path / "experiment.toml").write_text(experiment_toml(experiment.resolve(world)))
    configurations = prepare_nodes(experiment, world, tmp_path, LaunchOptions(import_from=(tmp_path,)))
    mine = next(path for path in configurations if path.stem == "device-0")
    file = read_node(mine)
    write_node(mine, replace(file, data="custom_device_data:samples", data_path=tmp_path / "samples.npz"))
    command = [sys.executable, "-m", "cfel", "device", "--config", str(mine), "--log", str(tmp_path / "log")]
    with Processes(path for path in configurations if path != mine) as others:
        device = subprocess.Popen(command)
        try:
            deadline = time.monotonic() + 120
            while device.poll() is None and time.monotonic() < deadline:
                others.restart_dead()
                time.sleep(0.1)
            assert device.returncode == 0, (tmp_path / "log").read_text()
        finally:
            device.kill()
            device.wait()
    logs = [read_log(path).records for path in tmp_path.glob("nodes/edge-*/rounds.jsonl")]
    assert [line.devices_taking_part for line in logs[0]] == [2, 2]
    sent = load_memory(RealDisk(), tmp_path / "nodes" / "device-0" / "memory.bin").sent
    assert sent is not None
    assert sent.upload.samples == 20


def test_all_samples_are_the_devices(tmp_path: Path) -> None:
    a_few(tmp_path / "samples.npz", 7)
    import_from(EXAMPLES)
    world = tiny().build_world()
    held = load_samples("custom_device_data:samples", tmp_path / "samples.npz", world)
    assert held.samples == 7
    assert torch.equal(held.data.train_inputs, digits().train_inputs[:7])
    assert held.data.normalisation == world.task.data.normalisation


def test_the_file_of_the_documents_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines in docs/guides/deploy.md that make a `samples.npz`, and the range they speak of."""
    page = (EXAMPLES.parent / "docs" / "guides" / "deploy.md").read_text(encoding="utf-8")
    (lines,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "savez" in code)
    monkeypatch.chdir(tmp_path)
    exec(lines, {})  # noqa: S102 — our own document
    import_from(EXAMPLES)
    held = load_samples("custom_device_data:samples", tmp_path / "samples.npz", tiny().build_world())
    pixels = held.data.train_inputs
    assert (tuple(pixels.shape), pixels.dtype) == ((20, 1, 8, 8), torch.uint8)
    assert np.array_equal(np.unique(pixels), np.unique(digits().train_inputs))


def test_samples_that_cannot_be_read(tmp_path: Path) -> None:
    import_from(EXAMPLES)
    name, world, path = "custom_device_data:samples", tiny().build_world(), tmp_path / "samples.npz"
    with pytest.raises(InputError, match=f"^data_path = '{path}': does not exist$"):
        load_samples(name, path, world)
    with pytest.raises(InputError, match=f"^data = '{name}' .*: ValueError"):
        load_samples(name, None, world)
    np.savez(path, pictures=np.zeros(3))
    with pytest.raises(InputError, match=f"data_path = '{path}': KeyError: 'images"):
        load_samples(name, path, world)
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match=f"failed with data_path = '{path}': "):
        load_samples(name, path, world)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("torch.zeros(3, 1, 8, 8, dtype=torch.uint8)", "must return two tensors"),
        (
            "(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))",
            "inputs: samples",
        ),
        ("(torch.zeros(3, 1, 8, 8), torch.zeros(3, dtype=torch.int64))", "type torch.float32"),
        ("(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(3))", "targets: samples of"),
        (
            "(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.full((3,), 10))",
            "targets from 10 to 10, .* 0 to 9",
        ),
        ("(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))", "3 train inputs"),
    ],
)
def test_what_does_not_fit_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, reason: str
) -> None:
    name = f"wrong_{zlib.crc32(given.encode())}"
    (tmp_path / f"{name}.py").write_text(f"import torch\n\n\ndef samples(path):\n    return {given}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=reason):
        load_samples(f"{name}:samples", None, tiny().build_world())
