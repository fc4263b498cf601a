"""What a module does when it is called is found out, and only what training changes is laid out."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.data import synthetic
from cfel.learning.models.files import load_model, named_tensors, save_model
from cfel.learning.models.flat import Behaviour, FlatModule, observe_behaviour
from cfel.learning.task import Task, check_batches, check_task, initial_model, measure_model
from tests import architectures

TWO = torch.arange(128.0).reshape(2, 1, 8, 8) / 64
SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def _restored_generator() -> object:
    """Modules are built here without a task, so they draw from torch's generator."""
    with torch.random.fork_rng(devices=[]):
        yield


class _Calls(nn.Module):
    """One parameter and whatever a test does with it."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x.flatten(1) + self.function(self)  # type: ignore[operator,no-any-return]


def _replace(module: _Calls) -> float:
    module.seen = torch.ones(())
    return 0.0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("perceptron", Behaviour(False, frozenset(), 1)),
        ("functional_dropout", Behaviour(True, frozenset(), 1)),
        ("always_random", Behaviour(True, frozenset(), 1)),
        ("random_slopes", Behaviour(True, frozenset(), 1)),
        # The table of positions is a buffer, but no statistic.
        ("transformer", Behaviour(True, frozenset(), 1)),
        ("batch_norm_of_values", Behaviour(False, frozenset({"2.running_mean", "2.running_var"}), 2)),
    ],
)
def test_behaviours(name: str, expected: Behaviour) -> None:
    module = getattr(architectures, name)(SHAPE, 10)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    assert observe_behaviour(module, TWO) == expected
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


def test_a_statistic_that_has_seen_only_zeros_is_one() -> None:
    module = nn.Sequential(nn.BatchNorm2d(1, affine=False), nn.Flatten(), nn.Linear(64, 2))
    found = observe_behaviour(module, torch.zeros(2, 1, 8, 8))
    assert found.statistics == frozenset({"0.running_mean", "0.running_var"})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda _: random.random(), "draws from Python's random module"),  # noqa: S311
        (lambda _: np.random.rand(), "draws from NumPy's global generator"),  # noqa: NPY002
        (_replace, "buffer 'seen' is replaced"),
    ],
)
def test_what_cannot_be_repeated_is_rejected(function: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        observe_behaviour(_Calls(function), TWO)


def test_only_trained_parameters_are_laid_out_and_counted() -> None:
    """Of 64 · 16 + 16 + 16 · 10 + 10 numbers, the last layer's."""
    assert FlatModule(architectures.frozen_backbone(SHAPE, 10)).parameters.numel() == 170
    assert measure_model(architectures.frozen_backbone, SHAPE, 10).parameters == 170
    # 2 · (16 + 32) for each of two changed layers, and 16 · 10 + 10 for the scores.
    assert measure_model(architectures.low_rank, SHAPE, 10).parameters == 2 * 2 * 48 + 170


def test_tied_parameters_are_laid_out_once_and_stay_tied() -> None:
    flat = FlatModule(architectures.tied(SHAPE, 10))
    assert flat.parameters.numel() == 17 * 16 + 16 * 16 + 16
    flat.parameters.fill_(0.5)
    weights = [flat.module.get_submodule(name).weight for name in ("table", "scores")]
    assert weights[0] is weights[1]
    assert torch.equal(weights[0], torch.full((17, 16), 0.5))  # type: ignore[arg-type]


def test_counters_start_anew_with_every_model() -> None:
    """`momentum=None` averages over the batches counted, which must not be those of the device before."""
    task = Task(synthetic(12, SHAPE), architectures.batch_norm)
    flat, model = task.build(), initial_model(task, 0)
    seen = []
    for _ in range(2):
        flat.load(model)
        flat.module.train()(TWO)
        seen.append(flat.buffers.clone())
    assert torch.equal(*seen)


def test_a_buffer_that_does_not_change_is_not_sent() -> None:
    task = Task(synthetic(12, SHAPE), architectures.transformer)
    assert initial_model(task, 0).buffers.numel() == 0


@pytest.mark.parametrize("seed", [0, 3])
def test_frozen_and_trained_values_come_from_the_same_seed(seed: int) -> None:
    task = Task(synthetic(12, SHAPE), architectures.frozen_backbone, seed=seed)
    flat = task.build()
    assert torch.equal(initial_model(task, seed).parameters, flat.parameters)
    fixed = flat.read_fixed()
    assert set(fixed) == {"1.weight", "1.bias"}
    other = Task(task.data, task.model, seed=seed + 1).build().read_fixed()
    assert not torch.equal(fixed["1.weight"], other["1.weight"])


def test_a_file_holds_frozen_parameters_too(tmp_path: Path) -> None:
    task = Task(synthetic(12, SHAPE), architectures.low_rank)
    flat, model, path = task.build(), initial_model(task, 0), tmp_path / "model.safetensors"
    save_model(path, model, flat)
    assert load_model(path, task.build()).sha256() == model.sha256()
    plain = architectures.low_rank(SHAPE, 10)
    plain.load_state_dict(named_tensors(model, flat))
    torch.testing.assert_close(plain.eval()(TWO), flat.module.eval()(TWO))
    with pytest.raises(InputError, match=r"'.*' is frozen and differs"):
        load_model(path, Task(task.data, task.model, seed=1).build())


def _all_frozen(_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(False)


def _lazy(_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def _detached(shape: tuple[int, ...], classes: int) -> nn.Module:
    model = architectures.frozen_backbone(shape, classes)
    model.register_forward_hook(lambda *given: given[-1].detach())
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_all_frozen, "no parameters to train"),
        (_lazy, "a lazy layer has no shape yet"),
        (_detached, "its loss does not depend on"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_cannot_be_trained_is_rejected_with_advice(model: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_task("task", Task(synthetic(12, SHAPE), model))  # type: ignore[arg-type]


def test_a_batch_of_one_is_rejected_where_batch_norm_cannot_train_on_it() -> None:
    flat = Task(synthetic(12, SHAPE), architectures.batch_norm_of_values).build()
    check_batches(flat, 2, [2, 9])
    with pytest.raises(InputError, match=r"batch norm.* data\.batch = 1"):
        check_batches(flat, 1, [2, 9])
    with pytest.raises(InputError, match="but device 1 has one sample"):
        check_batches(flat, 5, [7, 1])
    check_batches(Task(synthetic(12, SHAPE), architectures.dropout).build(), 1, [1])


def test_an_unused_parameter_gets_no_gradient() -> None:
    def model(shape: tuple[int, ...], classes: int) -> nn.Module:
        module = architectures.perceptron(shape, classes)
        module.unused = nn.Parameter(F.one_hot(torch.tensor(1), 3).float())
        return module

    check_task("task", Task(synthetic(12, SHAPE), model))
