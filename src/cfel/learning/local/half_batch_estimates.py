"""Estimates of σ² and G² from the two halves of a batch, without computing the batch twice.

`reuse` needs the gradient of the batch and the distance between the gradients of its halves. Two passes, one
per half, give both for any model, but read and write a dense layer of millions of weights twice. One pass is
enough where all parameters belong to dense and convolution layers. The gradient of a dense layer is Σ_i δ_i
a_iᵀ over the samples i, so ‖Σ_i c_i δ_i a_iᵀ‖² = Σ_ij c_i c_j (δ_i·δ_j)(a_i·a_j) needs only two small Gram
matrices. The weight gradient of a convolution is computed for each half, which costs as much as for the whole
batch. Other models (batch norm, recurrence, user-defined layers) need two passes. Both ways agree up to
rounding. The estimators themselves are in `estimates`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cfel.learning.local.estimates import Estimates, Scatter, estimate_from_halves
from cfel.learning.local.workspace import Workspace


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a layer in a forward pass; `version` changes when the output is overwritten."""

    layer: nn.Linear | nn.Conv2d
    inputs: Tensor
    outputs: Tensor
    version: int


def compute_gradient_and_estimates(
    inputs: Tensor, targets: Tensor, samples: int, workspace: Workspace
) -> tuple[list[Tensor], float, Estimates]:
    """Computes a batch's gradient and loss, and estimates σ² and G² from its halves.

    Args:
        inputs: a batch of at least 2 of the device's samples, drawn without replacement.
        targets: of these samples.
        samples: number of samples that the device holds.
        workspace: holds the model.
    """
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
            one, two = _convolution_halves(call, delta)
            if workspace.is_shared(call.layer.weight):
                products += _products(one, two)
            torch._foreach_add_(one, two)
            gradient.update(zip(workspace.find_places(call.layer), one, strict=True))
    ordered = [gradient[place] for place in range(len(leaves))]
    estimates = estimate_from_halves(*_compute_scatter(products, batch, half), batch, samples)
    return ordered, float(loss.detach()), estimates


def _compute_scatter(products: Tensor, batch: int, half: int) -> tuple[float, float]:
    """The halves' scatter and ‖ḡ‖², from the inner products of their shares u_a, u_b of the gradient.

    g_a = u_a·B/h and g_b = u_b·B/(B − h), so the scatter h(B − h)/B·‖g_a − g_b‖² needs only these products.
    """
    (aa, ab), (_, bb) = products.tolist()
    one, two = batch / half, batch / (batch - half)
    apart = one * one * aa - 2 * one * two * ab + two * two * bb
    # Rounding can make it slightly negative where the halves agree.
    return max(apart, 0.0) * half * (batch - half) / batch, aa + 2 * ab + bb


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
    once = {id(call.layer) for call in calls} == {id(layer) for layer in workspace.layers}
    return (
        once
        and len(calls) == len(workspace.layers)
        and all(call.inputs.dim() == (2 if isinstance(call.layer, nn.Linear) else 4) for call in calls)
        and all(call.outputs._version == call.version for call in calls)
        and all(_pads_with_zeros(call.layer) for call in calls)
    )


def _pads_with_zeros(layer: nn.Linear | nn.Conv2d) -> bool:
    """Whether a convolution pads with zeros, by a given number; it may also pad by name ("same")."""
    return isinstance(layer, nn.Linear) or (
        layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    )


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


def _convolution_halves(call: _Call, delta: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The share of each half of the batch in a convolution's gradient."""
    half = len(delta) // 2
    one = _convolution_gradient(call.layer, call.inputs[:half], delta[:half])
    return one, _convolution_gradient(call.layer, call.inputs[half:], delta[half:])


def _convolution_gradient(layer: nn.Linear | nn.Conv2d, inputs: Tensor, delta: Tensor) -> list[Tensor]:
    """The gradient of a convolution's weight and bias."""
    # `torch.nn.grad.conv2d_weight` would lose the strides of the weight; this is what autograd calls.
    assert isinstance(layer, nn.Conv2d)  # noqa: S101
    biased = layer.bias is not None
    _, weight, bias = torch.ops.aten.convolution_backward(
        delta,
        inputs,
        layer.weight,
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
