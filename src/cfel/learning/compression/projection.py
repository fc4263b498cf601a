"""A random orthogonal change of basis in linear time: random signs, then a Hadamard transform block by block.

The Johnson–Lindenstrauss compressor takes entries of the rotated vector. A dense Gaussian matrix for 6.6
million entries would not fit into memory; this one is never stored. A block of 4,096 entries is transformed
by two multiplications with the 64×64 Hadamard matrix. Which entries are sent is decided in `compressors`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cfel.seeding import make_generator_from_key

_SIDE = 64


@dataclass(frozen=True, slots=True)
class BlockRotation:
    """A rotation, given by a key.

    Attributes:
        size: length of the vectors it takes.
        key: 128-bit integer from which the random signs are drawn.
    """

    size: int
    key: int

    @property
    def side(self) -> int:
        """The side of the Hadamard matrix: 64, or less for short vectors."""
        return min(_SIDE, max(1, 1 << (max(1, self.size - 1).bit_length() + 1) // 2))

    @property
    def padded(self) -> int:
        """`size` rounded up to whole blocks."""
        block = self.side**2
        return -(-self.size // block) * block

    def forward(self, vector: Tensor) -> Tensor:
        """Rotates a vector; the result has `padded` entries and the same norm."""
        signed = torch.nn.functional.pad(vector, (0, self.padded - self.size)) * self._signs()
        return self._transform(signed)

    def backward(self, rotated: Tensor) -> Tensor:
        """Applies the transpose of `forward`; the result is cut to `size` entries."""
        return (self._transform(rotated) * self._signs())[: self.size]

    def _signs(self) -> Tensor:
        # The stream of the key itself draws the places of the entries; the signs need another one.
        random = make_generator_from_key(self.key ^ 1).bytes(self.padded // 8 + 1)
        # One random bit per sign; a float per sign would take 32 times the draws.
        bits = np.unpackbits(np.frombuffer(random, dtype=np.uint8))[: self.padded]
        return torch.from_numpy(bits).to(torch.float32).mul_(2).sub_(1)

    def _transform(self, vector: Tensor) -> Tensor:
        matrix = hadamard(self.side)
        blocks = vector.view(-1, self.side, self.side)
        return torch.matmul(torch.matmul(matrix, blocks), matrix).reshape(-1)


def hadamard(side: int) -> Tensor:
    """The symmetric orthonormal Hadamard matrix of a power-of-two side."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < side:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.div_(side**0.5)
