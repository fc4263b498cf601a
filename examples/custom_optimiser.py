r"""A user-defined optimiser: signum, which steps by the sign of the momentum.

    cfel run examples/tiny.toml --set local.algorithm=custom_optimiser:signum \
        --set local.learning_rate=0.003

An optimiser is a function of the parameters, the gradient, what the device remembers and the learning rate.
The first three are vectors, which it changes in place. What it remembers has names, starts at zero, and is
kept from edge round to edge round, in checkpoints and on the disks of deployed devices. The page
docs/guides/algorithms.md has the details.
"""

from torch import Tensor

from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters
from cfel.learning.models.flat import Tensors


def signum(local: LocalParameters) -> LocalAlgorithm:
    """Bernstein et al.: signSGD: compressed optimisation for non-convex problems, ICML 2018."""

    def step(x: Tensor, gradient: Tensor, memory: Tensors, rate: float) -> None:
        memory["momentum"].lerp_(gradient, 1 - local.momentum)
        x.sub_(memory["momentum"].sign(), alpha=rate)

    return LocalAlgorithm(step, memory=("momentum",))
