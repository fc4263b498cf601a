"""Parts from outside the package: every example is run as its docstring says."""

import ast
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from cfel.api.runs import RunOptions, run_experiment
from cfel.errors import InputError
from cfel.experiment import Experiment, load_experiment
from cfel.plugins import ANY_CODE
from tests.simulation.drive import column, outcomes, records, timeless

EXAMPLES = Path(__file__).parents[2] / "examples"
# The one for samples of a single device needs a device: tests/launch/test_device_data.py runs it.
CUSTOM = sorted(file.stem for file in EXAMPLES.glob("custom_*.py") if file.stem != "custom_device_data")


@pytest.fixture(autouse=True)
def _beside_the_experiment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules in examples/ can be imported, as for `cfel run examples/tiny.toml`."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
    yield
    for name in CUSTOM:
        sys.modules.pop(name, None)


def command(name: str) -> list[str]:
    """What the docstring of an example tells the reader to type."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))) or ""
    begin = text.index("cfel run ")
    return shlex.split(text[begin : text.index("\n\n", begin)].replace("\\\n", " "))


def example(name: str, engine: str = "threads") -> Experiment:
    words = command(name)
    assert words[:3] == ["cfel", "run", "examples/tiny.toml"]
    assert set(words[3::2]) == {"--set"}
    found = load_experiment(EXAMPLES / "tiny.toml", words[4::2], ANY_CODE)
    return replace(found, simulation=replace(found.simulation, engine=engine, workers=2))


def test_there_is_one_of_each() -> None:
    parts = (
        "aggregation",
        "algorithm",
        "compressor",
        "data",
        "lora",
        "model",
        "optimiser",
        "partition",
        "scheme",
        "task_next_character",
        "task_regression",
        "topology",
    )
    assert [f"custom_{part}" for part in parts] == CUSTOM


@pytest.mark.parametrize("name", CUSTOM)
def test_an_example_is_a_page(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("custom_aggregation", 0.5),
        ("custom_algorithm", 0.5),
        ("custom_compressor", 0.5),
        ("custom_data", 0.6),
        ("custom_lora", 0.5),
        ("custom_model", 0.6),
        ("custom_optimiser", 0.5),
        ("custom_partition", 0.5),
        ("custom_scheme", 0.4),
        ("custom_task_next_character", 0.25),
        ("custom_topology", 0.5),
    ],
)
def test_an_example_learns(name: str, least: float) -> None:
    log = records(example(name))
    assert (log[-1].accuracy or 0) > least
    assert (log[-1].loss or 9) < (log[0].loss or 0)
    assert log[-1].metrics == {}


def test_the_regression_gets_a_smaller_error() -> None:
    log = records(example("custom_task_regression"))
    assert (log[-1].accuracy or 9) < 0.5 * (log[0].accuracy or 0)
    assert log[-1].metrics["within 0.1"] > max(0.3, log[0].metrics["within 0.1"])


@pytest.mark.parametrize("name", ["custom_compressor", "custom_model", "custom_task_next_character"])
def test_an_example_can_be_batched(name: str) -> None:
    """Embeddings, layer norm and losses of one's own go through `torch.func` as they are."""
    one, two = (outcomes(replace_rounds(example(name, engine)))[-1] for engine in ("threads", "batched"))
    assert one.record.loss == pytest.approx(two.record.loss, rel=1e-3)
    for left, right in zip(one.state.models, two.state.models, strict=True):
        if name != "custom_compressor":  # a sign may turn over on the last bit
            np.testing.assert_allclose(left.parameters, right.parameters, atol=1e-3)


def replace_rounds(experiment: Experiment) -> Experiment:
    return replace(experiment, rounds=replace(experiment.rounds, global_rounds=1, local_steps=3))


def test_the_tiny_example_is_as_promised(tmp_path: Path) -> None:
    """Three clusters of two devices on data that needs no file, in threads, in a few seconds."""
    experiment = load_experiment(EXAMPLES / "tiny.toml")
    world = experiment.build_world()
    assert world.setting.fleet.sizes.tolist() == [2, 2, 2]
    assert (experiment.data.name, experiment.simulation.engine) == ("digits", "threads")
    log = run_experiment(experiment, tmp_path / "run", RunOptions())
    assert sum(line.wall_seconds for line in log) < 10
    assert (log[-1].accuracy or 0) > 0.5
    assert timeless(log) == timeless(records(experiment))


def test_turns_are_taken() -> None:
    """Even devices first; the turn continues across rounds, as the state does."""
    found = outcomes(example("custom_scheme"))
    tables = [each.plans for each in found]
    place = 2 * np.repeat(np.arange(4), 12) + column(tables, "edge_round")
    hard = column(tables, "rho") == 1
    np.testing.assert_array_equal(hard, (column(tables, "device") + place) % 2 == 0)
    assert found[-1].state.control.scheme == {"turn": 8}


def test_a_state_waits_in_the_checkpoint(tmp_path: Path) -> None:
    experiment = example("custom_scheme")
    asked = iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "run", RunOptions(interrupted=lambda: next(asked)))
    found = run_experiment(experiment, tmp_path / "run", RunOptions(resume=True))
    assert timeless(found) == timeless(records(experiment))


def test_a_bit_an_entry() -> None:
    """Six devices, two edge rounds of 4,810 bits and a float; then gossip in two steps, over three links."""
    line = records(example("custom_compressor"))[-1]
    assert line.wire_bytes == (12 * (4810 + 32) + 24 * 32 * 4810) // 8


def test_adapters_are_all_that_is_sent() -> None:
    """Two of rank 2, between 16 and 32 numbers, and a layer of 16 · 4 + 4; full models over three links."""
    experiment = replace_rounds(example("custom_lora"))
    world = experiment.build_world()
    assert world.setting.model_bits == 32 * (2 * 2 * (16 + 32) + 68)
    assert outcomes(experiment, world)[0].state.models[0].parameters.numel() == 260


def test_the_wheel() -> None:
    world = example("custom_topology").build_world()
    assert nx.is_isomorphic(world.setting.backhaul.graph, nx.wheel_graph(6))


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("ab" * 200, encoding="utf-8")
    changes = ["data.task=custom_task_next_character:build", "data.partition=iid", f"data.path={file}"]
    assert records(load_experiment(EXAMPLES / "tiny.toml", changes, ANY_CODE))[-1].accuracy == 1.0
    file.write_text("too short", encoding="utf-8")
    with pytest.raises(InputError, match="9 characters are too few"):
        load_experiment(EXAMPLES / "tiny.toml", changes, ANY_CODE).build_world()


def test_few_bits_save_time_on_a_slow_radio() -> None:
    """One global round of `slow_radio.toml`, where sending takes most of the time."""
    changes = ["rounds.global=1", "rounds.stop=rounds"]
    plain, few = (
        records(load_experiment(EXAMPLES / "slow_radio.toml", [*changes, *more]))[0]
        for more in ((), ("compression.bits=[4, 8, 16]",))
    )
    assert few.seconds < 0.8 * plain.seconds
    assert few.wire_bytes < plain.wire_bytes
