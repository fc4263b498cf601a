"""Checkpoints: exact, whole, checked, and written beside training."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cfel.errors import InputError, RunDirectoryError, StorageError
from cfel.runlog import Checkpoint, CheckpointWriter, read_checkpoint, write_checkpoint
from cfel.runlog import checkpoint as background_module

stored_types = st.sampled_from(["f2", "f4", "f8", "i1", "i4", "i8", "u1", "u8", "?"])
tensors = st.dictionaries(
    st.text(min_size=1).filter(lambda name: name != "__metadata__"),
    stored_types.flatmap(
        lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
    ),
    max_size=5,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(tensors, st.dictionaries(st.text(), json_values), st.integers(1, 100))
def test_a_checkpoint_comes_back_bit_for_bit(
    tmp_path: Path, named: dict[str, np.ndarray], state: dict[str, object], shard_bytes: int
) -> None:
    """Whatever the shapes (scalars and empty arrays too), types, values and shard size."""
    write_checkpoint(tmp_path, Checkpoint(7, named, state), shard_bytes)
    again = read_checkpoint(tmp_path)
    assert again is not None
    assert (again.round, again.state, again.tensors.keys()) == (7, state, named.keys())
    for name, array in named.items():
        found = again.tensors[name]
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_without_a_checkpoint_the_answer_is_none(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None


def test_shards_close_at_their_size_and_never_split_a_tensor(tmp_path: Path) -> None:
    """a, b of 40 bytes fit in 100; c (400) stands alone; d (40) starts the third file."""
    sizes = {"a": 10, "b": 10, "c": 100, "d": 10}
    write_checkpoint(tmp_path, Checkpoint(0, {name: np.ones(n, "f4") for name, n in sizes.items()}, {}), 100)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_the_old_files_go_when_the_new_checkpoint_is_there(tmp_path: Path) -> None:
    for number in range(3):
        write_checkpoint(tmp_path, Checkpoint(number, {"w": np.full(2, number)}, {"n": number}))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["generation-00002-00000.safetensors", "generation-00002-state.json", "manifest.json"]


def test_a_transposed_view_is_stored_as_seen(tmp_path: Path) -> None:
    """A non-contiguous view must not be written in the memory order of its parent."""
    view = np.arange(6).reshape(2, 3).T
    write_checkpoint(tmp_path, Checkpoint(0, {"w": view}, {}))
    again = read_checkpoint(tmp_path)
    assert again is not None
    np.testing.assert_array_equal(again.tensors["w"], [[0, 3], [1, 4], [2, 5]])


@pytest.mark.parametrize("name", ["generation-00000-00000.safetensors", "generation-00000-state.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, Checkpoint(0, {"w": np.arange(9)}, {"a": 1}))
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunDirectoryError, match=f"{name} is damaged: its SHA-256"):
        read_checkpoint(tmp_path)
    (tmp_path / name).write_bytes(content[:-1])
    with pytest.raises(RunDirectoryError, match=f"{name} is damaged: {len(content) - 1} bytes instead"):
        read_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(RunDirectoryError, match=f"{name} of the checkpoint is missing"):
        read_checkpoint(tmp_path)


def test_a_damaged_manifest_is_reported(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"generation": 1')
    with pytest.raises(RunDirectoryError, match=r"manifest\.json is damaged"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"generation": -1}, "generation = -1"),
        ({"round": 10**10}, "round = 10000000000"),
        ({"files": [{"name": "../../other", "bytes": 1, "sha256": ""}]}, r"files\[0\].name = '../../other'"),
        ({"files": [{"name": "generation-00000-state.json", "bytes": 1}]}, "`sha256`"),
        ({"more": 1}, "`more`"),
    ],
)
def test_a_manifest_of_somebody_else_is_checked(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    write_checkpoint(tmp_path, Checkpoint(0, {}, {}))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | changes))
    with pytest.raises(RunDirectoryError, match=rf"manifest\.json is damaged: .*{words}"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (np.array(["a"]), "cannot be stored"),
        (np.array([1j]), "cannot be stored"),
        ([[1], [1, 2]], "viewed as"),
    ],
)
def test_what_cannot_be_stored_is_rejected_at_once(tensor: object, words: str) -> None:
    with pytest.raises(InputError, match=rf"tensors\['w'\].*{words}"):
        Checkpoint(0, {"w": tensor}, {})  # type: ignore[dict-item]


def test_a_state_that_is_not_json_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="state: cannot be written as JSON"):
        write_checkpoint(tmp_path, Checkpoint(0, {}, {"a": object()}))
    assert read_checkpoint(tmp_path) is None


def test_training_may_change_tensors_while_they_are_written(tmp_path: Path) -> None:
    """Submitted at 1, changed to 2 before the writer gets to run: 1 is what comes back."""
    weights = np.ones(1000)
    writer = CheckpointWriter(tmp_path)
    writer.submit(Checkpoint(0, {"w": weights}, {}))
    weights[:] = 2
    writer.close()
    again = read_checkpoint(tmp_path)
    assert again is not None
    assert set(again.tensors["w"]) == {1.0}


def test_at_most_one_write_is_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`submit` returns while the write waits at a gate; the second one starts only after the first ended."""
    gate, order = threading.Event(), []

    def slow_write(_directory: Path, checkpoint: Checkpoint) -> None:
        assert gate.wait(10)
        order.append(checkpoint.round)

    monkeypatch.setattr(background_module, "write_checkpoint", slow_write)
    writer = CheckpointWriter(tmp_path)
    writer.submit(Checkpoint(0, {}, {}))
    assert order == []
    threading.Timer(0.05, gate.set).start()
    writer.submit(Checkpoint(1, {}, {}))
    assert order[0] == 0
    writer.close()
    assert order == [0, 1]


def test_a_failed_write_is_raised_once_at_the_next_call(tmp_path: Path) -> None:
    """The directory is missing: the failure waits for the next call; after it the writer is usable again."""
    writer = CheckpointWriter(tmp_path / "later")
    writer.submit(Checkpoint(0, {"w": np.ones(3)}, {}))
    with pytest.raises(StorageError, match="does not exist"):
        writer.submit(Checkpoint(1, {}, {}))
    (tmp_path / "later").mkdir()
    writer.submit(Checkpoint(2, {"w": np.ones(3)}, {}))
    writer.close()
    again = read_checkpoint(tmp_path / "later")
    assert again is not None
    assert again.round == 2
