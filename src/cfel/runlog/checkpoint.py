"""Checkpoints: named tensors and a JSON state, replaced as a whole.

    checkpoint/
    ├── manifest.json                        names the files of the checkpoint, their sizes and SHA-256s
    ├── generation-00003-00000.safetensors   shards of about 64 MB (a tensor is never split)
    ├── generation-00003-00001.safetensors
    └── generation-00003-state.json

A new checkpoint is written as files of the next generation, next to the old ones. Renaming the new manifest
over the old one is the single step that makes it current; only then are the old files removed. So at any time
the manifest names a complete checkpoint, and files it does not name are leftovers of a killed write.
(Renaming whole directories cannot do this: POSIX does not replace a directory that has files in it.)

Tensors are NumPy arrays here, whatever library they come from; nothing is pickled.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import safetensors.numpy
from msgspec import Meta
from numpy.typing import NDArray
from safetensors import SafetensorError

from cfel.durable import (
    check_directory,
    read_bytes,
    remove_quietly,
    replace_file,
    replacing,
    translate_os_errors,
    translate_parse_errors,
)
from cfel.errors import InputError, RunDirectoryError, StorageError
from cfel.validation import convert_document, parse_json

SHARD_BYTES = 64 * 1024**2
"""Files are closed when they reach this size; it bounds what a reader holds in memory twice."""

_KINDS = "biuf"
_ATTEMPTS = 5
_NAME = r"^generation-[0-9]{5,10}-(?:[0-9]{5,10}\.safetensors|state\.json)\Z"
_Number = Annotated[int, Meta(ge=0, le=10**9)]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Everything needed to resume after a round."""

    round: int  # the last global round it includes
    # By name; anything NumPy can view as an array of numbers or truth values (a torch tensor must be detached
    # and on the CPU).
    tensors: Mapping[str, NDArray[Any]]
    state: Mapping[str, Any]  # everything else, as JSON values; floats are restored exactly

    def __post_init__(self) -> None:
        """Views tensors as contiguous arrays; copies none that is one already."""
        if self.round < 0:
            raise InputError(f"round: {self.round} is not >= 0")
        object.__setattr__(
            self, "tensors", {name: _array(name, value) for name, value in self.tensors.items()}
        )

    def copy(self) -> "Checkpoint":
        return Checkpoint(
            self.round, {name: value.copy() for name, value in self.tensors.items()}, self.state
        )


def _array(name: str, value: object) -> NDArray[Any]:
    try:
        array = np.asarray(value, order="C")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"tensors[{name!r}]: cannot be viewed as an array: {error}") from error
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > np.dtype(np.float64).itemsize:
        raise InputError(f"tensors[{name!r}]: type {array.dtype} cannot be stored")
    return array


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # A name like "../../other" would lead out of the directory.
    name: Annotated[str, Meta(pattern=_NAME)]
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    generation: _Number
    round: _Number
    files: tuple[_File, ...]


def write_checkpoint(directory: Path, checkpoint: Checkpoint, shard_bytes: int | None = None) -> None:
    """Replaces the checkpoint in `directory`; needs space for both until it is done.

    If a file cannot be written, the old checkpoint is still there, complete.
    """
    old = _read_manifest(directory)
    generation = old.generation + 1 if old else 0
    prefix = f"generation-{generation:05d}-"
    try:
        state = json.dumps(dict(checkpoint.state)).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"state: cannot be written as JSON: {error}") from error
    try:
        names = [
            *_write_shards(directory, prefix, checkpoint.tensors, shard_bytes or SHARD_BYTES),
            f"{prefix}state.json",
        ]
        replace_file(directory / names[-1], state, private=True)
        manifest = _Manifest(
            generation, checkpoint.round, tuple(_describe(directory / name) for name in names)
        )
        content = json.dumps(msgspec.to_builtins(manifest), indent=1).encode()
        replace_file(directory / "manifest.json", content, private=True)
    except StorageError:
        remove_old_files(directory)
        raise
    remove_old_files(directory)


def _write_shards(
    directory: Path, prefix: str, tensors: Mapping[str, NDArray[Any]], shard_bytes: int
) -> Iterator[str]:
    for index, shard in enumerate(_shards(tensors, shard_bytes)):
        name = f"{prefix}{index:05d}.safetensors"
        with replacing(directory / name, private=True) as temporary:
            _save(temporary, shard)
        yield name


def _save(path: Path, shard: dict[str, NDArray[Any]]) -> None:
    """Writes without copying a tensor or holding the interpreter lock; a failure is an `OSError`."""
    try:
        safetensors.numpy.save_file(shard, path)
    except SafetensorError as error:
        # safetensors hides the error number of the system in its message.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _shards(tensors: Mapping[str, NDArray[Any]], shard_bytes: int) -> Iterator[dict[str, NDArray[Any]]]:
    shard: dict[str, NDArray[Any]] = {}
    size = 0
    for name in sorted(tensors):
        if shard and size + tensors[name].nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensors[name]
        size += tensors[name].nbytes
    if shard:
        yield shard


def _describe(path: Path) -> _File:
    with translate_os_errors("read", path), path.open("rb") as file:
        return _File(path.name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def read_checkpoint(directory: Path) -> Checkpoint | None:
    """The checkpoint in `directory`, every file checked against its SHA-256; None when there is none yet.

    May be called while another process replaces the checkpoint.
    """
    for _ in range(_ATTEMPTS):
        manifest = _read_manifest(directory)
        if manifest is None:
            return None
        try:
            return _read_files(directory, manifest)
        except FileNotFoundError as error:
            missing = error.filename
            # A new manifest means that another process replaced the checkpoint meanwhile: read that one.
            if _read_manifest(directory) == manifest:
                break
    raise RunDirectoryError(f"{directory}: {Path(missing).name} of the checkpoint is missing")


def _read_files(directory: Path, manifest: _Manifest) -> Checkpoint:
    tensors: dict[str, NDArray[Any]] = {}
    state: Any = {}
    for file in manifest.files:
        path = directory / file.name
        content = _read_verified(path, file)
        with translate_parse_errors(path):
            if file.name.endswith(".safetensors"):
                tensors |= safetensors.numpy.load(content)
            else:
                state = parse_json(content.decode(), finite=False)
    with translate_parse_errors(directory):
        if not isinstance(state, dict):
            raise InputError(f"its state is a {type(state).__name__}, not an object")
        return Checkpoint(manifest.round, tensors, state)


def _read_verified(path: Path, file: _File) -> bytes:
    try:
        # Looked at first, as a file may be larger than the memory.
        if (size := path.lstat().st_size) != file.bytes:
            raise RunDirectoryError(f"{path} is damaged: {size} bytes instead of {file.bytes}")
        content = read_bytes(path, max_bytes=None)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise RunDirectoryError(f"{path} is damaged: its SHA-256 is not the one it was written with")
    return content


def _read_manifest(directory: Path) -> _Manifest | None:
    check_directory(directory)
    path = directory / "manifest.json"
    if not path.exists():
        return None
    content = read_bytes(path)
    with translate_parse_errors(path):
        return convert_document(parse_json(content.decode()), _Manifest)


def remove_old_files(directory: Path) -> None:
    """Removes the files no manifest names: the previous generation, and leftovers of a killed write."""
    manifest = _read_manifest(directory)
    kept = {file.name for file in manifest.files} if manifest else set()
    for path in directory.glob("*"):
        # Other files are not ours to remove.
        if path.name not in kept and re.match(r"generation-|\.", path.name):
            remove_quietly(path)


class CheckpointWriter:
    """Writes checkpoints into one directory while training continues.

    One thread and at most one checkpoint in flight, so memory holds one snapshot and never a queue of them.
    If a write fails in the thread, the next call raises the error. Hashing, writing and syncing all release
    the interpreter lock.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def submit(self, checkpoint: Checkpoint) -> None:
        """Starts a write and returns; waits first for the previous write to end, and raises if it failed.

        The tensors are copied first (about 0.3 s per GB), so that training may change them in place.
        """
        self.wait()
        self._pending = self._thread.submit(write_checkpoint, self._directory, checkpoint.copy())

    def wait(self) -> None:
        """Returns when nothing is in flight; raises a failed write once, which leaves the old checkpoint."""
        # Forgotten before it is raised: a failed write must not block the writes after it.
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits, ends the thread and raises a failed write, as `wait` does."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
