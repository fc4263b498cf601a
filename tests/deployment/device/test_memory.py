"""What a device remembers, and what it does with an upload that was not used."""

from pathlib import Path

import pytest
import torch

from cfel.deployment.device.memory import (
    Memory,
    Sent,
    load_memory,
    return_unused,
    save_memory,
)
from cfel.deployment.host import RealDisk
from cfel.deployment.payloads import make_upload
from cfel.errors import RunBusyError
from cfel.learning.compressors import SparseUpdate
from cfel.learning.device_messages import DeviceReport, DeviceState, Order
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel

DISK = RealDisk()
MODEL = FlatModel(torch.zeros(4), torch.ones(1))
UPDATE = SparseUpdate(4, torch.tensor([1, 3], dtype=torch.int32), torch.tensor([2.0, -1.0]))
REPORT = DeviceReport(0, UPDATE, torch.zeros(1), None, 1, 0.5, 3)
UPLOAD = make_upload(REPORT, Order(0, 5, 1, 0, 1.0, 0.5, 3, MODEL))
SENT = Sent(((5, 1), "abc", 1.0, 0.5, 1.0), UPLOAD)
STATE = DeviceState(
    {"momentum": torch.tensor([0.1, 0.2, 0.3, 0.4]), "steps": torch.tensor([3.0])},
    torch.tensor([1.0, 1.0, 1.0, 1.0]),
    Estimates(2.0, 3.0),
)


def test_a_directory_is_one_devices(tmp_path: Path) -> None:
    home = tmp_path / "new" / "device-0"
    with DISK.reserve(home):
        with pytest.raises(RunBusyError, match=f"{home}: another process"), DISK.reserve(home):
            pass
        with DISK.reserve(tmp_path / "device-1"):
            pass
    with DISK.reserve(home):
        save_memory(DISK, home / "memory.bin", Memory())


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "memory.bin"
    assert load_memory(DISK, path).sent is None
    save_memory(DISK, path, Memory(STATE, SENT))
    found = load_memory(DISK, path)
    assert found.state.memory.keys() == STATE.memory.keys()
    assert all(torch.equal(found.state.memory[name], STATE.memory[name]) for name in STATE.memory)
    assert found.state.estimates == STATE.estimates
    assert found.sent is not None
    assert found.sent.key == SENT.key
    assert found.sent.upload.content.join() == UPLOAD.content.join()
    assert (found.sent.upload.round, found.sent.upload.steps) == (UPLOAD.round, UPLOAD.steps)
    save_memory(DISK, path, Memory())
    assert load_memory(DISK, path).state == DeviceState()


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "memory.bin"
    save_memory(DISK, path, Memory(STATE, SENT))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert load_memory(DISK, path).state == DeviceState()
    assert (tmp_path / "memory.bin.damaged").read_bytes() == content
    assert not path.exists()


def test_an_unused_upload_returns_to_the_residual() -> None:
    memory = Memory(STATE, SENT, unused=((4, 0),))
    used = return_unused(memory, (5, 1))
    assert (used.state, used.sent, used.unused) == (STATE, SENT, ())
    returned = return_unused(memory, (5, 0))
    assert returned.unused == ((4, 0), (5, 1))
    assert returned.state.residual is not None
    assert returned.state.residual.tolist() == [1.0, 3.0, 1.0, 0.0]
    assert returned.sent is None
    assert STATE.residual is not None
    assert STATE.residual.tolist() == [1.0] * 4
