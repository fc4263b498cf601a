"""One device's edge round by an algorithm with a loop of its own: hand out the model, take its values back.

What such a loop does is its own business. Values come back by name, and only those that the model trains are
used: what is frozen stays as it is for the next device.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.local.algorithm import WholeRun
from cfel.learning.local.estimates import Estimates, check_estimates
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import Slot

_SEEDS = 2**31


def train_whole(order: DeviceOrder, steps: int, workspace: Workspace) -> tuple[Estimates | None, list[float]]:
    """Runs the algorithm's own loop; without steps it is not called.

    Args:
        order: what to do; its model is in the workspace.
        steps: how many to take.
        workspace: the worker's scratch memory; its parameters change.

    Returns:
        The estimates, or None if there are no new ones; and the mean loss, once per step.

    Raises:
        InputError: a value is missing, or has another shape than in the model.
    """
    train, flat = workspace.algorithm.train, workspace.flat
    assert train is not None  # noqa: S101 — the caller has looked
    if not steps:
        return None, []
    result = train(
        WholeRun(
            module=flat.module,
            steps=steps,
            rate=workspace.local.learning_rate * order.rate,
            device=order.device,
            global_round=order.global_round,
            edge_round=order.edge_round,
            seed=order.key("own loop") % _SEEDS,
        )
    )
    where = f"device {order.device}: its training loop returned"
    _write(flat.parameters, flat.parameter_slots, result.values, where)
    _write(flat.buffers, flat.buffer_slots, result.values, where)
    estimates = None if result.estimates is None else check_estimates(result.estimates)
    return estimates, [float(result.loss)] * steps


def _write(vector: Tensor, slots: Sequence[Slot], values: Mapping[str, Tensor], where: str) -> None:
    for slot in slots:
        if slot.name not in values:
            raise InputError(f"{where} no {slot.name!r}, only {sorted(values)}")
        value = values[slot.name]
        if tuple(value.shape) != slot.shape:
            raise InputError(
                f"{where} {slot.name!r} of shape {tuple(value.shape)}, the model has {slot.shape}"
            )
        slot.view(vector).copy_(value.detach().to(torch.float32))
