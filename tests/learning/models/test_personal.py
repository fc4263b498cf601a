"""Personal parts: only the shared part is a model that edge servers see, and devices keep the rest."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cfel.errors import InputError
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceState
from cfel.learning.local.algorithm import LocalParameters
from cfel.learning.models.builders import mlp
from cfel.learning.models.files import load_model, named_tensors, save_model
from cfel.learning.models.flat import PARAMETERS, STATISTICS, complete_model
from cfel.learning.task import Task, initial_model, measure_model
from tests.learning.conftest import Build, Make, Spread, dense
from tests.learning.local.algorithms.conftest import make_workspace

HEAD = 64 * 10 + 10


@pytest.fixture
def task(digits_task: Task) -> Task:
    """The digits, with a head on every device."""
    return replace(digits_task, personal=("dense2.*",))


def test_patterns_that_cannot_be_are_rejected(digits_task: Task) -> None:
    with pytest.raises(InputError, match=r"'head\.\*' .*dense1\.weight"):
        replace(digits_task, personal=("dense2.*", "head.*")).build()
    with pytest.raises(InputError, match="nothing is left to share"):
        replace(digits_task, personal=("*",)).build()


def test_the_shared_part_is_what_is_counted_and_exchanged(task: Task) -> None:
    flat = task.build()
    assert flat.parameters.numel() == 4810
    assert flat.read().parameters.numel() == 4810 - HEAD == flat.shared.parameters
    assert measure_model(mlp, (64,), 10, ("dense2.*",)).parameters == 4810 - HEAD
    assert [slot.name for slot in flat.parameter_slots[2:]] == ["dense2.weight", "dense2.bias"]


def test_a_device_keeps_its_part_and_sends_the_rest(task: Task, order: Make, spread: Spread) -> None:
    model, data = initial_model(task, 0), spread(task, 4)[0]
    workspace = make_workspace(task, LocalParameters(momentum=0.0))
    report, state = device_update(order(model), data, DeviceState(), workspace)
    assert dense(report).numel() == 4810 - HEAD
    first = workspace.task.build().read_personal()
    assert not torch.equal(state.memory[PARAMETERS], first[PARAMETERS])
    # From the same shared part, the device continues with its own head, and another with a new one.
    again, _ = device_update(order(model, edge_round=1), data, state, workspace)
    new, _ = device_update(order(model, edge_round=1), data, DeviceState(), workspace)
    assert again.loss < new.loss
    # Estimates without the device's state get its part with the model.
    whole = complete_model(model, state.memory)
    assert device_estimate(order(whole), data, workspace) != device_estimate(order(model), data, workspace)


def test_shared_and_whole_training_agree(digits_task: Task, task: Task, order: Make, spread: Spread) -> None:
    """In its first edge round, a device trains as it would without a personal part."""
    data = spread(task, 4)[0]
    plain, _ = device_update(
        order(initial_model(digits_task, 0)),
        data,
        DeviceState(),
        make_workspace(digits_task, LocalParameters()),
    )
    own, state = device_update(
        order(initial_model(task, 0)), data, DeviceState(), make_workspace(task, LocalParameters())
    )
    # The largest tensors come first: without a personal part, the head's weight is between the first layer's.
    assert torch.equal(dense(plain)[:4096], dense(own)[:4096])
    assert torch.equal(dense(plain)[4736:4800], dense(own)[4096:])
    assert own.loss == plain.loss
    assert own.estimates is not None
    assert plain.estimates is not None
    assert 0 < own.estimates.sigma2 < plain.estimates.sigma2
    assert state.memory["momentum"].numel() == 4810


def test_terms_of_an_algorithm_are_of_the_shared_part(task: Task, order: Make, spread: Spread) -> None:
    """FedProx with a strong pull holds the shared part, and leaves the device's own part alone."""
    data, model = spread(task, 4)[0], initial_model(task, 0)

    def train(mu: float) -> tuple[float, float]:
        local = LocalParameters(algorithm="fedprox", momentum=0.0, options={"mu": mu})
        report, state = device_update(order(model, tau=8), data, DeviceState(), make_workspace(task, local))
        first = task.build().read_personal()[PARAMETERS]
        return float(dense(report).norm()), float((state.memory[PARAMETERS] - first).norm())

    free, held = train(0.0), train(15.0)
    assert held[0] < 0.7 * free[0]
    assert held[1] > 0.7 * free[1]


def test_statistics_may_stay_as_well(norm_task: Task, order: Make, spread: Spread, workspace: Build) -> None:
    """FedBN: norm layers, with their statistics, are the device's own."""
    names = [slot.name for slot in norm_task.build().buffer_slots]
    task = replace(norm_task, personal=(names[0].rpartition(".")[0] + ".*",))
    model, data = initial_model(task, 0), spread(task, 2)[0]
    report, state = device_update(order(model), data, DeviceState(), workspace(task, "none", batch=9))
    assert report.buffers.numel() == model.buffers.numel() < norm_task.build().buffers.numel()
    assert state.memory[STATISTICS].numel() + report.buffers.numel() == norm_task.build().buffers.numel()
    again, after = device_update(order(model, edge_round=1), data, state, workspace(task, "none", batch=9))
    assert not torch.equal(state.memory[STATISTICS], after.memory[STATISTICS])
    assert again.steps


def test_a_whole_model_per_device_excludes_a_part(task: Task) -> None:
    with pytest.raises(InputError, match=r"leave out model\.personal"):
        make_workspace(task, LocalParameters(algorithm="ditto"))


def test_files_of_the_shared_part(task: Task, tmp_path: Path) -> None:
    """They have no personal tensors, and a model that starts from one begins these anew."""
    flat, model = task.build(), initial_model(task, 1)
    assert sorted(named_tensors(model, flat)) == ["dense1.bias", "dense1.weight"]
    save_model(tmp_path / "shared.safetensors", model, flat)
    assert torch.equal(load_model(tmp_path / "shared.safetensors", flat).parameters, model.parameters)
    assert torch.equal(flat.read_personal()[PARAMETERS], task.build().read_personal()[PARAMETERS])
