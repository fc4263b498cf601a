"""The local iterations of one device, from the model in the workspace, and the estimates taken on the way.

What is drawn for a step (batch, augmentation, dropout) depends on the order's key and the number of the step
alone. What a step does is up to the algorithm. The estimates always come from the plain gradient, so that
plans mean the same under every algorithm. `roles` loads the model before and compresses the difference after.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.edge_rule import read_memory
from cfel.learning.local.algorithm import LocalRun, Memory, Step
from cfel.learning.local.estimates import Estimates, Scatter, estimate_from_batches, scale_noise, squared_norm
from cfel.learning.local.half_batch_estimates import compute_gradient_and_estimates
from cfel.learning.local.iterations import choose_iterations, count_samples, draw_batches
from cfel.learning.local.whole_run import train_whole
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import DeviceData


def train(
    order: DeviceOrder, data: DeviceData, memory: Memory, workspace: Workspace
) -> tuple[Estimates | None, list[float], LocalRun]:
    """Runs the chosen iterations; with `estimator = "reuse"` the first one also yields the estimates.

    Args:
        order: what to do; its model is in the workspace, in training mode.
        data: the device's samples.
        memory: what the device remembers; its tensors change in place.
        workspace: the worker's scratch memory; its parameters change.

    Returns:
        The estimates, or None if there are no new ones; the loss of every step taken; and the finished run.
    """
    local, flat, algorithm = workspace.local, workspace.flat, workspace.algorithm
    taken = choose_iterations(local.steps, order.rho, order.tau, order.stream("steps"))
    if algorithm.train is not None:
        return *train_whole(order, int(taken.sum()), workspace), _open_run(order, memory, workspace)
    # All τ batches, also of skipped iterations: schemes that differ in ρ then see the same batches.
    batches = draw_batches(data.samples, workspace.training.batch, order.tau, order.stream("batches"))
    batches = batches[:, : count_samples(workspace.training, order.rho, data.samples)]
    run = _open_run(order, memory, workspace)
    take_step = _make_step(run, memory, workspace)
    estimates: Estimates | None = None
    losses: list[float] = []
    iterations = np.flatnonzero(taken).tolist()
    streams = [partial(order.stream, "augmentation", each) for each in iterations]
    loaded = workspace.load_batches(data, batches[taken], streams)
    if algorithm.begin is not None:
        algorithm.begin(run)
    for iteration, (inputs, targets) in zip(iterations, loaded, strict=True):
        run.iteration, run.batch = iteration, (inputs, targets)
        # A batch of one sample has no halves to compare.
        estimating = not losses and local.estimator == "reuse" and len(targets) > 1
        halves = len(targets) // 2 >= flat.behaviour.least_batch
        if estimating and not halves:
            estimates = _estimate_aside(order, data, workspace)
        with workspace.seed_model(partial(order.key, "model", iteration)):
            if estimating and halves:
                gradient, loss, found = compute_gradient_and_estimates(
                    inputs, targets, data.samples, workspace
                )
                estimates = scale_noise(
                    found, used=len(targets), batch=workspace.training.batch, samples=data.samples
                )
            else:
                gradient, loss = workspace.compute_gradient(inputs, targets)
        if local.clip_gradient is not None:
            clip_gradient(gradient, local.clip_gradient)
        take_step(gradient)
        run.steps += 1
        losses.append(loss)
    if algorithm.end is not None:
        algorithm.end(run)
    return estimates, losses, run


def clip_gradient(gradient: list[Tensor], most: float) -> None:
    """Scales a gradient down, in place, to a Euclidean norm of at most `most`."""
    norm = squared_norm(gradient) ** 0.5
    if norm > most:
        torch._foreach_mul_(gradient, most / norm)


def _open_run(order: DeviceOrder, memory: Memory, workspace: Workspace) -> LocalRun:
    """The run as hooks see it: of all vectors the shared part, which relates to the edge model."""
    shared = workspace.flat.shared.parameters
    vectors = workspace.algorithm.remembers

    def compute_at(parameters: Tensor) -> Tensor:
        flat = workspace.flat
        before = flat.parameters.clone(), flat.buffers.clone()
        flat.parameters[:shared].copy_(parameters)
        # The same key as for the step itself: dropout leaves out the same units.
        with torch.enable_grad(), workspace.seed_model(partial(order.key, "model", run.iteration)):
            gradient, _ = workspace.compute_gradient(*run.batch)
        flat.parameters.copy_(before[0])
        flat.buffers.copy_(before[1])
        return _join(gradient, workspace)[:shared]

    run = LocalRun(
        parameters=workspace.flat.parameters[:shared],
        start=order.model.parameters.to(workspace.device),
        memory={name: each[:shared] if vectors[name] else each for name, each in memory.items()},
        edge_memory=_read_edge_memory(order.model, workspace),
        rate=workspace.local.learning_rate * order.rate,
        tau=order.tau,
        gradient_at=compute_at,
        draw=lambda purpose: order.stream(f"algorithm: {purpose}", run.iteration),
    )
    return run


def _read_edge_memory(model: FlatModel, workspace: Workspace) -> dict[str, Tensor]:
    edge = workspace.algorithm.edge
    if edge is None:
        return {}
    return {name: each.to(workspace.device) for name, each in read_memory(model, edge.memory).items()}


def _make_step(run: LocalRun, memory: Memory, workspace: Workspace) -> Callable[[list[Tensor]], None]:
    """The function that hands a gradient to the algorithm; the step itself sees the personal part, too."""
    algorithm, flat = workspace.algorithm, workspace.flat
    if algorithm.step_parts is not None and algorithm.change_gradient is None:
        step_parts = algorithm.step_parts
        vectors = algorithm.memory + algorithm.lasting
        parts = {name: flat.views(memory[name]) for name in vectors}
        return lambda gradient: step_parts(flat.leaves, gradient, parts, run.rate)

    step = algorithm.step
    assert step is not None  # noqa: S101 — algorithms without it have a loop of their own

    def take_step(gradient: list[Tensor]) -> None:
        vector = _join(gradient, workspace)
        with torch.no_grad():
            if algorithm.change_gradient is not None:
                shared = vector[: flat.shared.parameters]
                added = algorithm.change_gradient(run, shared)
                _reject_result("change_gradient", "the gradient", added, shared)
            x = flat.parameters
            _reject_result("step", "x", _call_step(step, x, vector, memory, run.rate), x)

    return take_step


def _call_step(step: Step, x: Tensor, gradient: Tensor, memory: Memory, rate: float) -> object:
    try:
        # What it returns is looked at, as functions of users return more than they should.
        return step(x, gradient, memory, rate)  # type: ignore[func-returns-value]
    except KeyError as error:
        if error.args[0] in memory:
            raise
        raise InputError(
            f"local algorithm: step asks its memory for {error}, which it does not have; name everything "
            f"that is remembered: LocalAlgorithm(step, memory=({error},))"
        ) from error


def _reject_result(function: str, what: str, found: object, changed: Tensor) -> None:
    """Rejects a new vector that nobody would use; functions that end with x.sub_(…) return x itself."""
    if found is not None and found is not changed:
        raise InputError(
            f"local algorithm: {function} returned a {type(found).__name__}, which nothing uses; change "
            f"{what} in place, as with add_, sub_ or copy_"
        )


def _join(gradient: list[Tensor], workspace: Workspace) -> Tensor:
    """A gradient as one vector, laid out like the parameters."""
    vector = torch.empty_like(workspace.flat.parameters)
    for view, part in zip(workspace.flat.views(vector), gradient, strict=True):
        view.copy_(part)
    return vector


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
            scatter = Scatter(gradient, shared=workspace.flat.shared.leaves)
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
