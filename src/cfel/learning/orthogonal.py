"""Updates whose weight matrices have singular values of one size: the polar factor, by Newton–Schulz steps.

The mean update of a cluster has few large singular values, the directions that all batches share, and many
small ones. Its polar factor UVᵀ (of UΣVᵀ) moves as far in every direction. Muon (Jordan et al., 2024) takes
such steps instead of momentum steps; here an edge server takes them with the mean of its devices' updates.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from cfel.learning.models.flat import Slot

# Five steps with Muon's polynomial bring every singular value above a hundredth of the norm to 0.7 … 1.2.
STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# A matrix with more rows (of its smaller side) is orthogonalised in blocks of at most so many: the work grows
# with the square of the rows, and LEAF's layer of 2048 × 3136 would take 350 GFLOP, instead of 34 in blocks.
MOST_ROWS = 256


def orthogonalise(update: Tensor, matrices: Iterable[Slot]) -> Tensor:
    """A copy of the update in which every matrix is replaced by its polar factor, at the length it had."""
    result = update.clone()
    for slot in matrices:
        # Rows are outputs. The order of columns does not matter: it stays the same in the polar factor.
        matrix = result[slot.start : slot.stop].view(slot.shape[0], -1)
        length = torch.linalg.vector_norm(matrix)
        if length > 0 and torch.isfinite(length):
            factor = find_polar_factor(matrix)
            matrix.copy_(factor * (length / torch.linalg.vector_norm(factor)))
    return result


def find_polar_factor(matrix: Tensor) -> Tensor:
    """UVᵀ of a matrix UΣVᵀ, nearly; block by block where it is large."""
    if matrix.shape[0] > matrix.shape[1]:
        return find_polar_factor(matrix.T).T
    blocks = torch.tensor_split(matrix, -(-matrix.shape[0] // MOST_ROWS))
    return torch.cat([_iterate(block) for block in blocks])


def _iterate(block: Tensor) -> Tensor:
    first, second, third = COEFFICIENTS
    x: Tensor = block / torch.linalg.vector_norm(block).clamp_min(torch.finfo(block.dtype).tiny)
    for _ in range(STEPS):
        square = x @ x.T
        x = first * x + (second * square + third * (square @ square)) @ x
    return x
