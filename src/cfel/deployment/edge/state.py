"""What an edge server must not forget: where it is, its models, and what it reported to the coordinator.

    state.bin        everything but the models, which it names by their SHA-256
    models/SHA-256   a model's bytes

A model is on the disk before a state names it. It is written once, however many states name it, and removed
when none does.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cfel.deployment import state_file
from cfel.deployment.coordinator.control_state import CoordinatorState
from cfel.deployment.payloads import model_views, read_model
from cfel.deployment.positions import Position
from cfel.deployment.protocol.codec import Count, Digest, decode, encode
from cfel.deployment.protocol.coordinator_requests import MixAnswer, PlanAnswer
from cfel.deployment.protocol.device_requests import Round
from cfel.durable import check_directory, make_directory, read_bytes, remove_quietly, replace_file, set_aside
from cfel.errors import DamagedError, RejectedError, StorageError
from cfel.learning.models.flat import FlatModel
from cfel.runlog.records import has_rounds

_STATE = "state.bin"


@dataclass(frozen=True, slots=True, eq=False)
class EdgeState:
    """An edge server between two edge rounds.

    Attributes:
        position: what comes next.
        model: its model.
        previous_model: its model before the last gossip step, for neighbours that ask late.
        reports: its answers about edge rounds of this global round and the one before.
        last_used_rounds: per device, the round of its last upload that went into the model.
        gossip: its answer about the last gossip step, or None.
        coordinator_state: the newest it has seen of a coordinator, or None.
    """

    position: Position
    model: FlatModel
    previous_model: FlatModel
    reports: Mapping[Position, PlanAnswer] = field(default_factory=dict)
    last_used_rounds: Mapping[int, Round] = field(default_factory=dict)
    gossip: MixAnswer | None = None
    coordinator_state: CoordinatorState | None = None

    def has_mixed(self, at: Position) -> bool:
        """Whether the last gossip step was this one."""
        return self.gossip is not None and self.gossip.position == at


class _Stored(msgspec.Struct, frozen=True):
    """What `state.bin` holds."""

    position: Position
    models: tuple[Digest, Digest]
    reports: dict[Position, PlanAnswer]
    last_used_rounds: dict[Count, Round]
    gossip: MixAnswer | None
    coordinator_state: CoordinatorState | None


class EdgeDisk:
    """An edge server's state on its disk.

    Args:
        directory: the edge server's.
        start: the model before the first round.
    """

    def __init__(self, directory: Path, start: FlatModel) -> None:
        self._path, self._models, self._start = directory / _STATE, directory / "models", start
        self._kept: dict[str, FlatModel] = {}

    @staticmethod
    def holds_state(directory: Path) -> bool:
        """Whether an edge server has saved its state there."""
        return (directory / _STATE).exists()

    def load(self) -> EdgeState:
        """The state saved last, or the one before the first round.

        Raises:
            DamagedError: it is not what was saved,.
            StorageError: it is of another experiment or version.
        """
        found = state_file.load(self._path)
        if found is None:
            if has_rounds(self._path.parent):
                raise DamagedError(f"{self._path} does not exist, but rounds were logged")
            return EdgeState((0, 0, 0), self._start, self._start)
        try:
            stored = decode(found[1], _Stored)
        except RejectedError as error:
            raise state_file.explain_other_version(self._path, error) from error
        self._kept = {name: self._read(name) for name in stored.models}
        model, previous = (self._kept[name] for name in stored.models)
        return EdgeState(
            stored.position,
            model,
            previous,
            stored.reports,
            stored.last_used_rounds,
            stored.gossip,
            stored.coordinator_state,
        )

    def begin_anew(self) -> EdgeState:
        """The state before the first round; a state that cannot be used is set aside."""
        if self._path.exists():
            set_aside(self._path)
        self._kept = {}
        return EdgeState((0, 0, 0), self._start, self._start)

    def save(self, state: EdgeState) -> None:
        """Makes the state durable.

        Raises:
            StorageError: the file cannot be written; what was saved before is still there.
        """
        names = (self._keep(state.model), self._keep(state.previous_model))
        reports, used_rounds = dict(state.reports), dict(state.last_used_rounds)
        newest = state.coordinator_state
        stored = _Stored(state.position, names, reports, used_rounds, state.gossip, newest)
        state_file.save(self._path, {}, encode(stored))
        self._kept = {name: self._kept[name] for name in names}
        # Also those that were written just before a crash.
        for path in self._models.iterdir():
            if path.name not in names:
                remove_quietly(path)

    def _keep(self, model: FlatModel) -> str:
        # By identity: hashing a large model again takes longer than the search.
        for name, kept in self._kept.items():
            if kept is model:
                return name
        name = model.sha256().hex()
        if name not in self._kept:
            make_directory(self._models, private=True)
            replace_file(self._models / name, *model_views(model), private=True)
        self._kept[name] = model
        return name

    def _read(self, name: str) -> FlatModel:
        check_directory(self._models)
        path = self._models / name
        if not path.exists():
            raise DamagedError(f"{path} does not exist, but {self._path} names it")
        content = read_bytes(path, max_bytes=None)
        if hashlib.sha256(content).hexdigest() != name:
            raise DamagedError(f"{path} is damaged: its SHA-256 is not its name")
        try:
            return read_model(content, self._start)
        except RejectedError as error:
            raise StorageError(f"{path} is of another experiment: {error}") from error
