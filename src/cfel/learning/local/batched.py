"""Trains many devices at once: the same updates as `device.device_update`, up to the order of additions.

With a small model, most of a device's time is the overhead of starting operations. Here the models of all
devices are the rows of one matrix, and each iteration computes all gradients in one batched forward and
backward pass. Random streams, step rules, estimates and compression are those of `device`, device by device.
Models with statistics (batch norm) are not supported, as padding a batch would change them; nor are models
that draw random numbers, as what one device draws would depend on the others. The algorithm must be SGD.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from cfel.arrays import BoolArray, IntArray
from cfel.errors import CfelError, DivergedError, InputError
from cfel.learning.compressors import compressor, decode
from cfel.learning.device import LocalResult, device_update, finish_update
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState, Order
from cfel.learning.local.algorithm import TrainingParameters
from cfel.learning.local.estimates import Estimates, estimate_from_halves, scale_noise
from cfel.learning.local.training import choose_iterations, count_samples, draw_batches
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import PARAMETERS, FlatModel
from cfel.learning.task import DeviceData, Task


@dataclass(frozen=True, slots=True)
class _Schedule:
    """What the devices of a group will do: devices × iterations, drawn in advance.

    `rows` are places in the data set; batches shorter than the longest repeat their first sample.
    """

    taken: BoolArray
    rows: IntArray
    sizes: IntArray


def device_updates_batched(
    orders: Sequence[DeviceOrder],
    data: Sequence[DeviceData],
    states: Sequence[DeviceState],
    workspace: Workspace,
) -> list[tuple[DeviceReport, DeviceState]]:
    """`device_update` for a group of devices of the same data set and τ, trained side by side."""
    if not orders:
        return []
    _check_group(orders, data, workspace)
    # Evaluation, in the same worker, leaves the module in evaluation mode.
    workspace.flat.module.train()
    pairs = zip(orders, states, strict=True)
    models = [workspace.flat.complete(order.model, state.memory) for order, state in pairs]
    start = torch.stack([model.parameters for model in models]).to(workspace.device)
    momentum = _load_momenta(states, start, workspace)
    parameters, estimates, losses = _train(orders, data, start.clone(), momentum, workspace)
    shared = workspace.flat.shared.parameters
    memory = {} if momentum is None else {"momentum": momentum.cpu()}
    if shared < parameters.shape[1]:
        memory[PARAMETERS] = parameters[:, shared:].cpu()
    differences = parameters[:, :shared].sub_(start[:, :shared]).cpu()
    buffers = torch.empty(0)
    return [
        finish_update(
            order,
            data[n],
            state,
            workspace,
            LocalResult(
                differences[n],
                # A row of the matrix would keep the whole matrix in memory.
                {name: each[n].clone() for name, each in memory.items()},
                buffers,
                estimates[n],
                losses[n],
            ),
        )
        for n, (order, state) in enumerate(zip(orders, states, strict=True))
    ]


def _check_group(orders: Sequence[DeviceOrder], data: Sequence[DeviceData], workspace: Workspace) -> None:
    restriction = _find_restriction(workspace)
    if restriction is not None:
        raise InputError(f"batched: {restriction}")
    if len({(order.tau, order.rate) for order in orders}) > 1 or len({id(own.data) for own in data}) > 1:
        raise InputError("batched: the devices of a group need the same tau, rate and data set")


def _find_restriction(workspace: Workspace) -> str | None:
    """Why these settings and this model train one device at a time; None if they need not."""
    if workspace.local.algorithm != "sgd":
        return f"the algorithm {workspace.local.algorithm!r} trains one device at a time"
    if workspace.local.steps == "last_layers":
        return "devices that train other layers train one at a time"
    if workspace.local.precision != "float32":
        return f"local.precision = {workspace.local.precision!r} is for one device at a time"
    if workspace.flat.buffers.numel():
        return "the batch-norm statistics of the model would change with padded batches"
    if workspace.flat.behaviour.is_random:
        return "the model draws random numbers (dropout)"
    return None


def _load_momenta(states: Sequence[DeviceState], start: Tensor, workspace: Workspace) -> Tensor | None:
    if not workspace.local.momentum:
        return None
    momentum = torch.zeros_like(start)
    if workspace.local.momentum_state == "keep":
        for n, state in enumerate(states):
            if "momentum" in state.memory:
                momentum[n] = state.memory["momentum"]
    return momentum


def _draw_schedule(
    orders: Sequence[DeviceOrder], data: Sequence[DeviceData], workspace: Workspace
) -> _Schedule:
    local, batch, tau = workspace.local, workspace.training.batch, orders[0].tau
    pairs = zip(orders, data, strict=True)
    sizes = np.array([count_samples(workspace.training, order.rho, own.samples) for order, own in pairs])
    rows = np.empty((len(orders), tau, int(sizes.max())), dtype=np.int64)
    taken = np.empty((len(orders), tau), dtype=np.bool_)
    for n, (order, own) in enumerate(zip(orders, data, strict=True)):
        taken[n] = choose_iterations(local.steps, order.rho, tau, order.stream("steps"))
        places = own.indices[draw_batches(own.samples, batch, tau, order.stream("batches"))]
        rows[n, :, : sizes[n]] = places[:, : sizes[n]]
        # Padding. Its samples get weight zero, so any valid sample will do.
        rows[n, :, sizes[n] :] = places[:, :1]
    return _Schedule(taken, rows, sizes)


def _train(
    orders: Sequence[DeviceOrder],
    data: Sequence[DeviceData],
    parameters: Tensor,
    momentum: Tensor | None,
    workspace: Workspace,
) -> tuple[Tensor, list[Estimates | None], list[list[float]]]:
    """Runs all iterations; `parameters` and `momentum` (devices × d) change in place."""
    schedule = _draw_schedule(orders, data, workspace)
    estimates: list[Estimates | None] = [None] * len(orders)
    losses: list[list[float]] = [[] for _ in orders]
    for iteration in range(orders[0].tau):
        active = np.flatnonzero(schedule.taken[:, iteration])
        if active.size == 0:
            continue
        inputs, targets = _load_batch(orders, data, schedule, active, iteration, workspace)
        sizes = schedule.sizes[active]
        # Where all devices are active, indexing by them would copy the whole matrix for nothing.
        chosen = None if active.size == len(orders) else torch.from_numpy(active)
        now = parameters if chosen is None else parameters[chosen]
        # Estimates come from a device's first step, which is the one at the edge model.
        fresh = np.asarray([not losses[n] for n in active]) & (sizes > 1)
        if workspace.local.estimator == "reuse" and fresh.any():
            gradient, loss, scatter = _compute_by_halves(now, inputs, targets, sizes, workspace)
            whole = gradient[:, : workspace.flat.shared.parameters].double().square().sum(1)
            for row in np.flatnonzero(fresh):
                samples, size = data[active[row]].samples, int(sizes[row])
                found = estimate_from_halves(float(scatter[row]), float(whole[row]), size, samples)
                estimates[active[row]] = scale_noise(
                    found, used=size, batch=workspace.training.batch, samples=samples
                )
        else:
            gradient, loss = _compute_gradients(
                now, inputs, targets, _weigh_samples(sizes, inputs), workspace
            )
        _clip_rows(gradient, workspace.local.clip_gradient)
        _step(parameters, momentum, gradient, chosen, orders[0].rate, workspace)
        for n, value in zip(active, loss.tolist(), strict=True):
            losses[n].append(value)
    return parameters, estimates, losses


def _load_batch(
    orders: Sequence[DeviceOrder],
    data: Sequence[DeviceData],
    schedule: _Schedule,
    active: IntArray,
    iteration: int,
    workspace: Workspace,
) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the active devices: devices × batch × sample shape."""
    source, places = data[0].data, torch.from_numpy(schedule.rows[active, iteration].reshape(-1))
    inputs = source.train_inputs.index_select(0, places).to(workspace.device)
    targets = source.train_targets.index_select(0, places).to(workspace.device)
    shape = (active.size, -1)
    if workspace.task.augment is not None:
        pieces = inputs.view(*shape, *inputs.shape[1:]).clone()
        for row, n in enumerate(active):
            # Without the padding: what is drawn depends on the number of samples.
            own, draw = pieces[row, : schedule.sizes[n]], orders[n].stream("augmentation", iteration)
            own.copy_(workspace.task.augment(own.clone(), draw))
        inputs = pieces.flatten(0, 1)
    inputs = source.scale(inputs)
    return inputs.view(*shape, *inputs.shape[1:]), targets.view(*shape, *targets.shape[1:])


def _weigh_samples(sizes: IntArray, inputs: Tensor) -> Tensor:
    """The weight of each sample in its device's mean loss: 1/size, and 0 for padding."""
    places = np.arange(inputs.shape[1])
    shares = np.where(places < sizes[:, None], 1 / np.maximum(sizes, 1)[:, None], 0.0)
    return torch.from_numpy(shares.astype(np.float32)).to(inputs.device)


def _compute_gradients(
    parameters: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor, workspace: Workspace
) -> tuple[Tensor, Tensor]:
    """Every row's gradient (rows × d) and loss, its samples weighted by their shares.

    Only the forward pass of the model is vectorised by `vmap`. Autograd then differentiates the batched
    operations, which starts far fewer operations than differentiating inside `vmap`. The loss is per sample,
    so it takes the samples of all rows as one batch.
    """
    slots = workspace.flat.parameter_slots
    # Leaves are views of the matrix, so that no parameter is copied.
    leaves = [slot.rows(parameters.detach()).requires_grad_() for slot in slots]

    def scores(own: tuple[Tensor, ...], own_inputs: Tensor) -> Tensor:
        named = {slot.name: leaf for slot, leaf in zip(slots, own, strict=True)}
        found: Tensor = functional_call(workspace.flat.module, named, (own_inputs,))
        return found

    outputs: Tensor = vmap(scores)(tuple(leaves), inputs)
    losses = workspace.task.loss(outputs.flatten(0, 1), targets.flatten(0, 1))
    weighted = losses.view(targets.shape[:2]) * shares
    found = torch.autograd.grad(weighted.sum(), leaves, materialize_grads=True)
    gradient = torch.empty_like(parameters)
    for slot, part in zip(slots, found, strict=True):
        slot.rows(gradient).copy_(part)
    return gradient, weighted.detach().sum(1)


def _compute_by_halves(
    parameters: Tensor, inputs: Tensor, targets: Tensor, sizes: IntArray, workspace: Workspace
) -> tuple[Tensor, Tensor, Tensor]:
    """Every row's gradient and loss, and the scatter of its two halves' gradients.

    Each half is a separate row of one pass, padded to the longest.
    """
    # As in `half_batch_estimates`: for an odd size, the second half is one sample larger.
    half = np.stack([sizes // 2, sizes - sizes // 2], axis=1)
    places = np.arange(half.max()) + half[:, :1, None] * [[0], [1]]
    rows = np.arange(len(sizes))[:, None, None] * inputs.shape[1]
    chosen = torch.from_numpy((rows + np.minimum(places, sizes[:, None, None] - 1)).reshape(-1))
    own = [part.flatten(0, 1)[chosen.to(part.device)] for part in (inputs, targets)]
    pieces = [part.view(2 * len(sizes), -1, *part.shape[1:]) for part in own]
    shares = _weigh_samples(half.reshape(-1), pieces[0])
    gradient, loss = _compute_gradients(
        parameters.repeat_interleave(2, 0), pieces[0], pieces[1], shares, workspace
    )
    weight = torch.from_numpy((half / sizes[:, None]).astype(np.float32)).to(gradient.device)
    one, two = gradient.view(len(sizes), 2, -1).unbind(1)
    shared = workspace.flat.shared.parameters
    scatter = (one - two)[:, :shared].double().square().sum(1) * (
        weight.prod(1) * torch.from_numpy(sizes).to(weight.device)
    )
    mean = torch.addcmul(one * weight[:, :1], two, weight[:, 1:])
    return mean, (loss.view(-1, 2) * weight).sum(1), scatter


def _clip_rows(gradient: Tensor, most: float | None) -> None:
    """Scales longer rows down to a Euclidean norm of `most`."""
    if most is not None:
        norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        gradient.mul_((most / norms).clamp_(max=1.0))


def _step(
    parameters: Tensor,
    momentum: Tensor | None,
    gradient: Tensor,
    chosen: Tensor | None,
    rate: float,
    workspace: Workspace,
) -> None:
    """The step of `algorithms.sgd` for the chosen rows, or all of them."""
    local = workspace.local
    if local.weight_decay:
        gradient = gradient + local.weight_decay * (parameters if chosen is None else parameters[chosen])
    plain = gradient
    if momentum is not None and chosen is None:
        gradient = momentum.mul_(local.momentum).add_(gradient)
    elif momentum is not None and chosen is not None:
        gradient = gradient + momentum[chosen] * local.momentum
        momentum[chosen] = gradient
    if local.nesterov:
        gradient = plain + gradient * local.momentum
    if chosen is None:
        parameters.add_(gradient, alpha=-local.learning_rate * rate)
    else:
        # Only the rows of devices that took this iteration.
        parameters.index_add_(0, chosen, gradient, alpha=-local.learning_rate * rate)


# Of the length of an update: float32 leaves about 1e-5 after two steps.
_MOST_DIFFERENCE = 0.01


def find_obstacle(
    task: Task, training: TrainingParameters, model: FlatModel, data: DeviceData, device: str = "cpu"
) -> str | None:
    """Why devices cannot be trained side by side, or None if they can.

    `torch.func.vmap` supports most layers, but not all, and some (recurrent ones) would ignore the parameters
    they are given. So a trial trains two devices for two steps both ways and compares.
    """
    alike = replace(training, error_feedback=False)
    workspace = Workspace(task, alike, compressor("none"), device)
    restriction = _find_restriction(workspace)
    if restriction is not None:
        return restriction
    orders = [Order(0, 0, 0, number, 1.0, 1.0, 2, model) for number in range(2)]
    try:
        alone = [device_update(order, data, DeviceState(), workspace) for order in orders]
        together = _train_together(orders, data, workspace)
    except DivergedError:
        return None  # the run itself says so, with device and round
    if isinstance(together, str):
        return together
    for (one, _), (two, _) in zip(alone, together, strict=True):
        first, second = decode(one.update), decode(two.update)
        if float((first - second).norm()) > _MOST_DIFFERENCE * float(first.norm()):
            return "torch.func.vmap computes other gradients for the model"
    return None


def _train_together(
    orders: list[DeviceOrder], data: DeviceData, workspace: Workspace
) -> list[tuple[DeviceReport, DeviceState]] | str:
    """The devices' reports, or why there are none."""
    count = len(orders)
    try:
        with warnings.catch_warnings():
            # Torch warns where it has to compute row by row, which is slower than one device at a time.
            warnings.filterwarnings("error", "There is a performance drop", UserWarning)
            return device_updates_batched(orders, [data] * count, [DeviceState()] * count, workspace)
    except CfelError:
        raise
    except Exception as error:  # noqa: BLE001 — user-defined code in vmap fails in many ways
        return f"torch.func.vmap does not support the model ({_first_sentence(error)})"


def _first_sentence(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
