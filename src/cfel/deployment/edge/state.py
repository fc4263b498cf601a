"""What an edge server must not forget: where it is, its models, and what it told the coordinator.

    state.bin        everything but the models, which it names by their SHA-256
    models/SHA-256   a model's bytes

A model is on the disk before a state names it, is written once however many states do, and goes when none
does.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cfel.deployment import state_file
from cfel.deployment.payloads import model_from, model_views
from cfel.deployment.positions import Position, position
from cfel.durable import (
    check_directory,
    make_directory,
    read_bytes,
    remove_quietly,
    replace_file,
    translate_parse_errors,
)
from cfel.errors import RejectedError, StorageError
from cfel.learning.models.flat import FlatModel

_STATE = "state.bin"


@dataclass(frozen=True, slots=True, eq=False)
class EdgeState:
    """An edge server between two edge rounds.

    Attributes:
        position: what comes next.
        model: its model.
        before: its model before the last gossip step, for neighbours that ask late.
        reports: what it told about edge rounds of this global round and the one before, by position.
        used: round of the last upload of each device that went into the model.
        gossip: what it told about the last gossip step, or None.
        control: the newest plan it has seen, as the coordinator sent it, or None.
    """

    position: Position
    model: FlatModel
    before: FlatModel
    reports: Mapping[str, Any] = field(default_factory=dict)
    used: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    gossip: Mapping[str, Any] | None = None
    control: Mapping[str, Any] | None = None


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
        """Whether an edge server has kept its state there."""
        return (directory / _STATE).exists()

    def load(self) -> EdgeState:
        """The state saved last, or that before the first round.

        Raises:
            StorageError: it is damaged, or of another experiment.
        """
        found = state_file.load(self._path)
        if found is None:
            return EdgeState((0, 0, 0), self._start, self._start)
        _, values = found
        if "models" not in values:
            raise StorageError(f"{self._path} was written by another version of cfel")
        with translate_parse_errors(self._path):
            names: list[str] = values["models"]
            self._kept = {name: self._read(name) for name in names}
            return EdgeState(
                position=position(values["position"]),
                model=self._kept[names[0]],
                before=self._kept[names[1]],
                reports=values["reports"],
                used={int(device): (at[0], at[1]) for device, at in values["used"].items()},
                gossip=values["gossip"],
                control=values["control"],
            )

    def save(self, state: EdgeState) -> None:
        """Makes the state durable.

        Raises:
            StorageError: the system refused; what was saved before is still there.
        """
        names = [self._keep(state.model), self._keep(state.before)]
        values = {
            "position": state.position,
            "models": names,
            "reports": dict(state.reports),
            "used": {str(device): at for device, at in state.used.items()},
            "gossip": state.gossip,
            "control": state.control,
        }
        state_file.save(self._path, {}, values)
        self._kept = {name: self._kept[name] for name in names}
        # Also those that were written just before a crash.
        for path in self._models.iterdir():
            if path.name not in names:
                remove_quietly(path)

    def _keep(self, model: FlatModel) -> str:
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
        # A name like "../../other" would lead out of the directory.
        if not re.fullmatch(r"[0-9a-f]{64}", name):
            raise StorageError(f"{self._path} is damaged: {name!r} is not the name of a model")
        check_directory(self._models)
        path = self._models / name
        content = read_bytes(path, max_bytes=None)
        if hashlib.sha256(content).hexdigest() != name:
            raise StorageError(f"{path} is damaged: its SHA-256 is not its name")
        try:
            return model_from(content, self._start)
        except RejectedError as error:
            raise StorageError(f"{path} is of another experiment: {error}") from error
