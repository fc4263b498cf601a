"""What a device does: pure functions that simulator and deployment share.

    device_estimate  estimates σ² and G² at the edge model, before the first plan (`fresh`: before every plan)
    device_update    runs τ local iterations from the edge model and compresses the difference

The same arguments give the same bits in every worker: random streams are keyed, sums run in the order of ids,
and each worker uses one torch thread. The functions change none of their arguments except the workspace,
which carries nothing from one call to the next, and what a caller gives up (`give_up_state`, `difference`).
What edge servers do is in `edge`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cfel.learning.compressors import Update, decode, measure_arrival
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.local.algorithm import LocalRun
from cfel.learning.local.estimates import Estimates
from cfel.learning.local.training import estimate_from_fresh_batches, raise_if_diverged, train
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import PARAMETERS, Tensors
from cfel.learning.task import DeviceData


def device_estimate(order: DeviceOrder, data: DeviceData, workspace: Workspace) -> Estimates:
    """Fresh estimates of σ² and G² at the order's model, from K extra mini-batches.

    The order's ρ and θ are not used. Its model may be a whole one, with the device's own part. The result has
    no `kept_energy`: see `refresh_estimates`. Where an algorithm has its own training loop, no gradient
    can be seen, and both are 1 until it returns its estimates.
    """
    if workspace.algorithm.train is not None:
        return Estimates(1.0, 1.0)
    workspace.flat.load(order.model)
    workspace.flat.module.train()
    estimates = estimate_from_fresh_batches(order, data, workspace)
    raise_if_diverged(order, workspace.local, estimates)
    return estimates


def device_update(
    order: DeviceOrder,
    data: DeviceData,
    state: DeviceState,
    workspace: Workspace,
    *,
    give_up_state: bool = False,
) -> tuple[DeviceReport, DeviceState]:
    """Runs τ local iterations from the order's model and compresses the difference (Algorithm 1, lines 6–11).

    Returns the report for the edge server, and the device's new state. With `give_up_state` the caller does
    not use `state` again, so its memory may be reused.
    """
    flat, shared = workspace.flat, workspace.flat.shared
    flat.load(flat.complete(order.model, state.memory))
    flat.module.train()
    memory = _load_memory(state, workspace, give_up_state)
    estimates, losses, run = train(order, data, memory, workspace)
    own = flat.read_personal()
    # In place: the workspace loads another model before it is used again.
    difference = flat.parameters[: shared.parameters].sub_(order.model.parameters.to(workspace.device)).cpu()
    result = LocalResult(
        difference=difference,
        memory={name: values.cpu() for name, values in memory.items()} | own,
        buffers=flat.buffers[: shared.buffers].clone().cpu(),
        estimates=estimates,
        losses=losses,
        run=run,
    )
    return finish_update(order, data, state, workspace, result, give_up_state=give_up_state)


@dataclass(frozen=True, slots=True, eq=False)
class LocalResult:
    """What the local iterations of a device yield, on the CPU."""

    difference: Tensor  # to the order's model, d numbers; `finish_update` overwrites it
    memory: Tensors  # what the algorithm remembers after the last step
    buffers: Tensor  # batch-norm statistics
    estimates: Estimates | None  # new ones, or None to keep the old ones
    losses: Sequence[float]  # of the steps taken
    run: LocalRun | None = None  # the finished run; None if its algorithm need not know what is sent


def finish_update(
    order: DeviceOrder,
    data: DeviceData,
    state: DeviceState,
    workspace: Workspace,
    result: LocalResult,
    *,
    give_up_state: bool = False,
) -> tuple[DeviceReport, DeviceState]:
    """Compresses a device's model difference, and makes its report and its new state."""
    local, difference, memory, losses = workspace.local, result.difference, result.memory, result.losses
    raise_if_diverged(order, local, result.estimates, losses, difference)
    raise_if_diverged(order, local, None, difference=memory.get(PARAMETERS))
    # Error feedback: what earlier uploads left out competes for a place in this one.
    if state.residual is not None:
        difference.add_(state.residual)
    update = workspace.compress(difference, order.theta, order.key("compression"))
    if result.run is not None and workspace.algorithm.sent is not None:
        _tell_sent(result.run, update, memory, workspace)
    # A device that took no step has nothing new to report, and repeats its last estimates.
    estimates = result.estimates or state.estimates
    if estimates is not None:
        at = local.kept_energy_at
        kept = measure_arrival(workspace.compress, difference.numpy(), at) if at else ()
        estimates = replace(estimates, kept_energy=kept)
    report = DeviceReport(
        device=order.device,
        update=update,
        buffers=result.buffers,
        estimates=estimates,
        steps=len(losses),
        loss=math.fsum(losses) / len(losses) if losses else math.nan,
        samples=data.samples,
    )
    return report, DeviceState(
        {name: values for name, values in memory.items() if name in workspace.kept_names},
        _compute_residual(difference, update, state.residual if give_up_state else None)
        if workspace.training.error_feedback
        else None,
        estimates,
    )


def _tell_sent(run: LocalRun, update: Update, memory: Tensors, workspace: Workspace) -> None:
    """Lets the algorithm know what the edge server will get, and takes over what it remembers then."""
    assert workspace.algorithm.sent is not None  # noqa: S101 — the caller has looked
    workspace.algorithm.sent(run, decode(update).to(workspace.device))
    if workspace.device.type != "cpu":
        for name, values in run.memory.items():
            memory[name][: values.numel()].copy_(values)


def _load_memory(state: DeviceState, workspace: Workspace, give_up_state: bool) -> dict[str, Tensor]:
    """What the algorithm remembers of the last edge round, as it may change it in place."""
    memory = {}
    for name, is_vector in workspace.algorithm.remembers.items():
        known = state.memory.get(name) if name in workspace.kept_names else None
        if known is None:
            memory[name] = torch.zeros(
                workspace.flat.parameters.numel() if is_vector else 1, device=workspace.device
            )
        else:
            # The caller may still need the old values.
            memory[name] = known.to(workspace.device, copy=not give_up_state)
    return memory


def return_update(state: DeviceState, update: Update) -> DeviceState:
    """The state of a device whose last update was not used: with error feedback it keeps the update."""
    if state.residual is None:
        return state
    residual = state.residual.clone()
    update.add_to(residual, 1.0)
    return replace(state, residual=residual)


def _compute_residual(difference: Tensor, update: Update, memory: Tensor | None) -> Tensor:
    """What the update leaves out; written to `memory`, a vector that is not needed any more, if given."""
    residual = difference.clone() if memory is None else memory.copy_(difference)
    update.add_to(residual, -1.0)
    return residual
