"""SGD with momentum (Polyak 1964; Nesterov 1983 with `nesterov`) and weight decay: the paper's local steps.

m ← βm + g + decay·x,  x ← x − ηm,  and with `nesterov`  x ← x − η(g + decay·x + βm)
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.sgd import sgd as torch_sgd

from cfel.errors import InputError
from cfel.learning.local.algorithm import LocalAlgorithm, Memory
from cfel.learning.local.parameters import LocalParameters


def sgd(local: LocalParameters) -> LocalAlgorithm:
    """SGD; other algorithms build on it with `dataclasses.replace`."""

    def step(x: Tensor, gradient: Tensor, memory: Memory, rate: float) -> None:
        momentum = [memory["momentum"]] if local.momentum else ()
        apply_momentum_step([x], [gradient], momentum, local, rate)

    def step_parts(
        x: Sequence[Tensor], gradient: Sequence[Tensor], memory: Mapping[str, Sequence[Tensor]], rate: float
    ) -> None:
        apply_momentum_step(x, gradient, memory.get("momentum", ()), local, rate)

    return LocalAlgorithm(step, memory=("momentum",) if local.momentum else (), step_parts=step_parts)


def reject_momentum(local: LocalParameters) -> None:
    """Raises an `InputError` for algorithms in which a step must be the rate times the gradient."""
    if local.momentum or local.weight_decay:
        raise InputError(
            f"local.algorithm = {local.algorithm!r}: needs local.momentum = 0 and local.weight_decay = 0"
        )


def apply_momentum_step(
    parameters: Sequence[Tensor],
    gradient: Sequence[Tensor],
    momentum: Sequence[Tensor],
    local: LocalParameters,
    rate: float,
) -> None:
    """Applies one step, in place and in one pass over memory.

    Args:
        parameters: x, one tensor per parameter.
        gradient: g, likewise; may be overwritten.
        momentum: m, likewise, strided like the parameters; may be empty if β = 0.
        local: momentum β, weight decay, and whether to look ahead.
        rate: learning rate η.
    """
    with torch.no_grad():
        # Torch's own function without the optimiser around it, which would keep state between devices.
        torch_sgd(
            list(parameters),
            [_match_strides(part, parameter) for part, parameter in zip(gradient, parameters, strict=True)],
            list(momentum) or [None] * len(parameters),
            fused=True,
            weight_decay=local.weight_decay,
            momentum=local.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=local.nesterov,
            maximize=False,
        )


def _match_strides(part: Tensor, parameter: Tensor) -> Tensor:
    """Gives a gradient the strides of its parameter: the fused step ignores strides, so they must agree."""
    if part.stride() == parameter.stride():
        return part
    return torch.empty_like(parameter).copy_(part)
