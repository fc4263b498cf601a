"""What a device keeps from one edge round to the next, on its disk: its state and its last upload."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfel.deployment import state_file
from cfel.deployment.measurement.meters import Measurements, RunningRatio
from cfel.durable import remove_leftovers, translate_os_errors
from cfel.errors import RunBusyError
from cfel.learning.compression.packing import unpack_update
from cfel.learning.device_messages import DeviceState
from cfel.learning.local.estimates import decode_estimates, encode_estimates

Key = tuple[int, int, str, float, float]
"""(global round, edge round, SHA-256 of the model, ρ, θ): the same order has the same key."""


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """An upload that was made; whether it arrived is for the edge server to say."""

    key: Key
    header: Mapping[str, Any]
    body: bytes | bytearray


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """A device's state and its last upload, and what it has measured of itself, if it does."""

    state: DeviceState = field(default_factory=DeviceState)
    sent: Sent | None = None
    measured: Measurements | None = None


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Makes a device's directory its own as long as it lasts, or until the process dies.

    Raises:
        RunBusyError: another device works there.
        StorageError: it cannot be made or opened.
    """
    with translate_os_errors("create", directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunBusyError(f"{directory}: another device's process works in this directory") from error
        remove_leftovers(directory)
        yield
    finally:
        os.close(descriptor)


def with_unused_returned(memory: Memory, used: tuple[int, int] | None) -> Memory:
    """The memory with the last upload back in the residual, unless its edge server used it.

    Args:
        memory: as it is.
        used: round of the last upload that the edge server used.
    """
    sent, residual = memory.sent, memory.state.residual
    if sent is None or residual is None or sent.key[:2] == used:
        return memory
    returned = residual.clone()
    buffers = 4 * int(sent.header.get("buffers", 0))
    unpack_update(sent.body[buffers:], returned.numel()).add_to(returned, 1.0)
    return replace(memory, state=replace(memory.state, residual=returned), sent=None)


def save_memory(path: Path, memory: Memory) -> None:
    """Returns when the memory is on the device's disk."""
    state, sent = memory.state, memory.sent
    tensors: dict[str, Any] = {}
    for name in ("momentum", "residual"):
        tensor: Tensor | None = getattr(state, name)
        if tensor is not None:
            tensors[name] = tensor.numpy()
    if sent is not None:
        tensors["upload"] = np.frombuffer(sent.body, dtype=np.uint8)
    values = {
        "estimates": encode_estimates(state.estimates),
        "sent": None if sent is None else {"key": sent.key, "header": dict(sent.header)},
        "measured": None if memory.measured is None else asdict(memory.measured),
    }
    state_file.save(path, tensors, values)


def load_memory(path: Path) -> Memory:
    """The memory saved last; an empty one for a new device."""
    found = state_file.load(path)
    if found is None:
        return Memory()
    tensors, values = found
    kept = {
        name: torch.from_numpy(np.array(tensors[name])) if name in tensors else None
        for name in ("momentum", "residual")
    }
    sent = values["sent"]
    state = DeviceState(**kept, estimates=decode_estimates(values["estimates"]))
    measured = _measured(values.get("measured"))
    if sent is None:
        return Memory(state, None, measured)
    key: Key = tuple(sent["key"])
    return Memory(state, Sent(key, sent["header"], tensors["upload"].tobytes()), measured)


def _measured(values: Mapping[str, Any] | None) -> Measurements | None:
    if values is None:
        return None
    ratios = {name: RunningRatio(**each) for name, each in values.items() if isinstance(each, dict)}
    others = {name: each for name, each in values.items() if name not in ratios}
    return Measurements(**{**ratios, **others})
