"""The local iterations of one device, from the model in the workspace, and the estimates taken on the way.

What is drawn for a step (batch, augmentation, dropout) depends on the order's key and the number of the step
alone. `roles` loads the model before and compresses the difference after.
"""

from functools import partial

import numpy as np
from torch import Tensor

from cfel.learning.device_messages import DeviceOrder
from cfel.learning.local.estimates import Estimates, Scatter, estimate_from_batches
from cfel.learning.local.half_batch_estimates import compute_gradient_and_estimates
from cfel.learning.local.sgd import apply_momentum_step, choose_iterations, draw_batches
from cfel.learning.local.workspace import Workspace
from cfel.learning.task import DeviceData


def train(
    order: DeviceOrder, data: DeviceData, momentum: Tensor | None, workspace: Workspace
) -> tuple[Estimates | None, list[float]]:
    """Runs the chosen iterations; with `estimator = "reuse"` the first one also yields the estimates.

    Args:
        order: what to do; its model is in the workspace, in training mode.
        data: the device's samples.
        momentum: the buffer, which changes in place, or None.
        workspace: the worker's scratch memory; its parameters change.

    Returns:
        The estimates, or None if there are no new ones, and the loss of every step taken.
    """
    local, flat = workspace.local, workspace.flat
    taken = choose_iterations(local.steps, order.rho, order.tau, order.stream("steps"))
    # All τ batches, also of skipped iterations: schemes that differ in ρ then see the same batches.
    batches = draw_batches(data.samples, workspace.training.batch, order.tau, order.stream("batches"))
    buffers = [] if momentum is None else flat.views(momentum)
    estimates: Estimates | None = None
    losses: list[float] = []
    iterations = np.flatnonzero(taken).tolist()
    streams = [partial(order.stream, "augmentation", each) for each in iterations]
    loaded = workspace.load_batches(data, batches[taken], streams)
    for iteration, (inputs, targets) in zip(iterations, loaded, strict=True):
        # A batch of one sample has no halves to compare.
        estimating = not losses and local.estimator == "reuse" and len(targets) > 1
        halves = len(targets) // 2 >= flat.behaviour.least_batch
        if estimating and not halves:
            estimates = _estimate_aside(order, data, workspace)
        with workspace.seed_model(partial(order.key, "model", iteration)):
            if estimating and halves:
                gradient, loss, estimates = compute_gradient_and_estimates(
                    inputs, targets, data.samples, workspace
                )
            else:
                gradient, loss = workspace.compute_gradient(inputs, targets)
        apply_momentum_step(flat.leaves, gradient, buffers, local)
        losses.append(loss)
    return estimates, losses


def estimate_from_fresh_batches(order: DeviceOrder, data: DeviceData, workspace: Workspace) -> Estimates:
    """Estimates of σ² and G² from K extra mini-batches at the model in the workspace."""
    local, draw = workspace.local, order.stream("fresh batches")
    scatter: Scatter | None = None
    # `Scatter` takes one gradient at a time, so that K of them need no memory of their own.
    for number in range(local.fresh_batches):
        rows = draw_batches(data.samples, workspace.training.batch, 1, draw)
        (batch,) = workspace.load_batches(data, rows, [lambda: draw])
        with workspace.seed_model(partial(order.key, "model on fresh batches", number)):
            gradient, _ = workspace.compute_gradient(*batch)
        if scatter is None:
            scatter = Scatter(gradient)
        else:
            scatter.add(gradient)
    assert scatter is not None  # noqa: S101 — fresh_batches ≥ 2
    return estimate_from_batches(scatter, local.fresh_batches)


def _estimate_aside(order: DeviceOrder, data: DeviceData, workspace: Workspace) -> Estimates:
    """Fresh estimates in the middle of training, for models that cannot train on half of a small batch."""
    statistics = workspace.flat.buffers.clone()
    estimates = estimate_from_fresh_batches(order, data, workspace)
    workspace.flat.buffers.copy_(statistics)
    return estimates
