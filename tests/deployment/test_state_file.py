"""Files of tensors and values: what is written is safetensors behind a digest, to the last bit."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from cfel.deployment import state_file
from cfel.deployment.host import RealDisk
from cfel.errors import StorageError

TENSORS: Mapping[str, NDArray[Any]] = {
    "odd": np.arange(3, dtype=np.uint8),
    "wide": np.arange(6, dtype=np.float64).reshape(2, 3),
    "model": np.linspace(0, 1, 5, dtype=np.float32),
    "columns": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    "empty": np.zeros((0, 4), dtype=np.float32),
}


@pytest.mark.parametrize("names", [(), ("odd",), tuple(TENSORS)])
def test_there_and_back(tmp_path: Path, names: tuple[str, ...]) -> None:
    state = b"any bytes \x00\xff"
    state_file.save(RealDisk(), tmp_path / "file", {name: TENSORS[name] for name in names}, state)
    found = state_file.load(RealDisk(), tmp_path / "file")
    assert found is not None
    tensors, values = found
    assert values == state
    assert tensors.keys() == set(names)
    for name in names:
        assert tensors[name].dtype == TENSORS[name].dtype
        np.testing.assert_array_equal(tensors[name], TENSORS[name])


def test_safetensors_reads_it(tmp_path: Path) -> None:
    state_file.save(RealDisk(), tmp_path / "file", TENSORS, b"")
    whole = (tmp_path / "file").read_bytes()
    assert hashlib.sha256(whole[32:]).digest() == whole[:32]
    np.testing.assert_array_equal(safetensors.numpy.load(whole[32:])["model"], TENSORS["model"])


def test_damage_is_seen(tmp_path: Path) -> None:
    state_file.save(RealDisk(), tmp_path / "file", TENSORS, b"")
    whole = bytearray((tmp_path / "file").read_bytes())
    whole[-1] ^= 1
    (tmp_path / "file").write_bytes(whole)
    with pytest.raises(StorageError, match="damaged"):
        state_file.load(RealDisk(), tmp_path / "file")
