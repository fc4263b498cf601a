"""`local.precision`: which numbers are rounded, and what stays as it is without it."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.data import synthetic
from cfel.learning.device import device_update
from cfel.learning.device_messages import DeviceState
from cfel.learning.evaluate import evaluate
from cfel.learning.local.algorithm import LocalParameters
from cfel.learning.local.batched import find_obstacle
from cfel.learning.task import Task, initial_model
from tests.learning.conftest import Build, Make, Spread, dense

DATA = synthetic(60, (1, 8, 8), classes=4)


def test_products_are_rounded_and_everything_else_is_float32(image_task: Task, workspace: Build) -> None:
    """Inside the model products have bfloat16; outputs, losses and gradients have float32."""
    seen: list[tuple[torch.dtype, bool]] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append((outputs.dtype, torch.is_autocast_enabled("cpu")))
        return F.cross_entropy(outputs, targets, reduction="none")

    scratch = workspace(Task(image_task.data, image_task.model, loss), precision="bfloat16")
    inner: list[torch.dtype] = []
    layer = next(each for each in scratch.flat.module.modules() if isinstance(each, nn.Conv2d))
    layer.register_forward_hook(lambda _module, _inputs, outputs: inner.append(outputs.dtype))
    inputs, targets = image_task.load_two_samples()
    gradient, _ = scratch.compute_gradient(inputs, targets)
    assert (inner, seen) == ([torch.bfloat16], [(torch.float32, False)])
    assert {each.dtype for each in gradient} == {torch.float32}


def test_float32_is_the_default_and_rounds_nothing(
    image_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    data, model = spread(image_task, 2)[0], initial_model(image_task, 0)
    plain, named, rounded = (
        dense(device_update(order(model), data, DeviceState(), workspace(image_task, **local))[0])
        for local in ({}, {"precision": "float32"}, {"precision": "bfloat16"})
    )
    assert torch.equal(plain, named)
    assert not torch.equal(plain, rounded)


def test_an_update_is_close_to_that_of_float32(
    digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    """bfloat16 has 8 bits: products are off by 0.4 % at most, and their sums by less."""
    data, model = spread(digits_task, 20)[0], initial_model(digits_task, 0)
    reports = [
        device_update(order(model), data, DeviceState(), workspace(digits_task, precision=precision))[0]
        for precision in ("float32", "bfloat16")
    ]
    exact, rounded = map(dense, reports)
    assert float((exact - rounded).norm()) < 0.03 * float(exact.norm())
    first, second = (each.estimates for each in reports)
    assert first is not None
    assert second is not None
    assert (second.sigma2, second.g2) == pytest.approx((first.sigma2, first.g2), rel=0.1)


def test_evaluation_rounds_too(digits_task: Task, workspace: Build) -> None:
    model = initial_model(digits_task, 0)
    exact, rounded = (
        evaluate(model, workspace(digits_task, precision=precision)) for precision in ("float32", "bfloat16")
    )
    assert rounded.loss == pytest.approx(exact.loss, rel=0.01)
    assert rounded.loss != exact.loss


def test_nothing_of_it_is_left_behind(
    digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    """Neither torch's switches nor a copy of the module, nor the model of the order, nor the next worker."""
    data, model = spread(digits_task, 20)[0], initial_model(digits_task, 0)
    switches = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    plain = workspace(digits_task)
    before = dense(device_update(order(model), data, DeviceState(), plain)[0])
    scratch = workspace(digits_task, precision="bfloat16")
    digest = model.sha256()
    _, state = device_update(order(model), data, DeviceState(), scratch)
    evaluate(model, scratch)
    assert (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")) == switches
    assert {each.dtype for each in copy.deepcopy(scratch.flat.module).parameters()} == {torch.float32}
    assert {each.dtype for each in state.memory.values()} <= {torch.float32}
    assert model.sha256() == digest
    assert torch.equal(before, dense(device_update(order(model), data, DeviceState(), plain)[0]))


class _Twice(nn.Module):
    """One weight that is used twice, with something in between."""

    def __init__(self, classes: int, *, clears: bool) -> None:
        super().__init__()
        self.enter, self.twice, self.leave = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, classes)
        self.clears = clears

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(F.relu(self.enter(x.flatten(1))))
        if self.clears:
            torch.clear_autocast_cache()
        scores: Tensor = self.leave(self.twice(F.relu(x)))
        return scores


def test_other_threads_do_not_change_the_bits(workspace: Build, order: Make, spread: Spread) -> None:
    """Threads share autocast's cache of weights, and the first that leaves its model empties it for all."""
    found = []
    for clears in (False, True):
        task = Task(DATA, lambda _, classes, clears=clears: _Twice(classes, clears=clears))  # type: ignore[misc]
        data, model = spread(task, 2)[0], initial_model(task, 0)
        scratch = workspace(task, precision="bfloat16")
        found.append(dense(device_update(order(model), data, DeviceState(), scratch)[0]))
    assert torch.equal(*found)


def test_it_is_for_one_device_at_a_time(digits_task: Task, workspace: Build, spread: Spread) -> None:
    training = workspace(digits_task, precision="bfloat16").training
    reason = find_obstacle(digits_task, training, initial_model(digits_task, 0), spread(digits_task, 2)[0])
    assert reason == "local.precision = 'bfloat16' is for one device at a time"


def test_another_precision_is_an_error_that_names_the_key() -> None:
    with pytest.raises(InputError, match=r"local\.precision: unknown 'bfloat'"):
        LocalParameters(precision="bfloat")  # type: ignore[arg-type]
