"""A step's gradient is autograd's, whatever the layers are, and tiny batches get estimates too."""

import gc
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from cfel.learning.data import synthetic
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceState
from cfel.learning.local.algorithm import LocalParameters, TrainingParameters
from cfel.learning.local.batched import find_obstacle
from cfel.learning.models.builders import ModelBuilder
from cfel.learning.task import DeviceData, Task, initial_model
from tests import architectures
from tests.learning.conftest import Build, Make, dense

SHAPE = (1, 8, 8)


class _Standardised(nn.Conv2d):
    """Weight standardisation: a convolution that does not use its weight as it is."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, 3.0 * weight, self.bias)


class _TiedWithNorm(nn.Module):
    """Two layers with one weight, and a norm: as many places among the layers as there are parameters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(64, 8, bias=False).requires_grad_(False)
        self.one, self.two = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.two.weight = self.one.weight
        self.norm = nn.LayerNorm(8, bias=False)
        self.leave = nn.Linear(8, classes).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x.flatten(1))
        scores: Tensor = self.leave(self.norm(self.two(F.relu(self.one(x)))))
        return scores


class _Words(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) + 4).long().clamp(0, 8)


def _head(classes: int, *first: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(width, classes))


def _frozen_bias(shape: tuple[int, ...], classes: int) -> nn.Module:
    model = architectures.perceptron(shape, classes)
    next(each for name, each in model.named_parameters() if name == "1.bias").requires_grad_(False)
    return model


MODELS: dict[str, ModelBuilder] = {
    "standardised": lambda _, classes: _head(classes, _Standardised(1, 4, 3), width=144),
    "weight-norm": lambda _, classes: _head(
        classes, nn.Flatten(), parametrizations.weight_norm(nn.Linear(64, 4)), width=4
    ),
    "tied-with-norm": lambda _, classes: _TiedWithNorm(classes),
    "frozen-bias": _frozen_bias,
    "low-rank": lambda _, classes: _head(
        classes, nn.Flatten(), architectures.LowRank(nn.Linear(64, 8), 2), width=8
    ),
    "tied-table": architectures.tied,
    "sparse": lambda _, classes: nn.Sequential(
        _Words(), nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(256, classes)
    ),
    "plain": architectures.convolutions,
}


@pytest.mark.parametrize("name", MODELS)
def test_the_first_step_follows_the_gradient(name: str, workspace: Build, order: Make) -> None:
    """One step of plain SGD over all samples: −η∇F, which autograd alone gives as well."""
    task = Task(synthetic(30, SHAPE, classes=4), MODELS[name])
    scratch = workspace(task, "none", batch=8, momentum=0.0, learning_rate=0.5)
    model = initial_model(task, 0)
    report, _ = device_update(
        order(model, tau=1), DeviceData(task.data, np.arange(8)), DeviceState(), scratch
    )
    flat = task.build()
    loss = F.cross_entropy(flat.module.train()(task.data.train_inputs[:8]), task.data.train_targets[:8])
    gradient = [part.to_dense() for part in torch.autograd.grad(loss, flat.leaves)]
    found = flat.views(dense(report))
    for one, two in zip(found, gradient, strict=True):
        torch.testing.assert_close(one, -0.5 * two, rtol=1e-4, atol=1e-6)
    # All samples are in the batch: no noise is left, and G² is the gradient's square.
    assert report.estimates is not None
    assert report.estimates.sigma2 == 0.0
    expected = sum(float(part.square().sum()) for part in gradient)
    assert report.estimates.g2 == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("estimator", ["reuse", "fresh"])
@pytest.mark.parametrize("name", MODELS)
def test_any_model_trains_with_an_algorithm_that_changes_gradients(
    name: str, estimator: str, workspace: Build, order: Make
) -> None:
    """Such algorithms see the gradient as one vector, however it was computed."""
    task = Task(synthetic(30, SHAPE, classes=4), MODELS[name])
    scratch = workspace(task, "none", batch=8, algorithm="fedprox", estimator=estimator)
    report, _ = device_update(
        order(initial_model(task, 0)), DeviceData(task.data, np.arange(12)), DeviceState(), scratch
    )
    assert dense(report).norm() > 0


@pytest.mark.parametrize("batch", [2, 3])
def test_tiny_batches_of_batch_norm_take_fresh_estimates(batch: int, workspace: Build, order: Make) -> None:
    """Half of them is one sample, which batch norm cannot train on; statistics are the steps' only."""
    task = Task(synthetic(30, SHAPE, classes=4), architectures.batch_norm_of_values)
    data, model = DeviceData(task.data, np.arange(12)), initial_model(task, 0)
    reuse, fresh = (workspace(task, "none", batch=batch, estimator=kind) for kind in ("reuse", "fresh"))
    one, _ = device_update(order(model), data, DeviceState(), reuse)
    two, _ = device_update(order(model), data, DeviceState(), fresh)
    assert torch.equal(dense(one), dense(two))
    assert torch.equal(one.buffers, two.buffers)
    assert one.estimates is not None
    expected = device_estimate(order(model), data, fresh)
    assert (one.estimates.sigma2, one.estimates.g2) == (expected.sigma2, expected.g2)


@pytest.mark.parametrize("algorithm", ["sgd", "fedprox", "ditto"])
def test_no_vector_waits_for_the_garbage_collector(algorithm: str, workspace: Build, order: Make) -> None:
    """A cycle would keep a device's vectors until Python looks for cycles: gigabytes with large models."""
    task = Task(synthetic(30, SHAPE, classes=4), architectures.perceptron)
    scratch, data = workspace(task, "none", algorithm=algorithm), DeviceData(task.data, np.arange(12))
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        device_update(order(initial_model(task, 0)), data, DeviceState(), scratch)
        gc.collect()
        assert not [each for each in gc.garbage if isinstance(each, Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_draws_depend_on_the_step_alone(workspace: Build, order: Make) -> None:
    """Not on the devices before, on the steps before, or on what else draws from torch's generator."""
    task = Task(synthetic(30, SHAPE, classes=4), architectures.dropout)
    scratch, data, model = (
        workspace(task, "none"),
        DeviceData(task.data, np.arange(12)),
        initial_model(task, 0),
    )
    update = partial(device_update, data=data, state=DeviceState(), workspace=scratch)
    first = dense(update(order(model))[0])
    other = dense(update(order(model, 1))[0])
    with torch.random.fork_rng(devices=[]):
        torch.rand(7)
        assert torch.equal(first, dense(update(order(model))[0]))
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (architectures.perceptron, None),
        (architectures.dropout, "the model draws random numbers"),
        (architectures.batch_norm, "the batch-norm statistics of the model would change"),
        (architectures.gru, "torch.func.vmap"),
        (architectures.data_dependent, "torch.func.vmap does not support the model"),
    ],
)
def test_a_trial_finds_what_cannot_be_batched(model: ModelBuilder, expected: str | None) -> None:
    task = Task(synthetic(30, SHAPE, classes=4), model)
    data = DeviceData(task.data, np.arange(12))
    found = find_obstacle(task, TrainingParameters(batch=4), initial_model(task, 0), data)
    assert found is None if expected is None else expected in str(found)


def test_a_trial_leaves_divergence_to_the_run() -> None:
    task = Task(synthetic(30, SHAPE, classes=4), architectures.perceptron)
    training = TrainingParameters(LocalParameters(learning_rate=1e38), batch=4)
    assert find_obstacle(task, training, initial_model(task, 0), DeviceData(task.data, np.arange(12))) is None
