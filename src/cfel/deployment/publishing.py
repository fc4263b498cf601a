"""The models that a node publishes, for other programs on its machine.

    model.safetensors                    the model in use; `cfel predict` runs it
    published.json                       the rounds whose models are kept, each with the SHA-256 of its file
    published/round-00012.safetensors    the model after a global round
    pinned.json                          the round to use instead of the newest, after `cfel rollback`

A model is listed before it is used, and each file appears whole: whenever somebody looks, `published.json`
has the digest of `model.safetensors`, and so its round. Only the node writes the list, and only an operator
the pin, so neither needs to stop for the other.
"""

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec

from cfel.deployment.host import Disk
from cfel.errors import InputError, StorageError
from cfel.learning.models.files import ModelForm, encode_model
from cfel.learning.models.flat import FlatModel, Tensors, complete_model
from cfel.world import World

Kind = TypeVar("Kind")
MODEL, _LIST, _PIN = "model.safetensors", "published.json", "pinned.json"


class PublishedModel(msgspec.Struct, frozen=True):
    """A model that is kept."""

    round: int  # the global round after which it was published
    sha256: str  # of its file


class _Pin(msgspec.Struct, frozen=True):
    round: int


def encode_published(world: World, model: FlatModel, memory: Tensors | None = None) -> bytes:
    """The file of a model: averaged where edge servers average over rounds, with how to scale samples.

    `memory` is the device's, which may have a part of the model.
    """
    model = complete_model(world.edge_rules.read_average(model), memory or {})
    return encode_model(model, world.task.build(), ModelForm.describe(world.task, world.model_name))


class PublishedModels:
    """The published models in a node's directory.

    Args:
        kept: how many are kept, besides one that is pinned.
    """

    def __init__(self, disk: Disk, directory: Path, kept: int = 2) -> None:
        self._disk, self._directory, self._kept = disk, directory, kept

    def list(self) -> tuple[PublishedModel, ...]:
        """The models that are kept, oldest first."""
        return self._read(_LIST, tuple[PublishedModel, ...]) or ()

    def publish(self, number: int, content: bytes) -> None:
        """Keeps the model of a round and uses it, unless another one is pinned; may be repeated.

        Raises:
            DiskError: it could not be written; the model in use is still whole.
        """
        digest, pinned = hashlib.sha256(content).hexdigest(), self.pinned
        others = [each for each in self.list() if each.round != number]
        models = sorted([*others, PublishedModel(number, digest)], key=lambda each: each.round)
        models = [each for each in models[: -self._kept] if each.round == pinned] + models[-self._kept :]
        self._disk.make_directory(self._directory / "published")
        self._disk.replace(self._path_of(number), content)
        self._disk.replace(self._directory / _LIST, msgspec.json.format(msgspec.json.encode(models)))
        self._use_chosen()
        kept = {self._path_of(each.round) for each in models}
        for path in self._disk.list(self._directory / "published"):
            if path not in kept:
                self._disk.remove(path)

    @property
    def pinned(self) -> int | None:
        """The round whose model an operator wants; None for the newest."""
        pin = self._read(_PIN, _Pin)
        return None if pin is None else pin.round

    def find_used(self) -> PublishedModel | None:
        """The model in use; None before the first, or if somebody else has changed its file."""
        path = self._directory / MODEL
        digest = hashlib.sha256(self._disk.read(path)).hexdigest() if self._disk.exists(path) else ""
        return next((each for each in self.list() if each.sha256 == digest), None)

    def find(self, number: int | None) -> int:
        """The round to roll back to: this one, or else the one before the model in use.

        Raises:
            InputError: no such model is kept.
            StorageError: its file is damaged.
        """
        used, rounds = self.find_used(), [each.round for each in self.list()]
        if number is None:
            earlier = [each for each in rounds if used is not None and each < used.round]
            number = earlier[-1] if earlier else -1
        if number not in rounds:
            wanted = "before the one in use" if number < 0 else f"of round {number}"
            kept = ", ".join(map(str, rounds))
            raise InputError(f"{self._directory}: no model {wanted}; kept are those of rounds {kept}")
        self._load(number)
        return number

    def use(self, number: int | None) -> None:
        """Uses the model of a round from now on, or always the newest."""
        if number is None:
            self._disk.remove(self._directory / _PIN)
        else:
            self._disk.replace(self._directory / _PIN, msgspec.json.encode(_Pin(number)))
        self._use_chosen()

    def _use_chosen(self) -> None:
        """Makes the pinned or else the newest model the one in use."""
        while True:
            pinned, models = self.pinned, self.list()
            chosen = next((each for each in models if each.round == pinned), models[-1])
            self._disk.replace(self._directory / MODEL, self._load(chosen.round))
            # The other program may have written a pin or a newer model meanwhile.
            if (self.pinned, self.list()) == (pinned, models):
                return

    def _load(self, number: int) -> bytes:
        content = self._disk.read(self._path_of(number))
        wanted = next(each.sha256 for each in self.list() if each.round == number)
        if hashlib.sha256(content).hexdigest() != wanted:
            raise StorageError(f"{self._path_of(number)} is damaged: its SHA-256 is not the one in {_LIST}")
        return content

    def _path_of(self, number: int) -> Path:
        return self._directory / "published" / f"round-{number:05d}.safetensors"

    def _read(self, name: str, kind: type[Kind]) -> Kind | None:
        path = self._directory / name
        if not self._disk.exists(path):
            return None
        try:
            return msgspec.json.decode(self._disk.read(path), type=kind)
        except msgspec.DecodeError as error:
            raise StorageError(f"{path} is damaged: {error}; delete it to begin a new list") from error
