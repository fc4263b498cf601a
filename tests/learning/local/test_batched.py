"""Side by side equals one by one, up to the order of additions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cfel.errors import InputError
from cfel.learning.data.images import crop_and_flip
from cfel.learning.device import device_update
from cfel.learning.device_messages import DeviceState
from cfel.learning.edge import edge_aggregate
from cfel.learning.local.batched import device_updates_batched
from cfel.learning.local.workspace import Workspace
from cfel.learning.task import DeviceData, Task, initial_model
from tests.learning.conftest import Build, Make, Spread, dense


def _compare(
    task: Task, scratch: Workspace, devices: list[DeviceData], order: Make, rounds: int = 3, **asked: float
) -> None:
    """Several edge rounds both ways from the same states; updates, states and estimates agree throughout."""
    models = [initial_model(task, 0), initial_model(task, 1)]
    alone = together = [DeviceState()] * len(devices)
    for edge_round in range(rounds):
        orders = [order(models[n % 2], n, edge_round=edge_round, **asked) for n in range(len(devices))]
        one = [device_update(o, d, s, scratch) for o, d, s in zip(orders, devices, alone, strict=True)]
        two = device_updates_batched(orders, devices, together, scratch)
        for (report, state), (batched_report, batched_state) in zip(one, two, strict=True):
            torch.testing.assert_close(dense(report), dense(batched_report), rtol=1e-3, atol=1e-5)
            assert report.steps == batched_report.steps
            assert report.device == batched_report.device
            known, batched = report.estimates, batched_report.estimates
            assert (known is None) == (batched is None)
            if known is not None and batched is not None:
                assert known.sigma2 == pytest.approx(batched.sigma2, rel=1e-3, abs=1e-6)
                assert known.g2 == pytest.approx(batched.g2, rel=1e-3, abs=1e-6)
            assert report.loss == pytest.approx(batched_report.loss, rel=1e-3, nan_ok=True)
            assert state.memory.keys() == batched_state.memory.keys()
            for name, expected in state.memory.items():
                torch.testing.assert_close(expected, batched_state.memory[name], rtol=1e-3, atol=1e-5)
            assert (state.residual is None) == (batched_state.residual is None)
            if state.residual is not None:
                torch.testing.assert_close(state.residual, batched_state.residual, rtol=1e-3, atol=1e-5)
        alone, together = [state for _, state in one], [state for _, state in two]
        models = [edge_aggregate(models[i], [r for r, _ in one][i::2]) for i in range(2)]


@pytest.mark.parametrize(
    "local",
    [
        {},
        {"momentum": 0.0},
        {"momentum_state": "reset", "steps": "systematic"},
        {"weight_decay": 0.01, "error_feedback": True},
        {"nesterov": True, "clip_gradient": 0.5},
        {"steps": "small_batches"},
    ],
    ids=str,
)
def test_dense_models(
    local: dict[str, object], digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    scratch = workspace(digits_task, "none", batch=20, **local)
    _compare(digits_task, scratch, spread(digits_task, 6), order, rho=0.7)


def test_personal_parts(digits_task: Task, workspace: Build, order: Make, spread: Spread) -> None:
    task = replace(digits_task, personal=("dense2.*",))
    _compare(task, workspace(task, "none", batch=20, error_feedback=True), spread(task, 4), order, rho=0.7)


def test_devices_of_unequal_size(digits_task: Task, workspace: Build, order: Make) -> None:
    """Devices with fewer samples than a batch are padded, and the padding weighs nothing."""
    sizes, start, devices = [1, 2, 7, 30, 100], 0, []
    for size in sizes:
        devices.append(DeviceData(digits_task.data, np.arange(start, start + size)))
        start += size
    _compare(digits_task, workspace(digits_task, "none", batch=20), devices, order, rounds=2, rho=1.0)


def test_convolutions_with_augmentation(
    image_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    moved = Task(image_task.data, image_task.model, augment=crop_and_flip(1))
    _compare(moved, workspace(moved, "none", batch=6), spread(moved, 4), order, rounds=2, rho=0.8, tau=3)


def test_compression_goes_through(digits_task: Task, workspace: Build, order: Make, spread: Spread) -> None:
    model, devices = initial_model(digits_task, 0), spread(digits_task, 3)
    results = device_updates_batched(
        [order(model, n, theta=0.1) for n in range(3)], devices, [DeviceState()] * 3, workspace(digits_task)
    )
    assert [report.update.wire_bits for report, _ in results] == [481 * 32 + 4810] * 3


def test_no_devices_and_no_iterations(
    digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    scratch, model = workspace(digits_task), initial_model(digits_task, 0)
    assert device_updates_batched([], [], [], scratch) == []
    [(report, _)] = device_updates_batched(
        [order(model, rho=0.0)], spread(digits_task, 2)[:1], [DeviceState()], scratch
    )
    assert report.steps == 0


def test_what_cannot_run_side_by_side_is_rejected(
    digits_task: Task, norm_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    with pytest.raises(InputError, match="batch-norm"):
        device_updates_batched(
            [order(initial_model(norm_task, 0))], spread(norm_task, 1), [DeviceState()], workspace(norm_task)
        )
    model = initial_model(digits_task, 0)
    with pytest.raises(InputError, match="same tau"):
        device_updates_batched(
            [order(model, 0, tau=1), order(model, 1, tau=2)],
            spread(digits_task, 2),
            [DeviceState()] * 2,
            workspace(digits_task),
        )


def test_small_batches_of_unequal_size_are_augmented_alike(
    workspace: Build, order: Make, spread: Spread, image_task: Task
) -> None:
    """What is drawn for a batch depends on its size, and must not on that of others in the group."""
    task = Task(image_task.data, image_task.model, augment=crop_and_flip(1))
    scratch = workspace(task, "none", batch=20, steps="small_batches")
    model, devices = initial_model(task, 0), spread(task, 4)
    orders = [order(model, n, rho=rho) for n, rho in enumerate((0.3, 0.5, 0.7, 1.0))]
    pairs = zip(orders, devices, strict=True)
    alone = [device_update(asked, own, DeviceState(), scratch)[0] for asked, own in pairs]
    together = device_updates_batched(orders, devices, [DeviceState()] * 4, scratch)
    for one, (two, _) in zip(alone, together, strict=True):
        torch.testing.assert_close(dense(one), dense(two), rtol=1e-3, atol=1e-5)
