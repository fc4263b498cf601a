"""A model as a plain value: a pair of vectors, and what an edge server remembers beside it.

The module that the vectors belong to is in `flat`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.worker_threads import map_in_threads


@dataclass(frozen=True, slots=True)
class FlatModel:
    """The values of a model. Several owners may share one, so its vectors must not be changed in place.

    Attributes:
        parameters: float32 vector of d trained numbers.
        buffers: float32 vector of the buffers that training changes (batch-norm statistics); may be empty.
        memory: float32 vector of what an edge server remembers beside its model (`edge_rule`); may be empty.
    """

    parameters: Tensor
    buffers: Tensor
    memory: Tensor = field(default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        for name in ("parameters", "buffers", "memory"):
            value: Tensor = getattr(self, name)
            if value.dim() != 1 or value.dtype != torch.float32:
                raise InputError(
                    f"model.{name}: must be a float32 vector, is {value.dtype} {tuple(value.shape)}"
                )

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """All vectors, in the order of files and messages."""
        return self.parameters, self.buffers, self.memory

    def is_finite(self) -> bool:
        """Whether no value is infinite or NaN."""
        return all(bool(torch.isfinite(part).all()) for part in self.parts)

    def sha256(self) -> bytes:
        """The SHA-256 of the vectors' bytes, parameters first."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part.detach().cpu().contiguous().numpy().data)
        return digest.digest()


def model_sha256(models: Sequence[FlatModel], workers: int = 0) -> str:
    """SHA-256, in hexadecimal, of the concatenated SHA-256s of the edge models in cluster order.

    Args:
        models: the edge models.
        workers: most threads to use; 0 for one per core.
    """
    digests = map_in_threads(FlatModel.sha256, models, workers)
    return hashlib.sha256(b"".join(digests)).hexdigest()
