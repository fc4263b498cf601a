"""Which uploads are in which model, followed from write to write on the disks of edge servers and devices.

A device that hears that its last upload was not used adds it to the next one (error feedback). So no model
may hold an upload and, in a later one, the same again. What a device was told is in its orders, what it made
of that in `memory.bin`; which uploads an edge server took, and whose models it mixed, in `state.bin`.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from cfel.deployment import state_file
from cfel.deployment.coordinator.state import Position
from cfel.deployment.device.memory import order_key
from cfel.deployment.protocol.device_requests import NextOrder, NextRequest, Round
from cfel.deployment.protocol.edge_requests import MixAnswer
from cfel.deployment.protocol.messages import decode
from cfel.deployment.security.identity import Identity
from tests.support.memory_disk import MemoryDisk
from tests.whole_federation.history import History, Write

Upload = tuple[int, Round, str]
"""Device, round, and the model that it began with."""
Uploads = frozenset[Upload]
Kind = TypeVar("Kind")


class _State(msgspec.Struct, frozen=True):
    """What is needed of `state.bin`."""

    position: Position = (0, 0, 0)
    models: tuple[str, str] = ("", "")
    last_used_rounds: dict[int, Round] = {}
    reports: dict[Position, msgspec.Raw] = {}
    gossip: MixAnswer | None = None


class _Sent(msgspec.Struct, frozen=True):
    key: tuple[Round, str, float, float, float]


class _Memory(msgspec.Struct, frozen=True):
    """What is needed of `memory.bin`."""

    sent: _Sent | None


def uploads_are_used_once(history: History) -> Iterator[str]:
    """No model holds an upload twice, and nobody hears of a use that never was."""
    held = _follow_models(history)
    returned = _follow_devices(history)
    for uploads in held.values():
        for later in uploads:
            if twice := sorted(uploads & returned.get(later, set())):
                again = f"sent its upload of {twice[0][1]} again in {later[1]}"
                yield f"device-{later[0]} {again}, and a model has both"
                return
    used = {(device, at) for uploads in held.values() for device, at, _ in uploads}
    for call in history.answered(NextRequest):
        named = call.answer.last_used_round if isinstance(call.answer, NextOrder) else None
        if named is not None and (call.caller.number, named) not in used:
            yield f"{call.caller} was told that {named} was used"


def _follow_models(history: History) -> dict[str, Uploads]:
    """By model, the uploads in it."""
    start = history.world.start.sha256().hex()
    held: dict[str, Uploads] = {start: frozenset()}
    states: dict[int, _State] = {}
    models_at: dict[tuple[int, Position], str] = {}
    for write in history.writes:
        if write.path.name != "state.bin":
            continue
        edge, after = write.member.number, _read(write, _State)
        before = states.get(edge, _State(models=(start, start)))
        model = after.models[0]
        uploads = held[before.models[0]] if model == before.models[0] else held.get(model, frozenset())
        if before.position in after.reports.keys() - before.reports.keys():
            taken = after.last_used_rounds.items() - before.last_used_rounds.items()
            uploads = held[before.models[0]] | {(n, at, before.models[0]) for n, at in taken}
        elif after.gossip is not None and after.gossip != before.gossip:
            at, row = after.gossip.position, after.gossip.rows[edge]
            mixed = [models_at[j, at] for j, weight in enumerate(row) if weight and j != edge]
            uploads = held[before.models[0]].union(*(held[each] for each in mixed))
        held[model] = held.get(model, frozenset()) | uploads
        states[edge], models_at[edge, after.position] = after, model
    return held


def _follow_devices(history: History) -> dict[Upload, set[Upload]]:
    """By upload, the earlier ones that went into it because their device heard that they were not used."""
    named = _find_named(history)
    last: dict[int, Upload] = {}
    returned: dict[Upload, set[Upload]] = {}
    for write in history.writes:
        if write.path.name != "memory.bin" or (sent := _read(write, _Memory).sent) is None:
            continue
        device, before = write.member.number, last.get(write.member.number)
        upload = (device, sent.key[0], sent.key[1])
        if upload == before:
            continue
        last[device] = upload
        told = [used for calls, key, used in named[write.member] if key == sent.key and calls <= write.calls]
        if before is not None and told and told[-1] != before[1]:
            returned[upload] = {before, *returned.get(before, set())} - {upload}
    return returned


def _find_named(history: History) -> dict[Identity, list[tuple[int, object, Round | None]]]:
    """Per device, when it got which order, with the upload that was used last."""
    found: dict[Identity, list[tuple[int, object, Round | None]]] = defaultdict(list)
    for call in history.answered(NextRequest):
        if isinstance(call.answer, NextOrder) and call.answer.kind == "update":
            named = call.answer.last_used_round
            key = order_key(call.answer.order)
            found[call.caller].append((call.answered_at, key, named))
    return found


def _read(write: Write, kind: type[Kind]) -> Kind:
    disk = MemoryDisk()
    disk.files[write.path] = write.content
    found = state_file.load(disk, write.path)
    assert found is not None
    return decode(found[1], kind)
