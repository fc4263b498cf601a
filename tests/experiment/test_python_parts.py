"""Experiments made of Python objects: what is accepted, what the file then says, and what is rejected."""

import re
import tomllib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from cfel.control import Scheme, SchemeParameters
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import stateless
from cfel.errors import InputError
from cfel.experiment import Experiment, experiment_toml, parse_experiment
from cfel.experiment.python_parts import digest_tensors
from cfel.learning.data import DataSet, digits
from cfel.learning.models.builders import mlp
from cfel.learning.task import Task

TINY: Any = {
    "preset": "none",
    "rounds": {"global": 1, "edge": 1, "local": 1},
    "fleet": {"devices": 2, "clusters": 1},
    "data": "synthetic",
}


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def half(parameters: SchemeParameters) -> Scheme:
    bounds = Bounds(rho=(parameters.rho_min, 1.0), theta=(0.5, 0.5))
    return stateless(lambda observation: plan_round(observation, parameters, bounds))


def make_arrays(samples: int = 12) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (samples, 1, 8, 8), dtype=np.uint8)
    labels = np.arange(samples) % 3
    return (images[4:], labels[4:]), (images[:4], labels[:4])


def test_sections_are_tables_names_or_dataclasses() -> None:
    by_table = Experiment(scheme={"name": "cef", "rho_min": 0.2}, rounds={"global": 3})
    assert by_table == Experiment(scheme=SchemeParameters("cef", rho_min=0.2), rounds=by_table.rounds)
    assert Experiment(scheme="cef").scheme.name == "cef"
    assert Experiment() == parse_experiment({"preset": "demo"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rounds": {"globl": 3}}, "globl"),
        ({"rounds": 3}, "rounds = 3: must be a table"),
        ({"preset": "dmo"}, "did you mean 'demo'"),
        ({"model": 3}, "model.name = 3: must be a name, a torch module or a function"),
        ({"data": np.zeros(3)}, "data.name: is a ndarray; must be a name, a DataSet"),
        (
            {"data": ((np.zeros((2, 4)), [0.5, 1.5]), (np.zeros((2, 4)), [0, 1]))},
            "train targets must be 2 whole numbers, got float64 of shape (2,); convert them with",
        ),
        (
            {"data": ((np.zeros((2, 4)), ["a", "b"]), (np.zeros((2, 4)), [0, 1]))},
            "number the classes, as np.unique(labels, return_inverse=True)[1] does",
        ),
        (
            {"data": ((np.zeros((2, 4)), [[0], [1]]), (np.zeros((2, 4)), [0, 1]))},
            "flatten them with .ravel()",
        ),
        (
            {"data": (np.zeros((2, 4)), np.zeros(2, int))},
            "data: is one pair of arrays; must be (train, test)",
        ),
        ({"data": (([["a"], ["b"]], [0, 1]), (np.zeros((2, 1)), [0, 1]))}, "train inputs must be numbers"),
        (
            {"rounds": {"target": 75}},
            "rounds.target = 75: must be at most 1, as accuracy is a share: 0.75 is",
        ),
        ({"data": ((np.zeros((2, 4)), [0, -1]), (np.zeros((2, 4)), [0, 1]))}, "row 1 holds label -1"),
        ({"scheme": 3}, "scheme.name = 3:"),
        ({"scheme": lambda: None}, "is called with (parameters)"),
    ],
)
def test_what_cannot_be_used_is_named(given: Any, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        Experiment(**given)


class Frame:
    """A table that NumPy can read and torch cannot, as those of pandas."""

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return np.zeros((2, 4))


def test_frames_and_truth_values_are_data() -> None:
    data = (
        Experiment(**TINY | {"data": ((Frame(), [True, False]), (Frame(), [False, True]))}).load_task().data
    )
    assert data.train_inputs.dtype == torch.float32
    assert data.train_targets.tolist() == [1, 0]


def test_a_task_of_its_own_may_aim_at_any_number() -> None:
    task = Task(digits(), mlp)
    assert Experiment(data=task, rounds={"target": 75}).rounds.target == 75


def test_a_function_without_arguments_builds_the_model() -> None:
    assert Experiment(**TINY, model=small_net).build_world().start.parameters.numel() == 650


def test_a_module_starts_with_its_own_values_and_is_left_as_it_is() -> None:
    module = small_net()
    before = digest_tensors(module.state_dict())
    world = Experiment(**TINY, model=module).build_world()
    assert torch.equal(world.start.parameters[:640].view(10, 64), module.state_dict()["1.weight"])
    world.task.build().parameters.zero_()
    assert digest_tensors(module.state_dict()) == before


def test_a_module_with_batch_norm_has_a_digest() -> None:
    """Its counters are single numbers, which have no dimension."""
    module = nn.BatchNorm1d(2)
    before = digest_tensors(module.state_dict())
    module(torch.zeros(4, 2))
    assert digest_tensors(module.state_dict()) != before


def test_importable_functions_are_written_as_names_that_a_file_can_use() -> None:
    experiment = Experiment(**TINY, model=mlp)
    text = experiment_toml(experiment)
    assert tomllib.loads(text)["model"]["name"] == "cfel.learning.models.builders:mlp"
    assert parse_experiment(tomllib.loads(text), experiment.code) == experiment


def test_other_objects_are_written_as_labels_that_no_file_can_use() -> None:
    module = small_net()
    experiment = Experiment(**TINY, model=module)
    document = tomllib.loads(experiment_toml(experiment))
    assert document["model"]["name"] == f"<model Sequential {digest_tensors(module.state_dict())}>"
    with pytest.raises(InputError, match=r"is a Python object that no file"):
        parse_experiment(document)


def test_the_label_of_a_module_changes_with_its_values() -> None:
    names = {Experiment(**TINY, model=small_net()).model.name for _ in range(2)}
    assert len(names) == 2


def test_parts_of_different_kinds_do_not_share_a_label() -> None:
    experiment = Experiment(**TINY, model=lambda: small_net(), scheme=lambda parameters: half(parameters))
    assert experiment.model.name == "<model <lambda>>"
    assert experiment.scheme.name == "<scheme <lambda>>"
    world = experiment.build_world()
    assert world.start.parameters.numel() == 650


def test_arrays_and_torch_data_sets_give_the_same_data() -> None:
    train, test = make_arrays()
    sets = tuple(TensorDataset(torch.tensor(x), torch.tensor(y)) for x, y in (train, test))
    for given in ((train, test), sets):
        data = Experiment(**{**TINY, "data": given}).load_task().data
        assert data.classes == 3
        assert torch.equal(data.train_inputs, torch.tensor(train[0]))
        assert torch.equal(data.test_targets, torch.tensor(test[1]))


def test_floating_inputs_become_float32() -> None:
    (x, y), test = make_arrays()
    data = Experiment(**{**TINY, "data": ((x / 255.0, y), (test[0] / 255.0, test[1]))}).load_task().data
    assert data.train_inputs.dtype == torch.float32


def test_a_task_brings_its_own_model_and_loss() -> None:
    data: DataSet = digits()
    task = Task(data, lambda _shape, _classes: small_net())
    experiment = Experiment(**{**TINY, "data": task})
    assert experiment.data.task is not None
    assert experiment.data.task.startswith("<data Task ")
    assert experiment.load_task().data is data


def test_numbers_of_numpy_are_written_as_plain_ones() -> None:
    """Loops over `np.arange` give such numbers, and a run starts with writing its experiment."""
    changed = Experiment().change({"rounds.edge": np.int64(3), "local.learning_rate": np.float32(0.5)})
    written = tomllib.loads(experiment_toml(changed))
    assert (written["rounds"]["edge"], written["local"]["learning_rate"]) == (3, 0.5)


def test_changes_keep_everything_else() -> None:
    experiment = Experiment(**TINY, model=small_net())
    changed = experiment.change({"rounds.global": 3, "scheme": half, "seed": 4, "data.partition": "iid"})
    assert (changed.rounds.global_rounds, changed.seed, changed.data.partition) == (3, 4, "iid")
    assert changed.scheme.name == f"{__name__}:half" or changed.scheme.name == "<scheme half>"
    assert changed.model == experiment.model
    assert changed.build_world().start.parameters.numel() == 650
    with pytest.raises(InputError, match="did you mean 'rounds'"):
        experiment.change({"round.global": 3})
