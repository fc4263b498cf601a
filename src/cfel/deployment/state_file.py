"""One file that holds tensors and encoded values, replaced whole: what a node must not forget.

    SHA-256 of the rest (32 bytes), then safetensors; the tensor without a name is the encoded values

One file and two syncs per save, as a device saves before every upload. For the same reason tensors go to the
file from where they are: safetensors' own writer copies them twice, and took most of the time of a save.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from cfel.deployment.host import Disk
from cfel.durable import translate_parse_errors
from cfel.errors import DamagedError, StorageError

_DIGEST_BYTES = 32
_DTYPES = {"<f4": "F32", "<f8": "F64", "<i4": "I32", "<i8": "I64", "|u1": "U8"}


def save(disk: Disk, path: Path, tensors: Mapping[str, NDArray[Any]], state: bytes) -> None:
    """Returns when all of it is on the disk.

    Raises:
        StorageError: the file cannot be written; what was saved before is still there.
    """
    kept = {"": np.frombuffer(state, dtype=np.uint8)}
    kept |= {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    # Larger numbers first, so that all lie where their type wants to.
    names = sorted(kept, key=lambda name: (-kept[name].dtype.itemsize, name))
    content: list[bytes | memoryview] = [
        _header(kept, names),
        *(_bytes_of(kept[name]) for name in names),
    ]
    digest = hashlib.sha256()
    for part in content:
        digest.update(part)
    disk.replace(path, digest.digest(), *content)


def _header(tensors: Mapping[str, NDArray[Any]], names: Sequence[str]) -> bytes:
    """The beginning of a safetensors file: its own length, and where each tensor lies behind it."""
    entries: dict[str, Any] = {}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype.str],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: NDArray[Any]) -> memoryview:
    return tensor.reshape(-1).view(np.uint8).data


def explain_other_version(path: Path, error: Exception) -> StorageError:
    """The error for a file that is not damaged and yet cannot be read."""
    return StorageError(
        f"{path} was written by another version of cfel: {error}. Install that version again, on all nodes, "
        "to finish the run; or stop all nodes and delete their directories to begin it anew"
    )


def load(disk: Disk, path: Path) -> tuple[dict[str, NDArray[Any]], bytes] | None:
    """What was saved last; None if nothing ever was.

    Raises:
        DamagedError: the file is not what was written.
    """
    if not disk.exists(path):
        return None
    whole = disk.read(path)
    digest, content = whole[:_DIGEST_BYTES], whole[_DIGEST_BYTES:]
    # The rename is atomic, but a disk may still return bytes that were never written.
    if hashlib.sha256(content).digest() != digest:
        raise DamagedError(f"{path} is damaged: its SHA-256 is not the one it was written with")
    with translate_parse_errors(path):
        tensors = safetensors.numpy.load(content)
        state = tensors.pop("").tobytes()
    return tensors, state
