"""What a device keeps on its disk across restarts: its algorithm's memory, residual, estimates, last upload.

One file, replaced as a whole, so that state and upload always belong together. A second one, `home.json`,
says which edge server it belongs to, once that is another than in the experiment. When they are written is
decided in `agent`.
"""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from cfel.deployment import state_file
from cfel.deployment.host import Disk
from cfel.deployment.measurement.meters import Measurements
from cfel.deployment.protocol.device_requests import MOST_UNUSED, Round, UploadRequest
from cfel.deployment.protocol.messages import Body, Count, decode, encode
from cfel.errors import DamagedError, RejectedError
from cfel.learning.device import return_update
from cfel.learning.device_messages import DeviceState, Order
from cfel.learning.local.estimates import Estimates
from cfel.learning.packing import unpack_update

_LOG = logging.getLogger(__name__)

Key = tuple[Round, str, float, float, float]
"""(global and edge round, SHA-256 of the model, ρ, θ, rate): the same order has the same key."""


def order_key(order: Order[str]) -> Key:
    """What makes two orders the same."""
    return order.round, order.model, order.rho, order.theta, order.rate


class Sent(msgspec.Struct, frozen=True):
    """An upload that was made; whether it arrived is for the edge server to say."""

    key: Key
    upload: UploadRequest


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """A device's state and its last upload, and what it has measured of itself, if it does."""

    state: DeviceState = field(default_factory=DeviceState)
    sent: Sent | None = None
    measured: Measurements | None = None
    # Rounds that it trained for in vain, since the last upload that was used.
    unused: tuple[Round, ...] = ()


class _Stored(msgspec.Struct, frozen=True):
    """What `memory.bin` holds beside tensors."""

    estimates: Estimates | None
    sent: Sent | None
    measured: Measurements | None
    unused: tuple[Round, ...] = ()


def return_unused(memory: Memory, last_used_round: Round | None) -> Memory:
    """The memory with the last upload, unless its edge server used it, back in the residual if there is one.

    Args:
        memory: as it is.
        last_used_round: round of the last upload that the edge server used.
    """
    sent, residual = memory.sent, memory.state.residual
    if sent is None:
        return memory
    if sent.upload.round == last_used_round:
        return replace(memory, unused=())
    memory = replace(memory, sent=None, unused=(*memory.unused, sent.upload.round)[-MOST_UNUSED:])
    if residual is None:
        return memory
    buffers = 4 * sent.upload.buffers
    update = unpack_update(sent.upload.content.join()[buffers:], residual.numel())
    return replace(memory, state=return_update(memory.state, update))


def save_memory(disk: Disk, path: Path, memory: Memory) -> None:
    """Returns when the memory is on the device's disk."""
    state, sent = memory.state, memory.sent
    tensors: dict[str, Any] = {}
    for name, tensor in state.memory.items():
        tensors[name] = tensor.numpy()
    if state.residual is not None:
        tensors["residual"] = state.residual.numpy()
    if sent is not None:
        tensors["upload"] = np.frombuffer(sent.upload.content.join(), dtype=np.uint8)
    state_file.save(
        disk, path, tensors, encode(_Stored(state.estimates, sent, memory.measured, memory.unused))
    )


def load_memory(disk: Disk, path: Path, new: DeviceState | None = None) -> Memory:
    """The memory saved last; that of a new device, if it is one or its file is damaged.

    Args:
        disk: the file system.
        path: the file.
        new: what a new device remembers; None for nothing.

    What is lost then are momentum and the like, residual and the newest estimates: it learns on without them.

    Raises:
        StorageError: the file is of another version.
    """
    try:
        found = state_file.load(disk, path)
    except DamagedError as error:
        aside = disk.set_aside(path)
        _LOG.warning("%s; continues without what it remembered, the file is kept as %s", error, aside)
        return Memory(new or DeviceState())
    if found is None:
        return Memory(new or DeviceState())
    tensors, content = found
    upload = Body.hash(tensors["upload"].tobytes()) if "upload" in tensors else Body()
    try:
        stored = decode(content, _Stored, upload)
    except RejectedError as error:
        raise state_file.explain_other_version(path, error) from error
    kept = {name: torch.from_numpy(np.array(each)) for name, each in tensors.items() if name != "upload"}
    residual = kept.pop("residual", None)
    return Memory(DeviceState(kept, residual, stored.estimates), stored.sent, stored.measured, stored.unused)


class Home(msgspec.Struct, frozen=True):
    """The edge server that a device belongs to, and addresses of those that are not in its own file."""

    edge: Count
    addresses: dict[Count, str] = {}


def save_home(disk: Disk, path: Path, home: Home) -> None:
    """Returns when it is on the device's disk."""
    disk.replace(path, msgspec.json.encode(home))


def load_home(disk: Disk, path: Path, edge: int) -> Home:
    """The home saved last; else the edge server that it has in the experiment."""
    if not disk.exists(path):
        return Home(edge)
    try:
        return msgspec.json.decode(disk.read(path), type=Home)
    except msgspec.DecodeError as error:
        _LOG.warning("%s is damaged: %s; asks edge-%d where it belongs", path, error, edge)
        return Home(edge)
