"""What an experiment builds: its engine, its setting with budgets, and its world."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfel.control import Budget, Rounds
from cfel.errors import InputError
from cfel.experiment import (
    Experiment,
    parse_experiment,
)
from cfel.learning.data import BUILTIN as DATA_SETS
from cfel.learning.data import load as load_data
from cfel.plugins import ANY_CODE
from cfel.rounds.dry_run import compute_use
from tests.paper_data import write_cifar10, write_femnist

SMALL: dict[str, Any] = {"rounds": {"global": 2, "edge": 2}, "fleet": {"devices": 6, "clusters": 3}}


def test_the_engine_is_chosen_by_the_model() -> None:
    """4,810 parameters are few enough to train side by side; what was asked for stays."""
    experiment = parse_experiment(SMALL)
    world = experiment.build_world()
    assert experiment.resolve(world).simulation.engine == "batched"
    asked = replace(experiment, simulation=replace(experiment.simulation, engine="threads"))
    assert asked.resolve(world).simulation.engine == "threads"


def test_a_share_is_of_what_cef_uses() -> None:
    experiment = parse_experiment({**SMALL, "budget": {"share_of_cef": 0.6}})
    setting = experiment.build_setting()
    cef = compute_use(setting)
    found = setting.budget
    assert found.seconds == pytest.approx(0.6 * cef.seconds, rel=1e-15)
    assert found.joules == pytest.approx(0.6 * cef.joules, rel=1e-15)


def test_numbers_go_before_the_share() -> None:
    experiment = parse_experiment({**SMALL, "budget": {"seconds": 5.0, "share_of_cef": 0.5}})
    setting = experiment.build_setting()
    assert setting.budget == Budget(5.0, 0.5 * compute_use(setting).joules)
    assert Experiment(preset="none").build_setting().budget == Budget(float("inf"), float("inf"))


def test_a_share_that_does_not_count_costs_nothing() -> None:
    """A dry run of a million edge rounds would take half an hour; presets have a share."""
    rounds = {"global": 500_000, "edge": 2}
    document = {**SMALL, "rounds": rounds, "budget": {"share_of_cef": 0.6, "seconds": 5.0, "joules": 7.0}}
    assert parse_experiment(document).build_setting().budget == Budget(5.0, 7.0)
    counted = parse_experiment({**document, "budget": {"share_of_cef": 0.6, "seconds": 5.0}})
    with pytest.raises(InputError, match=r"1,000,000 .* set budget\.seconds"):
        counted.build_setting()


def test_the_setting_is_what_the_file_says() -> None:
    """Ring of 3: each hears two neighbours. The perceptron has 64·64 + 64 + 64·10 + 10 = 4,810 numbers."""
    setting = parse_experiment({**SMALL, "seed": 7}).build_setting()
    assert (setting.fleet.devices, setting.fleet.clusters, setting.backhaul.clusters) == (6, 3, 3)
    assert (setting.seed, setting.model_bits) == (7, 32 * 4810)
    assert setting.rounds == Rounds(2, 2, 5, target=0.92)
    assert setting.backhaul_seconds.shape == (3,)
    assert setting.backhaul.zeta == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("data", "model", "parameters"),
    [
        ("cifar10", "resnet20", 269_722),
        # One input channel less (−2·16·9) and 52 classes more (+65·52).
        ("femnist", "resnet20", 272_814),
        # 3·32·25 + 32, 32·64·25 + 64, 64·8·8·2048 + 2048 and 2048·10 + 10.
        ("cifar10", "leaf_cnn", 8_464_842),
        ("femnist", "leaf_cnn", 6_603_710),
    ],
)
def test_the_setting_counts_the_model_on_its_data(data: str, model: str, parameters: int) -> None:
    """A model's size follows from its data set, whose files are not needed to tell."""
    setting = parse_experiment({**SMALL, "data": {"name": data}, "model": {"name": model}}).build_setting()
    assert setting.model_bits == 32 * parameters


def test_the_setting_counts_the_model_on_user_defined_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ResNet-20 with 100 classes instead of 10 has 65 · 90 parameters more than 269,722."""
    lines = [
        "from cfel.learning.data import synthetic",
        "def load(path):",
        "    return synthetic(200, (3, 16, 16), 100)",
    ]
    (tmp_path / "hundred_classes.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    document = {**SMALL, "data": {"name": "hundred_classes:load"}, "model": {"name": "resnet20"}}
    setting = parse_experiment(document, code=ANY_CODE).build_setting()
    assert setting.model_bits == 32 * (269_722 + 65 * 90)


@pytest.mark.parametrize("name", ["cifar10", "digits", "femnist", "synthetic"])
def test_built_in_data_has_the_shape_it_is_listed_with(name: str, tmp_path: Path) -> None:
    write = {"cifar10": write_cifar10, "femnist": write_femnist}.get(name)
    data = load_data(name, None if write is None else write(tmp_path / name))
    assert (DATA_SETS[name].input_shape, DATA_SETS[name].classes) == (data.input_shape, data.classes)


def test_costs_of_another_models_size() -> None:
    """Ten times the numbers: ν, the backhaul and CEF's use grow with them, the model stays as it is."""
    plain, charged = (
        parse_experiment({**SMALL, "model": {"name": "mlp", **changes}, "budget": {"share_of_cef": 0.6}})
        for changes in ({}, {"charged_parameters": 48_100})
    )
    small, large = plain.build_world().setting, charged.build_world().setting
    assert (
        charged.build_world().start.parameters.numel() == plain.build_world().start.parameters.numel() == 4810
    )
    assert (large.model_bits, large.charged_share) == (32 * 48_100, 10.0)
    assert large.backhaul_seconds.tolist() == pytest.approx((10 * small.backhaul_seconds).tolist())
    setting = charged.build_setting()
    assert (setting.model_bits, setting.backhaul_seconds[0]) == (32 * 48_100, large.backhaul_seconds[0])
    assert large.budget == setting.budget
    assert large.budget.seconds > small.budget.seconds


def test_held_out_samples_are_tested_on() -> None:
    experiment = parse_experiment({**SMALL, "data": {"held_out": 0.25}})
    world, whole = experiment.build_world(), parse_experiment(SMALL).build_world()
    trained = sum(device.samples for device in world.data)
    tested = len(world.task.data.test_targets)
    assert trained + tested == sum(device.samples for device in whole.data)
    assert tested == pytest.approx(0.25 * (trained + tested), abs=3)
