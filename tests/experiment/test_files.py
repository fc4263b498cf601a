"""Experiment files: presets, overrides, what is rejected, and what is written back."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfel.control import Rounds
from cfel.errors import ExperimentError, InputError
from cfel.experiment import (
    PRESETS,
    Experiment,
    experiment_toml,
    load_experiment,
    parse_experiment,
    preset_experiment,
)
from cfel.plugins import ANY_CODE
from cfel.system.conditions import RandomConditions
from cfel.system.device_classes import HardwareConditions
from cfel.system.device_tables import TraceParameters
from cfel.system.fleet import Availability

SMALL: dict[str, Any] = {"rounds": {"global": 2, "edge": 2}, "fleet": {"devices": 6, "clusters": 3}}
NARROW = (0.0004, 0.002)
"""The demo's radios, in MHz: its model is small, and should take its time to send all the same."""


GATEWAY = {
    "name": "gateway",
    "flops_per_second": 1e10,
    "compute_watts": 5,
    "radio_watts": 1,
    "uplink_bits_per_second": 1e6,
    "source": "measured",
}


def loaded(folder: Path, text: str, *changes: str) -> Experiment:
    file = folder / "experiment.toml"
    file.write_text(text, encoding="utf-8")
    return load_experiment(file, changes, ANY_CODE)


def conditions(table: dict[str, Any]) -> Any:
    return parse_experiment({"fleet": {"conditions": table}}).fleet.conditions


@pytest.mark.parametrize(
    ("name", "rounds", "alpha", "size", "rate"),
    [
        ("demo", Rounds(20, 5, 5, target=0.92), 1.5, 4_810, 0.02),
        ("paper-cifar10", Rounds(40, 5, 5, target=0.7), 0.15, 269_722, 0.05),
        ("paper-femnist", Rounds(40, 5, 5, target=0.75), 1.5, 6_603_710, 0.03),
    ],
)
def test_presets(name: str, rounds: Rounds, alpha: float, size: int, rate: float) -> None:
    found = preset_experiment(name)
    assert (found.name, found.seed, found.rounds) == (name, 0, rounds)
    assert (found.fleet.devices, found.fleet.clusters, found.topology.kind) == (64, 8, "ring")
    radios = NARROW if name == "demo" else RandomConditions().bandwidth_megahertz
    # The paper's channel has no least gain; the demo's is milder.
    floor = 0.01 if name == "demo" else 0.0
    assert found.fleet.conditions == RandomConditions(
        alpha_joules=alpha, bandwidth_megahertz=radios, channel_floor=floor
    )
    assert found.change({"budget.seconds": 1.0, "budget.joules": 1.0}).build_setting().model_bits == 32 * size
    assert (found.local.learning_rate, found.local.momentum) == (rate, 0.9)
    assert found.scheme.name == ("hcef_plus" if name == "demo" else "hcef")
    assert found.budget.share_of_cef == 0.6


def test_presets_are_laid_over_each_other(tmp_path: Path) -> None:
    """The best training options change the scheme and the learning, and leave the paper's setting alone."""
    found, paper = loaded(tmp_path, 'preset = ["paper-femnist", "best"]'), preset_experiment("paper-femnist")
    assert (found.scheme.name, found.aggregation.optimiser) == ("hcef_plus", "orthogonal")
    assert found.local.algorithm == "shared_momentum"
    assert (found.rounds, found.fleet, found.data) == (paper.rounds, paper.fleet, paper.data)


def test_every_preset_is_listed() -> None:
    folder = Path(__file__).parents[2] / "src" / "cfel" / "presets"
    assert {*(file.stem for file in folder.glob("*.toml")), "none"} == {*PRESETS}


def test_the_empty_preset_is_the_defaults() -> None:
    """Files with every default spelled out stand on it, so that no later preset can change them."""
    assert preset_experiment("none") == Experiment(preset="none")


def test_an_empty_file_is_the_demo(tmp_path: Path) -> None:
    """Except for its radios, which only fit its model: the documented ones, unless the demo is asked for."""
    demo = preset_experiment("demo")
    assert loaded(tmp_path, "") == replace(demo, fleet=replace(demo.fleet, conditions=RandomConditions()))
    assert loaded(tmp_path, 'preset = "demo"') == demo


def test_a_file_is_laid_over_its_preset(tmp_path: Path) -> None:
    """One key of a table changes that key only, at every depth."""
    text = """
        preset = "paper-femnist"
        name = "mine"
        [rounds]
        edge = 3
        [fleet.conditions]
        watts = [0.2, 0.4]
        [scheme]
        options = {literal = true}
    """
    found = loaded(tmp_path, text)
    assert (found.name, found.rounds) == ("mine", Rounds(40, 3, 5, target=0.75))
    assert found.fleet.conditions == RandomConditions(alpha_joules=1.5, watts=(0.2, 0.4), channel_floor=0.0)
    assert (found.fleet.devices, found.model.name) == (64, "leaf_cnn")
    assert (found.scheme.name, found.scheme.option("literal", False)) == ("hcef", True)


def test_conditions_of_another_kind_replace_the_presets() -> None:
    """`alpha_joules` of the preset would be unknown to device classes."""
    table = {"kind": "classes", "classes": {"iphone-x": 0.5, "jetson-nano": 0.5}, "flops_per_sample": 1e8}
    found = conditions(table)
    assert isinstance(found, HardwareConditions)
    assert (found.classes, found.batch) == ({"iphone-x": 0.5, "jetson-nano": 0.5}, 50)
    same = conditions({"kind": "random", "watts": [1, 2]})
    assert same == RandomConditions(watts=(1, 2))


def test_another_topology_keeps_the_rest(tmp_path: Path) -> None:
    """All kinds of backhaul share their keys, so choosing another one must not reset the weights."""
    found = loaded(tmp_path, "topology = {kind = 'line', weights = 'size'}", "topology.kind=star")
    assert (found.topology.kind, found.topology.weights) == ("star", "size")


def test_naming_the_kind_already_meant_changes_nothing(tmp_path: Path) -> None:
    text = 'preset = "demo"\nfleet.conditions.watts = [1, 2]'
    found = loaded(tmp_path, text, "fleet.conditions.kind=random")
    expected = RandomConditions(alpha_joules=1.5, watts=(1, 2), bandwidth_megahertz=NARROW)
    assert found.fleet.conditions == expected


def test_classes_of_ones_own() -> None:
    table = {
        "kind": "classes",
        "classes": {"gateway": 1},
        "flops_per_sample": 1e8,
        "extra_classes": [GATEWAY],
    }
    found = conditions(table)
    assert found.extra_classes[0].name == "gateway"
    now = found.conditions(0, 0, 0, 64, 2e6)
    assert (now.mu[0], now.alpha[0], now.nu[0]) == pytest.approx((0.5, 2.5, 2.0))


def test_classes_of_files_are_part_of_the_experiment(tmp_path: Path) -> None:
    """Without the file, too; the experiment file's own classes take precedence over those of files."""
    board = "title = 'file'\nflops_per_second = 1e9\ncompute_watts = 5\nradio_watts = 1\n"
    text = "".join(f"[classes.{name}]\n{board}uplink_bits_per_second = 1e6\n" for name in ("gateway", "b"))
    (tmp_path / "boards.toml").write_text(text)
    classes = "kind = 'classes', classes = {gateway = 0.5, b = 0.5}, flops_per_sample = 1e8"
    own = ", ".join(f"{key} = {value!r}" for key, value in GATEWAY.items())
    found = loaded(
        tmp_path,
        f"fleet.conditions = {{{classes}, class_files = ['boards.toml'], extra_classes = [{{{own}}}]}}",
    )
    (tmp_path / "boards.toml").unlink()
    assert parse_experiment(tomllib.loads(experiment_toml(found))) == found
    assert isinstance(found.fleet.conditions, HardwareConditions)
    rows = {row.name: row.source for row in found.fleet.conditions.extra_classes}
    assert rows == {"gateway": GATEWAY["source"], "b": "file"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "boards.toml: it does not exist"),
        ("classes = 5", "boards.toml: classes = 5: must be a table"),
        ("classes =", "boards.toml: cannot be read: "),
    ],
)
def test_bad_class_files_are_named(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "boards.toml").write_text(content)
    with pytest.raises(ExperimentError, match=reason):
        loaded(tmp_path, CLASSES + "classes = {iphone-x = 1}, class_files = ['boards.toml']}")
    with pytest.raises(ExperimentError, match=r"class_files = '(boards\.toml|/)"):
        loaded(tmp_path, CLASSES + "classes = {iphone-x = 1}, class_files = 'boards.toml'}")


def test_a_change_of_a_section_is_one_of_its_name(tmp_path: Path) -> None:
    """As in the variants of `cfel compare` and in Python; the other keys of the section stay."""
    found = loaded(tmp_path, "scheme.rho_min = 0.2", "scheme=cef", "topology=complete")
    assert (found.scheme.name, found.scheme.rho_min, found.topology.kind) == ("cef", 0.2, "complete")


def test_a_wrong_change_is_blamed_itself(tmp_path: Path) -> None:
    """Not the file, which is right; what is wrong in the file is the file's, whatever was changed."""
    with pytest.raises(ExperimentError, match=r"^--set rounds\.global=abc: .* 'abc'"):
        loaded(tmp_path, "", "rounds.edge=2", "rounds.global=abc")
    with pytest.raises(ExperimentError, match=r"e\w*\.toml: rounds\.local = 0"):
        loaded(tmp_path, "rounds.local = 0", "rounds.global=3")


def test_absences_and_batteries(tmp_path: Path) -> None:
    text = """
        fleet.devices = 4
        fleet.clusters = [3, 1]
        fleet.battery_joules = [1.0, 2.0, 3.0, inf]
        fleet.availability = {away_probability = 0.5, away = [[3, 0, 2]]}
    """
    fleet = loaded(tmp_path, text).fleet
    assert (fleet.clusters, fleet.battery_joules) == ((3, 1), (1, 2, 3, float("inf")))
    assert fleet.availability == Availability(0.5, ((3, 0, 2),))
    assert loaded(tmp_path, "fleet.battery_joules = 50").fleet.battery_joules == 50


def test_file_names_are_relative_to_the_experiment(tmp_path: Path) -> None:
    text = """
        fleet.conditions = {kind = "trace", file = "data/trace.csv"}
        topology = {kind = "edges", file = "links.txt"}
    """
    found = loaded(tmp_path, text)
    assert found.fleet.conditions == TraceParameters(str(tmp_path / "data" / "trace.csv"))
    assert found.topology.file == str(tmp_path / "links.txt")
    elsewhere = tmp_path / "far" / "links.txt"
    changed = loaded(tmp_path, text, f"topology.file={elsewhere}")
    assert changed.topology.file == str(elsewhere)


def test_file_names_are_absolute_once_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the resolved file means the same wherever it is put; --set speaks of the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "e.toml").write_text("data.path = 'files'\nmodel.init = 'm.safetensors'")
    found = load_experiment(Path("below") / "e.toml", ["topology.file=links.txt"])
    assert found.data.path == str(tmp_path / "below" / "files")
    assert found.model.init == str(tmp_path / "below" / "m.safetensors")
    assert found.topology.file == str(tmp_path / "links.txt")


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("rounds.global=3", "rounds.global_rounds", 3),
        (" rounds.global = 3 ", "rounds.global_rounds", 3),
        ("scheme.rho_min=0.25", "scheme.rho_min", 0.25),
        ("scheme.name=cef_f", "scheme.name", "cef_f"),
        ('scheme.name="cef_f"', "scheme.name", "cef_f"),
        ("scheme.name=cfel.control.schemes.oort:oort", "scheme.name", "cfel.control.schemes.oort:oort"),
        ("name=two words", "name", "two words"),
        ('name=a "quoted" \\ word', "name", 'a "quoted" \\ word'),
        ("name=a=b", "name", "a=b"),
        ("fleet.clusters=[32, 32]", "fleet.clusters", (32, 32)),
        ("fleet.conditions.watts=[0.5, 0.6]", "fleet.conditions.watts", (0.5, 0.6)),
        ("scheme.options={least_speed = 0.7}", "scheme.options", {"least_speed": 0.7}),
        ("budget.seconds=inf", "budget.seconds", float("inf")),
    ],
)
def test_assignments(tmp_path: Path, change: str, path: str, value: object) -> None:
    found: Any = loaded(tmp_path, "name = 'file'\nrounds.global = 9\n", change)
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_the_last_assignment_counts(tmp_path: Path) -> None:
    found = loaded(tmp_path, "rounds.edge = 2", "rounds.global=3", "rounds.global=4")
    assert found.rounds == Rounds(4, 2, 5, target=0.92)


@pytest.mark.parametrize("change", ["rounds", "=3", " =3", "", "a b=3", "rounds..global=3"])
def test_malformed_assignments(tmp_path: Path, change: str) -> None:
    with pytest.raises(ExperimentError, match=r"^--set '"):
        loaded(tmp_path, "", change)


CLASSES = 'fleet.conditions = {kind = "classes", flops_per_sample = 1.0, '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "round.global = 3",
            "top level: unknown 'round'; did you mean 'rounds'? (allowed: aggregation, budget, compression, ",
        ),
        ("rounds.glbal = 3", "[rounds]: unknown 'glbal'"),
        ("fleet.device = 3", "[fleet]: unknown 'device'"),
        ("fleet.conditions.wats = 3", "[fleet.conditions]: unknown 'wats'"),
        ("fleet.availability.awy = 3", "[fleet.availability]: unknown 'awy'"),
        ("scheme.solvr = 'joint'", "[scheme]: unknown 'solvr'"),
        ("preset = 'paper-cifar'", "preset: unknown 'paper-cifar'"),
        ("preset = 5", "preset: unknown 5 (allowed: best, demo, none, paper-cifar10, paper-femnist)"),
        ("fleet.conditions.kind = 'clases'", "conditions.kind: unknown 'clases'"),
        ("fleet.conditions.kind = ['x']", "fleet.conditions.kind: unknown ['x'] (allowed: classes, "),
        ("scheme.solver = 'jont'", "scheme.solver: unknown 'jont'"),
        ("scheme.on_unreachable = 'min'", "scheme.on_unreachable: unknown 'min'"),
        ("topology.weights = 'siz'", "topology.weights: unknown 'siz'"),
        ("model.name = 'resnet'", "model: unknown 'resnet'"),
        ("name = 5", "name = 5: must be text"),
        ("name = ''", "name = '':"),
        ("seed = 1.5", "seed = 1.5: must be a whole number"),
        ("seed = true", "seed = True:"),
        ("rounds = 5", "rounds = 5: must be a table"),
        ("fleet.conditions = 5", "fleet.conditions = 5:"),
        ("fleet.availability = 5", "fleet.availability = 5:"),
        ("rounds.global = 0", "rounds.global = 0: must be a whole number ≥ 1"),
        ("rounds.global = 'x'", "rounds.global = 'x':"),
        ("rounds.edge = 2.5", "rounds.edge = 2.5:"),
        ("fleet.devices = true", "fleet.devices = True:"),
        ("fleet.clusters = [1, 2]", "fleet.clusters: sizes sum to 3, must be fleet.devices = 64"),
        ("fleet.availability.away = 5", "availability.away = 5: must be a list"),
        ("fleet.availability.away = [[99, 0, 1]]", "away[0]: unknown device 99 (allowed: 0 to 63)"),
        ("fleet.conditions.watts = [2, 1]", "conditions.watts = [2.0, 1.0]: the lowest must not exceed"),
        ("fleet.conditions = {kind = 'trace'}", "fleet.conditions.file: is missing"),
        (CLASSES + "classes = 5}", "conditions.classes = 5: must be a table of class and amount"),
        (CLASSES + "classes = {iphon = 1}}", "conditions.classes: unknown 'iphon'"),
        (CLASSES + "classes = {iphone-x = 1}, extra_classes = 5}", "extra_classes = 5:"),
        (CLASSES + "classes = {iphone-x = 1}, extra_classes = [5]}", "extra_classes[0] = 5:"),
        (CLASSES + "classes = {a = 1}, extra_classes = [{name = 'a'}]}", "[0].flops_per_second: is missing"),
        ("topology.edges = 5", "topology.edges = 5:"),
        ("topology = {kind = 'edges', file = 5}", "topology.file = 5:"),
        ("topology.p_edge = 2", "topology.p_edge = 2: must be a finite number > 0 and ≤ 1"),
        ("model = {name = 5, parameters = 5}", "model.name = 5:"),
        ("model.parameters = 0", "model.parameters = 0:"),
        ("local.learning_rate = 0", "local.learning_rate = 0: must be a finite number > 0"),
        ("local.momentum = 1", "local.momentum = 1: must be a finite number ≥ 0 and < 1"),
        ("local.momentum = 'x'", "local.momentum = 'x':"),
        ("local.fresh_batches = 1", "local.fresh_batches = 1: must be a whole number ≥ 2"),
        (
            "local.kept_energy_at = [0.5, 2]",
            "local.kept_energy_at[1] = 2: must be a finite number ≥ 0 and ≤ 1",
        ),
        ("local.steps = 'bernouli'", "local.steps: unknown 'bernouli'"),
        ("local.batch = 5", "local.batch: belongs in [data]"),
        ("local.error_feedback = true", "local.error_feedback: belongs in [compression]"),
        ("simulation.stop = 'budget'", "simulation.stop: belongs in [rounds]"),
        ("simulation.target = 0.5", "simulation.target: belongs in [rounds]"),
        ("simulation.engine = 'thread'", "simulation.engine: unknown 'thread'"),
        ("simulation.workers = -1", "simulation.workers = -1: must be a whole number ≥ 0"),
        ("simulation.evaluate_on = 'edges'", "simulation.evaluate_on: unknown 'edges'"),
        ("simulation.device = 5", "simulation.device = 5:"),
        ("simulation = 5", "simulation = 5:"),
        ("rounds = {stop = 'target', target = 'x'}", "rounds.target = 'x': must be a finite number"),
        ("data.batch = 0", "data.batch = 0:"),
        ("data.name = 5", "data.name = 5:"),
        ("data.path = 5", "data.path = 5:"),
        ("data.beta = 'x'", "data.beta = 'x':"),
        ("data.shards = 0", "data.shards = 0:"),
        ("data.partition = 'dirichle'", "partition: unknown 'dirichle'"),
        ("data.augment = 'crop'", "augmentation: unknown 'crop'"),
        ("model.init = 5", "model.init = 5:"),
        ("compression.kind = 'top'", "compression: unknown 'top'"),
        ("compression.error_feedback = 1", "compression.error_feedback = 1: must be true or false"),
        ("scheme.name = 5", "scheme.name = 5:"),
        ("scheme.options = 5", "scheme.options = 5:"),
        ("scheme.rho_min = 0", "scheme.rho_min = 0:"),
        ("budget.seconds = 0", "budget.seconds = 0: must be a number > 0"),
        (
            "budget.share_of_cef = 60",
            "budget.share_of_cef = 60: is a share, not a percentage; for 60 % write 0.6",
        ),
        ("budget.share_of_cef = 'x'", "budget.share_of_cef = 'x':"),
        ("rounds =", "cannot be read: Invalid value"),
    ],
)
def test_rejected_with_key_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        loaded(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'experiment.toml'}: ")
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for file in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ExperimentError, match="cannot be read"):
            load_experiment(file)
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ExperimentError, match="cannot be read"):
        load_experiment(tmp_path / "odd.toml")


def test_an_unknown_scheme_is_found_when_it_is_read() -> None:
    """Not after the data have been loaded and the fleet been built."""
    with pytest.raises(InputError, match="scheme: unknown 'hcf'"):
        parse_experiment({"scheme": {"name": "hcf"}})


def test_stopping_at_a_target_needs_one() -> None:
    with pytest.raises(InputError, match=r"'target': needs rounds\.target"):
        parse_experiment({"preset": "none", "rounds": {"global": 1, "stop": "target"}})


CLASS_TABLE = {
    "kind": "classes",
    "classes": {"gateway": 1},
    "flops_per_sample": 1e8,
    "extra_classes": [GATEWAY],
}


@pytest.mark.parametrize(
    "document",
    [
        *({"preset": name} for name in PRESETS),
        {"fleet": {"conditions": CLASS_TABLE}},
        {"fleet": {"conditions": {"kind": "trace", "file": "trace.csv"}}},
        {"fleet": {"availability": {"away_probability": 0.25, "away": [[3, 0, 2], [0, 1, 1]]}}},
        {"fleet": {"devices": 3, "clusters": [2, 1], "battery_joules": [1.0, 2.5, float("inf")]}},
        {"fleet": {"battery_joules": 7}},
        {"rounds": {"stop": "target", "target": 0.5}},
        {"rounds": {"stop": "budget"}, "budget": {"seconds": float("inf"), "joules": 0.1}},
        {"topology": {"kind": "edges", "edges": [[0, 1], [1, 2]], "weights": "size"}},
        {"scheme": {"name": "mll_sgd", "options": {"literal": True}, "rho_min": 1}},
        {"data": {"path": "somewhere", "partition": "shards", "shards": 3}, "model": {"parameters": 5}},
        {"local": {"kept_energy_at": [0.1, 1.0], "steps": "systematic"}, "name": 'a "b" [c]\\ é'},
        {"compression": {"kind": "jl", "error_feedback": True}, "simulation": {"evaluate_on": "mean"}},
    ],
    ids=str,
)
def test_what_is_written_reads_back_the_same(document: dict[str, Any]) -> None:
    experiment = parse_experiment(document)
    text = experiment_toml(experiment)
    assert parse_experiment(tomllib.loads(text)) == experiment
    assert experiment_toml(parse_experiment(tomllib.loads(text))) == text


def test_what_is_written_has_every_key() -> None:
    """But for what is not set, for which TOML has no word."""
    document = tomllib.loads(experiment_toml(preset_experiment("demo")))
    assert {"batch", "beta", "augment"} <= document["data"].keys()
    assert document["rounds"] == {"global": 20, "edge": 5, "local": 5, "stop": "rounds", "target": 0.92}
    assert not {"stop", "target"} & document["simulation"].keys()
    assert not {"batch", "error_feedback"} & document["local"].keys()
