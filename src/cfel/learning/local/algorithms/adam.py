"""Adam, and AdamW with decoupled weight decay.

    m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  x ← x − η (m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε)

Adam adds `weight_decay` · x to the gradient; AdamW first takes x ← x − η · weight_decay · x. Moments and the
number t of steps are the device's memory. Options: `beta1`, `beta2`, `epsilon`.

Kingma, Ba: Adam: a method for stochastic optimization, ICLR 2015. Loshchilov, Hutter: Decoupled weight decay
regularization, ICLR 2019.
"""

from functools import partial

from torch import Tensor

from cfel.learning.local.algorithm import LocalAlgorithm, Memory
from cfel.learning.local.parameters import LocalParameters


def adam(local: LocalParameters) -> LocalAlgorithm:
    """Adam with weight decay in the gradient."""
    return _build(local, decoupled=False)


def adamw(local: LocalParameters) -> LocalAlgorithm:
    """Adam with weight decay beside the gradient."""
    return _build(local, decoupled=True)


def _build(local: LocalParameters, *, decoupled: bool) -> LocalAlgorithm:
    betas = (
        local.read_option("beta1", 0.9, least=0, below=1),
        local.read_option("beta2", 0.999, least=0, below=1),
    )
    epsilon = local.read_option("epsilon", 1e-8, above=0)
    return LocalAlgorithm(
        partial(_step, betas=betas, epsilon=epsilon, decay=local.weight_decay, decoupled=decoupled),
        memory=("first_moment", "second_moment"),
        counters=("steps",),
        options=("beta1", "beta2", "epsilon"),
    )


def _step(
    x: Tensor,
    gradient: Tensor,
    memory: Memory,
    rate: float,
    *,
    betas: tuple[float, float],
    epsilon: float,
    decay: float,
    decoupled: bool,
) -> None:
    first, second, steps = memory["first_moment"], memory["second_moment"], memory["steps"]
    if decoupled:
        x.mul_(1 - rate * decay)
    elif decay:
        gradient.add_(x, alpha=decay)
    steps.add_(1)
    taken = int(steps.item())
    first.lerp_(gradient, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    scale = (1 - betas[1] ** taken) ** 0.5
    x.addcdiv_(first, second.sqrt().div_(scale).add_(epsilon), value=-rate / (1 - betas[0] ** taken))
