"""An update that counts less than another, because it comes late."""

from dataclasses import dataclass

from torch import Tensor

from cfel.learning.compression.compressors import Update


@dataclass(frozen=True, slots=True)
class DiscountedUpdate:
    """A part of an update.

    Attributes:
        update: as it was sent.
        share: of it that counts, in (0, 1].
    """

    update: Update
    share: float

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.update.size

    @property
    def wire_bits(self) -> int:
        """Size of the upload in bits: that of the whole update."""
        return self.update.wire_bits

    def add_to(self, dense: Tensor, weight: float) -> None:
        """Adds `weight` times the part to `dense`, in place."""
        self.update.add_to(dense, weight * self.share)
