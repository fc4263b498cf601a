r"""A user-defined compressor: one bit per entry for its sign, and one magnitude for all (EF-signSGD).

    cfel run examples/tiny.toml --set compression.kind=custom_compressor:signs \
        --set compression.error_feedback=true \
        --set simulation.accounting=realised --set simulation.uploads=wire

A compressor is a function of a vector, θ and the key of a random stream. The update it returns knows its size
in bits and can add itself to a vector. This compressor ignores θ, so the command above counts the bits that
are really sent. Signs alone lose a lot of information; error feedback sends the rest later.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SignUpdate:
    """Signs, as bytes in memory (−1 or 1) and bits on the wire, and the mean magnitude."""

    signs: Tensor
    magnitude: float

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.signs.numel()

    @property
    def wire_bits(self) -> int:
        """One bit per entry, and one float."""
        return self.size + 32

    def add_to(self, dense: Tensor, weight: float) -> None:
        """Adds weight · magnitude · sign to every entry."""
        dense.add_(self.signs, alpha=weight * self.magnitude)


def signs(vector: Tensor, theta: float, key: int) -> SignUpdate:  # noqa: ARG001 — part of the interface
    """Replaces every entry by its sign times the mean magnitude; θ is ignored."""
    return SignUpdate(torch.where(vector < 0, -1, 1).to(torch.int8), float(vector.abs().mean()))
