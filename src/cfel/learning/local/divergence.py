"""Detects that a device's training has diverged, before anything is compressed, sent or averaged.

One number that is not finite spreads to all models within a round, and no later round repairs them. So the
run ends where it first appears. A loss that is merely large is not an error.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cfel.errors import DivergedError
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.local.estimates import Estimates
from cfel.learning.local.parameters import LocalParameters


def raise_if_diverged(
    order: DeviceOrder,
    local: LocalParameters,
    estimates: Estimates | None,
    losses: Sequence[float] = (),
    difference: Tensor | None = None,
) -> None:
    """Raises if any result of a device is not finite.

    Args:
        order: what the device was asked to do.
        local: how it trained.
        estimates: of σ² and G², or None.
        losses: of its steps.
        difference: to the order's model, or None.

    Raises:
        DivergedError: it names the device and the first result that is not finite.
    """
    what = _not_finite(estimates, losses, difference)
    if what is not None:
        raise DivergedError(
            what,
            device=order.device,
            global_round=order.global_round,
            edge_round=order.edge_round,
            learning_rate=local.learning_rate * order.rate,
        )


def _not_finite(
    estimates: Estimates | None, losses: Sequence[float], difference: Tensor | None
) -> str | None:
    for number, loss in enumerate(losses, start=1):
        if not math.isfinite(loss):
            return f"the loss of local step {number} is {loss}"
    if estimates is not None and not estimates.is_finite:
        return f"the estimates are σ² = {estimates.sigma2:g}, G² = {estimates.g2:g}"
    # The sum is cheaper than checking each entry. It may overflow without any entry being infinite.
    if difference is not None and not torch.isfinite(difference.sum()) and not _all_finite(difference):
        return "the update holds entries that are not finite"
    return None


def _all_finite(vector: Tensor) -> bool:
    return bool(torch.isfinite(vector).all())
