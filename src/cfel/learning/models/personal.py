"""The personal part of a model: tensors that stay on the device (FedPer, local heads, FedBN).

It is named by patterns over the names of trained parameters and statistics. A device keeps it in its memory,
under reserved names. Nothing of it is sent, aggregated or charged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.models.flat_model import FlatModel

PARAMETERS, STATISTICS = "personal", "personal_statistics"
"""Their names in a device's memory."""


class SharedPart(NamedTuple):
    """How many numbers of the parameters and of the statistics are shared, and how many parameter tensors."""

    parameters: int
    buffers: int
    leaves: int


@dataclass(frozen=True, slots=True, eq=False)
class PersonalPart:
    """The values that a device keeps: what comes after the shared numbers in both vectors; may be empty."""

    parameters: Tensor
    buffers: Tensor

    @classmethod
    def from_memory(cls, memory: Mapping[str, Tensor]) -> "PersonalPart | None":
        """What a device remembers of its own; None before its first values."""
        if PARAMETERS not in memory and STATISTICS not in memory:
            return None
        empty = torch.empty(0)
        return cls(memory.get(PARAMETERS, empty), memory.get(STATISTICS, empty))

    def to_memory(self) -> dict[str, Tensor]:
        """The same by the names that a device's memory uses; without empty ones."""
        named = {PARAMETERS: self.parameters, STATISTICS: self.buffers}
        return {name: each for name, each in named.items() if each.numel()}

    def complete(self, model: FlatModel) -> FlatModel:
        """The whole model, from an edge server's model."""
        if not (self.parameters.numel() or self.buffers.numel()):
            return model
        return replace(
            model,
            parameters=torch.cat([model.parameters, self.parameters]),
            buffers=torch.cat([model.buffers, self.buffers]),
        )


def complete_model(model: FlatModel, memory: Mapping[str, Tensor]) -> FlatModel:
    """An edge server's model with the device's own part, if its memory has one."""
    own = PersonalPart.from_memory(memory)
    return model if own is None else own.complete(model)


def find_personal(
    trained: Sequence[tuple[str, Tensor]], statistics: Sequence[tuple[str, Tensor]], patterns: Sequence[str]
) -> frozenset[str]:
    """The names of the tensors that stay on devices.

    Args:
        trained: named parameters that are trained.
        statistics: named statistics of batch norm.
        patterns: with *, ? and [...] as in file names.

    Raises:
        InputError: a pattern matches nothing, or no parameter is left to share.
    """
    names = [name for name, _ in (*trained, *statistics)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(
                f"model.personal: {pattern!r} matches no trained parameter; there are {', '.join(names)}"
            )
    found = frozenset(name for name in names if any(fnmatchcase(name, each) for each in patterns))
    if all(name in found for name, _ in trained):
        raise InputError(
            "model.personal: all trained parameters would stay on devices, so nothing is left to share"
        )
    return found
