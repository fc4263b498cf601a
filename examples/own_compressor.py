r"""A compressor of one's own: the sign of every entry and one size for all, 1 bit an entry (EF-signSGD).

    cfel run examples/tiny.toml --set compression.kind=own_compressor:signs \
        --set compression.error_feedback=true \
        --set simulation.accounting=realised --set simulation.uploads=wire

A compressor is a function of a vector, θ and the key of a random stream. What it returns knows how many bits
it has on the wire, and how to add itself to a vector. This one has no use for θ, so the run above counts the
bits that are really sent. Signs alone lose much; error feedback sends later what was lost.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SignUpdate:
    """Signs as bytes of −1 and 1 (on the wire they would be bits), and the mean magnitude."""

    signs: Tensor
    magnitude: float

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.signs.numel()

    @property
    def wire_bits(self) -> int:
        """A bit an entry, and a float."""
        return self.size + 32

    def add_to(self, dense: Tensor, weight: float) -> None:
        """Adds weight · magnitude · sign to every entry."""
        dense.add_(self.signs, alpha=weight * self.magnitude)


def signs(vector: Tensor, theta: float, key: int) -> SignUpdate:  # noqa: ARG001 — the shape of a compressor
    """The signs of a vector and its mean magnitude, whatever θ."""
    return SignUpdate(torch.where(vector < 0, -1, 1).to(torch.int8), float(vector.abs().mean()))
