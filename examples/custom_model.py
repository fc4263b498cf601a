"""A user-defined model: a perceptron with residual hidden layers and layer norm.

    cfel run examples/tiny.toml --set model.name=custom_model:residual

A model is a function that takes the shape of one sample and the number of classes. It returns a torch module
that maps a batch of float32 samples to scores. Any layer will do: docs/guides/models.md says what is trained,
sent and charged. A model without batch norm and dropout can train many devices at once: `--engine batched`.
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
        """Adds the layer's output to its input."""
        changed: Tensor = x + self.change(x)
        return changed


def residual(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds the network for inputs of any shape."""
    first = nn.Linear(math.prod(input_shape), WIDTH)
    blocks = [Residual() for _ in range(BLOCKS)]
    return nn.Sequential(nn.Flatten(), first, *blocks, nn.Linear(WIDTH, classes))
