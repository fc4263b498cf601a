"""A model of one's own: a perceptron whose hidden layers are added to their input, with layer norm.

    cfel run examples/tiny.toml --set model.name=own_model:residual

A model is a function from the shape of one sample and the number of classes to a torch module that turns a
batch of float32 samples into scores. Anything goes that draws no random numbers while training (no dropout:
runs could not be repeated) and shares no parameters between layers. Without batch norm it can be trained for
many devices at once, with `--engine batched`.
"""

import math

from torch import Tensor, nn

WIDTH = 32
BLOCKS = 2


class Residual(nn.Module):
    """x + f(norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.change = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """The changed batch."""
        changed: Tensor = x + self.change(x)
        return changed


def residual(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """For inputs of any shape."""
    first = nn.Linear(math.prod(input_shape), WIDTH)
    blocks = [Residual() for _ in range(BLOCKS)]
    return nn.Sequential(nn.Flatten(), first, *blocks, nn.Linear(WIDTH, classes))
