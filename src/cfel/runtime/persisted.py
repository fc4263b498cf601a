"""One file that holds tensors and JSON values, replaced whole: what a member of a federation must not forget.

    SHA-256 of the rest (32 bytes), then safetensors with the JSON text in its metadata

One file and two syncs per save, as a device saves before every upload.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from cfel.errors import RunDirectoryError
from cfel.runlog.durable import read_bytes, replace_file

_DIGEST_BYTES = 32


def save(path: Path, tensors: Mapping[str, NDArray[Any]], state: Mapping[str, Any]) -> None:
    """Returns when all of it is on the device.

    Raises:
        RunDirectoryError: the system refused; what was saved before is still there.
    """
    # Safetensors knows no file without tensors.
    kept = {"": np.zeros(0, dtype=np.uint8), **{k: np.ascontiguousarray(v) for k, v in tensors.items()}}
    content = safetensors.numpy.save(kept, metadata={"state": json.dumps(dict(state))})
    replace_file(path, hashlib.sha256(content).digest() + content)


def load(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """What was saved last; None if nothing ever was.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    if not path.exists():
        return None
    whole = read_bytes(path)
    digest, content = whole[:_DIGEST_BYTES], whole[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise RunDirectoryError(f"{path} is damaged: its SHA-256 is not the one it was written with")
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    tensors = safetensors.numpy.load(content)
    del tensors[""]
    return tensors, json.loads(metadata["state"])
