"""A random orthogonal change of basis in linear time: random signs, then a Hadamard transform block by block.

The Johnson–Lindenstrauss compressor takes entries of the rotated vector. A dense Gaussian matrix for 6.6
million entries would not fit in any memory; this one is never written down. Blocks of 4,096 are transformed
as two multiplications by the 64×64 Hadamard matrix.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cfel.seeding import keyed_generator

_SIDE = 64


@dataclass(frozen=True, slots=True)
class BlockRotation:
    """The rotation named by a key.

    Attributes:
        size: length of the vectors it takes.
        key: 128-bit integer naming the random signs.
    """

    size: int
    key: int

    @property
    def side(self) -> int:
        """The Hadamard matrix's side: 64, less for short vectors."""
        return min(_SIDE, max(1, 1 << (max(1, self.size - 1).bit_length() + 1) // 2))

    @property
    def padded(self) -> int:
        """`size` rounded up to whole blocks."""
        block = self.side**2
        return -(-self.size // block) * block

    def forward(self, vector: Tensor) -> Tensor:
        """The rotated vector, `padded` entries, of equal norm."""
        signed = torch.nn.functional.pad(vector, (0, self.padded - self.size)) * self._signs()
        return self._transform(signed)

    def backward(self, rotated: Tensor) -> Tensor:
        """The transpose of `forward`, cut to `size` entries."""
        return (self._transform(rotated) * self._signs())[: self.size]

    def _signs(self) -> Tensor:
        random = keyed_generator(self.key ^ 1).bytes(self.padded // 8 + 1)
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
