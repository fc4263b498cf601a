"""Models as users bring them, each for the 8×8 digits; tests name them as "tests.architectures:function"."""

import torch
from torch import Tensor, nn


class _Scaled(nn.Module):
    """Doubles its input while training: a layer whose mode cannot be mistaken."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * x if self.training else x


def mode_dependent(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    size = int(torch.Size(input_shape).numel())
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.ReLU(), _Scaled(), nn.Linear(16, classes))
