"""The local iterations of one device: draws, steps, estimates of σ² and G², and the check for divergence.

What is drawn for a step (batch, augmentation, dropout) depends on the order's key and the number of the step
alone. What a step does is up to the algorithm. The estimates always come from the plain gradient, so that
plans mean the same under every algorithm. `device` loads the model before and compresses the difference
after.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from cfel.arrays import BoolArray, IntArray
from cfel.errors import DivergedError, InputError
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.edge_rule import read_memory
from cfel.learning.local.algorithm import (
    LocalParameters,
    LocalRun,
    Step,
    StepRule,
    TrainingParameters,
    WholeRun,
)
from cfel.learning.local.estimates import (
    Estimates,
    Scatter,
    check_estimates,
    estimate_from_batches,
    estimate_from_halves,
    scale_noise,
    squared_norm,
)
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModule, Slot, Tensors
from cfel.learning.task import DeviceData
from cfel.system.batch_shares import LAYER_SHARES, BatchShares

# Draws. All τ uniforms and τ batches are drawn, used or not: two schemes that run the same iteration see the
# same batch. A skipped iteration changes neither the model nor what the device remembers.


def choose_iterations(rule: StepRule, rho: float, tau: int, draw: np.random.Generator) -> BoolArray:
    """Chooses which of the τ iterations to run, by `LocalParameters.steps`; every rule draws τ uniforms."""
    uniforms = draw.random(tau)
    if rule in ("small_batches", "last_layers"):
        return np.full(tau, rho > 0)
    if rule == "bernoulli":
        return np.asarray(uniforms < rho)
    # An iteration runs where the line ρ·t + u passes an integer: ⌊ρτ⌋ or ⌈ρτ⌉ times, ρτ on average.
    if rule == "whole":
        # In whole numbers, so that rounding never adds or drops a step.
        steps, start = round(rho * tau), int(uniforms[0] * tau)
        return np.asarray(np.diff((np.arange(tau + 1) * steps + start) // tau) > 0)
    marks = np.floor(np.arange(tau + 1) * rho + uniforms[0])
    return np.asarray(np.diff(marks) > 0)


def count_samples(training: TrainingParameters, rho: float, samples: int) -> int:
    """How many samples each step of a device uses: a batch, or with small batches what ρ pays for."""
    local, size = training.local, min(training.batch, samples)
    if local.steps != "small_batches":
        return size
    return min(size, BatchShares(training.batch, local.step_overhead).count_samples(rho))


def find_trained(local: LocalParameters, rho: float, flat: FlatModule) -> list[int]:
    """Which of `flat.leaves` a device trains: all, or those of the last layers that ρ pays for.

    A layer is a matrix or kernel with the vectors behind it, in the order in which the model defines them;
    that is taken to be the order in which data pass through them.
    """
    everything = list(range(len(flat.leaves)))
    if local.steps != "last_layers":
        return everything
    places = {id(leaf): place for place, leaf in enumerate(flat.leaves)}
    defined = [places[id(each)] for each in flat.module.parameters() if id(each) in places]
    begins = [number for number, place in enumerate(defined) if flat.leaves[place].dim() > 1]
    count = max(1, round(float(LAYER_SHARES.find_part(rho)) * len(begins)))
    return everything if count >= len(begins) else sorted(defined[begins[-count] :])


def draw_batches(samples: int, batch: int, count: int, draw: np.random.Generator) -> IntArray:
    """Draws `count` mini-batches, as rows of positions 0 … samples − 1.

    Batches are cut from one shuffle after another, never across two. So each batch is a simple random sample
    of min(batch, samples) positions. A device sees all its samples before it sees one again, except for the
    rest of a shuffle that does not fill a batch.
    """
    size = min(batch, samples)
    # Whole batches in one shuffle.
    each = samples // size
    shuffles = [draw.permutation(samples)[: each * size] for _ in range(-(-count // each))]
    return np.concatenate(shuffles).reshape(-1, size)[:count]


# Steps. The hooks of an algorithm see the shared part of every vector; its step sees the personal part, too.


def train(
    order: DeviceOrder, data: DeviceData, memory: Tensors, workspace: Workspace
) -> tuple[Estimates | None, list[float], LocalRun]:
    """Runs the chosen iterations from the model in the workspace, which is in training mode.

    With `estimator = "reuse"` the first step also yields the estimates. `memory` changes in place. Returns
    the estimates, or None if there are no new ones; the loss of every step taken; and the finished run.
    """
    local, flat, algorithm = workspace.local, workspace.flat, workspace.algorithm
    taken = choose_iterations(local.steps, order.rho, order.tau, order.stream("steps"))
    if algorithm.train is not None:
        return *_train_whole(order, int(taken.sum()), workspace), _open_run(order, memory, workspace)
    batches = draw_batches(data.samples, workspace.training.batch, order.tau, order.stream("batches"))
    batches = batches[:, : count_samples(workspace.training, order.rho, data.samples)]
    run, trained = _open_run(order, memory, workspace), find_trained(local, order.rho, flat)
    take_step = _make_step(run, memory, workspace, trained)
    leaves = [flat.leaves[place] for place in trained]
    estimates: Estimates | None = None
    losses: list[float] = []
    iterations = np.flatnonzero(taken).tolist()
    streams = [partial(order.stream, "augmentation", each) for each in iterations]
    loaded = workspace.load_batches(data, batches[taken], streams)
    if algorithm.begin is not None:
        algorithm.begin(run)
    for iteration, (inputs, targets) in zip(iterations, loaded, strict=True):
        run.iteration = iteration
        if algorithm.choose is not None:
            places = _choose_samples(run, algorithm.choose, (inputs, targets), order, workspace)
            inputs, targets = inputs[places], targets[places]
        run.batch = inputs, targets
        # A batch of one sample has no halves to compare.
        estimating = not losses and local.estimator == "reuse" and len(targets) > 1
        halves = len(targets) // 2 >= flat.behaviour.least_batch
        if estimating and not halves:
            estimates = _estimate_aside(order, data, workspace)
        with workspace.seed_model(partial(order.key, "model", iteration)):
            if estimating and halves:
                gradient, loss, found = _compute_gradient_and_estimates(
                    inputs, targets, data.samples, workspace
                )
                estimates = scale_noise(
                    found, used=len(targets), batch=workspace.training.batch, samples=data.samples
                )
                # Estimates are of the whole gradient, also where only a part of it is used.
                gradient = [gradient[place] for place in trained]
            else:
                gradient, loss = workspace.compute_gradient(inputs, targets, leaves)
        if local.clip_gradient is not None:
            _clip_gradient(gradient, local.clip_gradient)
        take_step(gradient)
        run.steps += 1
        losses.append(loss)
    if algorithm.end is not None:
        algorithm.end(run)
    return estimates, losses, run


def _choose_samples(
    run: LocalRun,
    choose: Callable[[LocalRun, Tensor], Tensor],
    batch: tuple[Tensor, Tensor],
    order: DeviceOrder,
    workspace: Workspace,
) -> Tensor:
    """The samples of a batch that its algorithm chooses by their losses at the present model."""
    statistics = workspace.flat.buffers.clone()
    with torch.no_grad(), workspace.seed_model(partial(order.key, "model that chooses", run.iteration)):
        losses = workspace.task.loss(workspace.run_model(batch[0]), batch[1])
    workspace.flat.buffers.copy_(statistics)
    return choose(run, losses)


def _open_run(order: DeviceOrder, memory: Tensors, workspace: Workspace) -> LocalRun:
    """The run as hooks see it: of all vectors the shared part, which relates to the edge model."""
    shared, edge = workspace.flat.shared.parameters, workspace.algorithm.edge
    kept = {} if edge is None else read_memory(order.model, edge.memory)
    vectors = workspace.algorithm.remembers

    def compute_at(run: LocalRun, parameters: Tensor) -> Tensor:
        flat = workspace.flat
        before = flat.parameters.clone(), flat.buffers.clone()
        flat.parameters[:shared].copy_(parameters)
        # The same key as for the step itself: dropout leaves out the same units.
        with torch.enable_grad(), workspace.seed_model(partial(order.key, "model", run.iteration)):
            gradient, _ = workspace.compute_gradient(*run.batch)
        flat.parameters.copy_(before[0])
        flat.buffers.copy_(before[1])
        return _join(gradient, workspace)[:shared]

    return LocalRun(
        parameters=workspace.flat.parameters[:shared],
        start=order.model.parameters.to(workspace.device),
        memory={name: each[:shared] if vectors[name] else each for name, each in memory.items()},
        edge_memory={name: each.to(workspace.device) for name, each in kept.items()},
        rate=workspace.local.learning_rate * order.rate,
        tau=order.tau,
        find_gradient=compute_at,
        make_stream=lambda purpose, iteration: order.stream(f"algorithm: {purpose}", iteration),
    )


def _make_step(
    run: LocalRun, memory: Tensors, workspace: Workspace, trained: Sequence[int]
) -> Callable[[list[Tensor]], None]:
    """The function that hands a gradient, of the leaves `trained`, to the algorithm.

    The step itself sees the personal part, too.
    """
    algorithm, flat = workspace.algorithm, workspace.flat
    if algorithm.step_parts is not None and algorithm.change_gradient is None:
        step_parts = algorithm.step_parts
        vectors = algorithm.memory + algorithm.lasting
        leaves = [flat.leaves[place] for place in trained]
        views = {name: flat.views(memory[name]) for name in vectors}
        parts = {name: [each[place] for place in trained] for name, each in views.items()}
        return lambda gradient: step_parts(leaves, gradient, parts, run.rate)

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


def _call_step(step: Step, x: Tensor, gradient: Tensor, memory: Tensors, rate: float) -> object:
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


def _clip_gradient(gradient: list[Tensor], most: float) -> None:
    """Scales a gradient down, in place, to a Euclidean norm of at most `most`."""
    norm = squared_norm(gradient) ** 0.5
    if norm > most:
        torch._foreach_mul_(gradient, most / norm)


def _train_whole(
    order: DeviceOrder, steps: int, workspace: Workspace
) -> tuple[Estimates | None, list[float]]:
    """Runs the algorithm's own loop; without steps it is not called.

    Values come back by name, and only those that the model trains are used: what is frozen stays as it is for
    the next device. Returns the loop's estimates, if any, and its mean loss, once per step.
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
            seed=order.key("own loop") % 2**31,
        )
    )
    where = f"device {order.device}: its training loop returned"
    _write_values(flat.parameters, flat.parameter_slots, result.values, where)
    _write_values(flat.buffers, flat.buffer_slots, result.values, where)
    estimates = None if result.estimates is None else check_estimates(result.estimates)
    return estimates, [float(result.loss)] * steps


def _write_values(vector: Tensor, slots: Sequence[Slot], values: Tensors, where: str) -> None:
    for slot in slots:
        if slot.name not in values:
            raise InputError(f"{where} no {slot.name!r}, only {sorted(values)}")
        value = values[slot.name]
        if tuple(value.shape) != slot.shape:
            raise InputError(
                f"{where} {slot.name!r} of shape {tuple(value.shape)}, the model has {slot.shape}"
            )
        slot.view(vector).copy_(value.detach().to(torch.float32))


# Estimates. `reuse` needs the gradient of a batch and the distance between the gradients of its halves. Two
# passes, one per half, give both for any model, but read and write a dense layer of millions of weights
# twice. One pass is enough where all parameters belong to dense and convolution layers. The gradient of a
# dense layer is Σ_i δ_i a_iᵀ over the samples i, so ‖Σ_i c_i δ_i a_iᵀ‖² = Σ_ij c_i c_j (δ_i·δ_j)(a_i·a_j)
# needs only two small Gram matrices. The weight gradient of a convolution is computed for each half, which
# costs as much as for the whole batch. Both ways agree up to rounding.


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


def _compute_gradient_and_estimates(
    inputs: Tensor, targets: Tensor, samples: int, workspace: Workspace
) -> tuple[list[Tensor], float, Estimates]:
    """A batch's gradient and loss, and estimates from its halves; the device has `samples` in all."""
    # The forward pass shows whether one pass is valid: a layer may be called twice, or its output changed.
    if workspace.is_layered:
        found = _compute_in_one_pass(inputs, targets, samples, workspace)
        if found is not None:
            return found
    return _compute_in_two_passes(inputs, targets, samples, workspace)


def _compute_in_two_passes(
    inputs: Tensor, targets: Tensor, samples: int, workspace: Workspace
) -> tuple[list[Tensor], float, Estimates]:
    batch, half = len(targets), len(targets) // 2
    gradient, loss = workspace.compute_gradient(inputs[:half], targets[:half])
    scatter = Scatter(gradient, half, workspace.flat.shared.leaves)
    gradient, other = workspace.compute_gradient(inputs[half:], targets[half:])
    scatter.add(gradient, batch - half)
    mean_loss = (half * loss + (batch - half) * other) / batch
    estimates = estimate_from_halves(scatter.scatter, scatter.square_mean(), batch, samples)
    return scatter.mean, mean_loss, estimates


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a layer in a forward pass; `version` changes when the output is overwritten."""

    layer: nn.Linear | nn.Conv2d
    inputs: Tensor
    outputs: Tensor
    version: int


def _compute_in_one_pass(
    inputs: Tensor, targets: Tensor, samples: int, workspace: Workspace
) -> tuple[list[Tensor], float, Estimates] | None:
    """None if the forward pass did something the shortcut does not cover."""
    calls, outputs = _record_forward(inputs, workspace)
    if not _is_covered(calls, workspace):
        return None
    loss = workspace.task.loss(outputs, targets).mean()
    leaves, layers = workspace.flat.leaves, [call.layer for call in calls]
    dense = [
        place for layer in layers if isinstance(layer, nn.Linear) for place in workspace.find_places(layer)
    ]
    wanted = [*(leaves[place] for place in dense), *(call.outputs for call in calls)]
    # Convolution weights are not asked for: their gradient is computed per half below.
    found = torch.autograd.grad(loss, wanted, materialize_grads=True)
    gradient = dict(zip(dense, found[: len(dense)], strict=True))
    batch, half = len(targets), len(targets) // 2
    products = torch.zeros(2, 2, dtype=torch.float64, device=loss.device)
    for call, delta in zip(calls, found[len(dense) :], strict=True):
        if isinstance(call.layer, nn.Linear):
            if workspace.is_shared(call.layer.weight):
                products += _dense_products(call, delta)
        else:
            one = _convolution_gradient(call.layer, call.inputs[:half], delta[:half])
            two = _convolution_gradient(call.layer, call.inputs[half:], delta[half:])
            if workspace.is_shared(call.layer.weight):
                products += _products(one, two)
            torch._foreach_add_(one, two)
            gradient.update(zip(workspace.find_places(call.layer), one, strict=True))
    ordered = [gradient[place] for place in range(len(leaves))]
    estimates = estimate_from_halves(*_compute_scatter(products, batch, half), batch, samples)
    return ordered, float(loss.detach()), estimates


def _record_forward(inputs: Tensor, workspace: Workspace) -> tuple[list[_Call], Tensor]:
    """Runs a forward pass and records the inputs and outputs of every layer."""
    calls: list[_Call] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
        assert isinstance(layer, nn.Linear | nn.Conv2d)  # noqa: S101 — only those are hooked
        calls.append(_Call(layer, given[0].detach(), result, result._version))

    hooks = [layer.register_forward_hook(note) for layer in workspace.layers]
    try:
        outputs: Tensor = workspace.flat.module(inputs)
    finally:
        for hook in hooks:
            # Also after an error, or the next forward pass would be recorded twice.
            hook.remove()
    return calls, outputs


def _is_covered(calls: list[_Call], workspace: Workspace) -> bool:
    """Whether one pass is valid: each layer called once, on one row or image per sample, output kept."""
    if sorted(id(call.layer) for call in calls) != sorted(map(id, workspace.layers)):
        return False
    for call in calls:
        layer, dimensions = call.layer, call.inputs.dim()
        if call.outputs._version != call.version or dimensions != (2 if isinstance(layer, nn.Linear) else 4):
            return False
        # `_convolution_gradient` needs zeros, by a given number; a layer may also pad by name ("same").
        if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
            return False
    return True


def _dense_products(call: _Call, delta: Tensor) -> Tensor:
    """⟨u, v⟩ between the halves' shares of a dense layer's gradient, from Gram matrices over the samples."""
    half = len(delta) // 2
    inputs = (call.inputs @ call.inputs.T).double()
    # A bias is the weight of one more input, which is always 1.
    if call.layer.bias is not None:
        inputs += 1.0
    gram = (delta @ delta.T).double().mul_(inputs)
    rows = torch.stack([gram[:half].sum(0), gram[half:].sum(0)])
    return torch.stack([rows[:, :half].sum(1), rows[:, half:].sum(1)], 1)


def _products(one: list[Tensor], two: list[Tensor]) -> Tensor:
    """⟨u, v⟩ between two shares of a gradient, given as lists of tensors."""
    # In float64, as the scatter is a small difference of large products.
    both = torch.stack([torch.cat([part.flatten() for part in share]) for share in (one, two)]).double()
    return both @ both.T


def _convolution_gradient(layer: nn.Linear | nn.Conv2d, inputs: Tensor, delta: Tensor) -> list[Tensor]:
    """The gradient of a convolution's weight and bias."""
    # `torch.nn.grad.conv2d_weight` would lose the strides of the weight; this is what autograd calls.
    assert isinstance(layer, nn.Conv2d)  # noqa: S101
    biased = layer.bias is not None
    _, weight, bias = torch.ops.aten.convolution_backward(
        delta,
        inputs,
        # Detached, or the gradient would have a graph of its own, and could not be written into a vector.
        layer.weight.detach(),
        [layer.out_channels] if biased else None,
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0, 0],
        layer.groups,
        [False, True, biased],
    )
    return [weight, bias] if biased else [weight]


def _compute_scatter(products: Tensor, batch: int, half: int) -> tuple[float, float]:
    """The halves' scatter and ‖ḡ‖², from the inner products of their shares u_a, u_b of the gradient.

    g_a = u_a·B/h and g_b = u_b·B/(B − h), so the scatter h(B − h)/B·‖g_a − g_b‖² needs only these products.
    """
    (aa, ab), (_, bb) = products.tolist()
    one, two = batch / half, batch / (batch - half)
    apart = one * one * aa - 2 * one * two * ab + two * two * bb
    # Rounding can make it slightly negative where the halves agree.
    return max(apart, 0.0) * half * (batch - half) / batch, aa + 2 * ab + bb


# Divergence. One number that is not finite spreads to all models within a round, and no later round repairs
# them. So the run ends where it first appears. A loss that is merely large is not an error.


def raise_if_diverged(
    order: DeviceOrder,
    local: LocalParameters,
    estimates: Estimates | None,
    losses: Sequence[float] = (),
    difference: Tensor | None = None,
) -> None:
    """Raises a `DivergedError` that names the device and its first result that is not finite."""
    what = _find_divergence(estimates, losses, difference)
    if what is not None:
        raise DivergedError(
            what,
            device=order.device,
            global_round=order.global_round,
            edge_round=order.edge_round,
            learning_rate=local.learning_rate * order.rate,
        )


def _find_divergence(
    estimates: Estimates | None, losses: Sequence[float], difference: Tensor | None
) -> str | None:
    for number, loss in enumerate(losses, start=1):
        if not math.isfinite(loss):
            return f"the loss of local step {number} is {loss}"
    if estimates is not None and not estimates.is_finite:
        return f"the estimates are σ² = {estimates.sigma2:g}, G² = {estimates.g2:g}"
    # The sum is cheaper than checking each entry. It may overflow without any entry being infinite.
    if difference is not None and not difference.sum().isfinite() and not difference.isfinite().all():
        return "the update holds entries that are not finite"
    return None
