"""Models have the counts they should, and flat vectors are the module."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.data import DataSet, synthetic
from cfel.learning.models.builders import model_builder
from cfel.learning.models.files import load_model, named_tensors, save_model
from cfel.learning.models.flat import FlatModel, FlatModule, model_sha256
from cfel.learning.task import Task, initial_model


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("resnet20", (3, 32, 32), 10, 269_722),
        ("leaf_cnn", (1, 28, 28), 62, 6_603_710),
        ("small_cnn", (3, 32, 32), 10, 167_759),
        ("small_cnn", (1, 28, 28), 62, 133_711),
        ("mlp", (1, 8, 8), 10, 4_810),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, count: int) -> None:
    with torch.random.fork_rng(devices=[]):
        module = model_builder(name)(shape, classes)
    assert sum(p.numel() for p in module.parameters()) == count
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


def test_an_image_model_rejects_what_is_no_image() -> None:
    with pytest.raises(InputError, match=r"resnet20.*\(64,\)"):
        model_builder("resnet20")((64,), 10)


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'resnet20'"):
        model_builder("resnet2O")


def _reference(task: Task) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return task.model(task.data.input_shape, task.data.classes)


def test_a_flat_module_computes_what_the_module_does(norm_task: Task) -> None:
    module = _reference(norm_task)
    inputs = norm_task.data.train_inputs[:6]
    expected = module.eval()(inputs)
    flat = FlatModule(module)
    torch.testing.assert_close(flat.module.eval()(inputs), expected)
    assert flat.parameters.numel() == sum(p.numel() for p in flat.leaves)
    flat.parameters.zero_()
    assert not any(bool(leaf.detach().any()) for leaf in flat.leaves)


def test_batch_norm_statistics_are_views_too(norm_task: Task) -> None:
    flat = FlatModule(_reference(norm_task))
    before = flat.buffers.clone()
    flat.module.train()(norm_task.data.train_inputs[:6])
    assert not torch.equal(before, flat.buffers)
    assert flat.buffers.numel() == 2 * (7 * 16 + 6 * 32 + 6 * 64)


def test_load_then_read_gives_the_same_back(digits_task: Task) -> None:
    flat, model = digits_task.build(), initial_model(digits_task, 3)
    flat.load(model)
    assert flat.read().sha256() == model.sha256()
    with pytest.raises(InputError, match="7 numbers given, the model has 4810"):
        flat.load(FlatModel(torch.zeros(7), torch.zeros(0)))


def test_the_initial_model_depends_on_the_seed_alone(digits_task: Task) -> None:
    first = initial_model(digits_task, 0)
    with torch.random.fork_rng(devices=[]):
        torch.rand(3)
        assert initial_model(digits_task, 0).sha256() == first.sha256()
    assert initial_model(digits_task, 1).sha256() != first.sha256()


def test_model_sha256_depends_on_order_and_on_every_bit(digits_task: Task) -> None:
    one, two = initial_model(digits_task, 0), initial_model(digits_task, 1)
    changed = one.parameters.clone()
    changed[-1] += 1e-7
    digests = {
        model_sha256(models)
        for models in ([one, two], [two, one], [one], [FlatModel(changed, one.buffers), two])
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2).double(), "float64"),
        (nn.ReLU(), "no parameters"),
    ],
)
def test_what_cannot_be_trained_is_rejected(module: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FlatModule(module)


def test_a_builder_must_build_a_module() -> None:
    data: DataSet = synthetic(12)
    with pytest.raises(InputError, match="returned a int"):
        Task(data, lambda _shape, _classes: 3).build()  # type: ignore[arg-type, return-value]


def test_a_saved_model_comes_back_and_loads_into_plain_torch(norm_task: Task, tmp_path: Path) -> None:
    flat, model, path = norm_task.build(), initial_model(norm_task, 5), tmp_path / "model.safetensors"
    save_model(path, model, flat)
    assert load_model(path, norm_task.build()).sha256() == model.sha256()
    plain = _reference(norm_task)
    plain.load_state_dict(named_tensors(model, flat), strict=False)
    flat.load(model)
    inputs: Tensor = norm_task.data.test_inputs[:3]
    torch.testing.assert_close(plain.eval()(inputs), flat.module.eval()(inputs))
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".part"] == []


def test_a_model_of_another_shape_is_rejected_by_name(
    digits_task: Task, norm_task: Task, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, initial_model(digits_task, 0), digits_task.build())
    wider = Task(synthetic(12, (1, 4, 4)), model_builder("mlp")).build()
    with pytest.raises(InputError, match=r"'dense1\.weight' .*64, 64.*64, 16"):
        load_model(path, wider)
    with pytest.raises(InputError, match=r"'dense1\.bias' is not part of"):
        load_model(path, norm_task.build())
    with pytest.raises(InputError, match=r"absent\.safetensors: it does not exist"):
        load_model(tmp_path / "absent.safetensors", wider)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(InputError, match=r"pipe\.safetensors: .*regular file"):
        load_model(tmp_path / "pipe.safetensors", wider)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        load_model(path, wider)
    with pytest.raises(InputError, match="cannot write"):
        save_model(tmp_path / "no" / "where.safetensors", initial_model(digits_task, 0), digits_task.build())
