"""What a device remembers, and what it does with an upload that was not used."""

from pathlib import Path

import pytest
import torch

from cfel.deployment.device.memory import (
    Memory,
    Sent,
    alone_in,
    load_memory,
    save_memory,
    with_unused_returned,
)
from cfel.deployment.payloads import upload
from cfel.errors import RunBusyError, StorageError
from cfel.learning.compression.compressors import SparseUpdate
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel

MODEL = FlatModel(torch.zeros(4), torch.ones(1))
UPDATE = SparseUpdate(4, torch.tensor([1, 3], dtype=torch.int32), torch.tensor([2.0, -1.0]))
REPORT = DeviceReport(0, UPDATE, torch.zeros(1), None, 1, 0.5, 3)
MESSAGE = upload(REPORT, DeviceOrder(0, 5, 1, 0, 1.0, 0.5, 3, MODEL))
SENT = Sent((5, 1, "abc", 1.0, 0.5), MESSAGE.header, MESSAGE.body)
STATE = DeviceState(
    torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1.0, 1.0, 1.0, 1.0]), Estimates(2.0, 3.0)
)


def test_a_directory_is_one_devices(tmp_path: Path) -> None:
    home = tmp_path / "new" / "device-0"
    with alone_in(home):
        with pytest.raises(RunBusyError, match=f"{home}: another device's process"), alone_in(home):
            pass
        with alone_in(tmp_path / "device-1"):
            pass
    with alone_in(home):
        save_memory(home / "memory.bin", Memory())


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "memory.bin"
    assert load_memory(path).sent is None
    save_memory(path, Memory(STATE, SENT))
    found = load_memory(path)
    assert found.state.momentum is not None
    assert STATE.momentum is not None
    assert torch.equal(found.state.momentum, STATE.momentum)
    assert found.state.estimates == STATE.estimates
    assert found.sent is not None
    assert (found.sent.key, found.sent.body) == (SENT.key, SENT.body)
    save_memory(path, Memory())
    assert load_memory(path).state == DeviceState()


def test_a_damaged_file_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "memory.bin"
    save_memory(path, Memory(STATE, SENT))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageError, match="damaged"):
        load_memory(path)


def test_an_unused_upload_returns_to_the_residual() -> None:
    memory = Memory(STATE, SENT)
    assert with_unused_returned(memory, (5, 1)) is memory
    returned = with_unused_returned(memory, (5, 0))
    assert returned.state.residual is not None
    assert returned.state.residual.tolist() == [1.0, 3.0, 1.0, 0.0]
    assert returned.sent is None
    assert STATE.residual is not None
    assert STATE.residual.tolist() == [1.0] * 4
