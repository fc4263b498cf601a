"""The simulation's measurements, on sizes that take no time."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import child as bench_child
from benchmarks import simulation as command
from benchmarks.__main__ import main
from benchmarks.settings import (
    PERCEPTRON,
    RESNET,
    SMALL,
    THETA,
    BenchSetting,
    build_bench_parameters,
    build_bench_world,
)
from benchmarks.simulation import (
    LOOPS,
    BareLoop,
    Pace,
    Scale,
    measure_pace,
    measure_scale,
    open_timed_rounds,
)

pytestmark = pytest.mark.long

TINY = replace(PERCEPTRON, devices=6, clusters=2, samples=10, batch=5, local_steps=2, edge_rounds=2)


def test_rounds_are_whole() -> None:
    """Six devices, two edge rounds, two steps each: 24 steps a round, ρ = 1 and nothing evaluated."""
    world = build_bench_world(TINY)
    with open_timed_rounds(world, build_bench_parameters(TINY, world)) as rounds:
        found = [next(rounds) for _ in range(2)]
    assert [each.steps for each in found] == [24, 24]
    assert all(each.seconds > 0 and each.cpu_seconds >= 0 for each in found)


def test_everybody_sends_a_tenth() -> None:
    from cfel.simulation.executors import PoolExecutor
    from cfel.simulation.loop import run_edge_round
    from cfel.simulation.state import initial_state

    world = build_bench_world(TINY)
    parameters = build_bench_parameters(TINY, world)
    with PoolExecutor(world, parameters) as executor:
        _, outcome = run_edge_round(world, executor, initial_state(world), 0)
    assert outcome.plan.rho.tolist() == [1.0] * 6
    assert outcome.plan.theta.tolist() == [THETA] * 6


def test_some_of_many_take_part() -> None:
    """50 of 1,000 on average: within five standard deviations, √(1000·0.05·0.95) = 6.9."""
    fleet = build_bench_world(replace(SMALL, samples=1)).setting.fleet
    present = [int(fleet.conditions(0, number, 0, 1.0).available.sum()) for number in range(3)]
    assert all(abs(count - 50) < 35 for count in present)


def test_engines_are_those_of_an_experiment() -> None:
    engines = {}
    for setting in (PERCEPTRON, SMALL, RESNET):
        few = replace(setting, devices=8, samples=1, present=None)
        engines[setting.model] = build_bench_parameters(few, build_bench_world(few)).engine
    assert engines == {"mlp": "batched", "small_cnn": "processes", "resnet20": "processes"}


def test_the_bare_loop_learns() -> None:
    """It changes its parameters, and takes as many steps as asked for on samples that exist."""
    loop = BareLoop(TINY, 7)
    before = [value.detach().clone() for value in loop._module.parameters()]
    assert loop.run() > 0
    assert len(loop._batches) == 7
    assert max(int(batch.max()) for batch in loop._batches) < TINY.devices * TINY.samples
    assert any((old != new).any() for old, new in zip(before, loop._module.parameters(), strict=True))


def test_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    pace = measure_pace(TINY, repeats=2, bare_steps=4)
    assert (pace.name, pace.engine, pace.target) == (TINY.name, "batched", 3.0)
    assert set(pace.bare_milliseconds) == set(LOOPS)
    assert pace.ratio == min(pace.bare_milliseconds.values()) / pace.milliseconds


def test_scale() -> None:
    found = measure_scale((8, 16), 1, TINY)
    assert [each.devices for each in found] == [8, 16]
    assert all(each.cpu_milliseconds > 0 for each in found)


def test_children(capfd: pytest.CaptureFixture[str]) -> None:
    """A process that holds torch needs more than 50 MB, and less than a thousand devices would."""
    assert 50e6 < bench_child.measure_peak_memory(8) < 2 * 2**30
    bench_child.run_first_step()
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_command(as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pace = Pace("tiny", "batched", 0.5, 0.4, {"threads": 2.0, "processes": 1.0}, 2.0, 2.1, 1.0)
    monkeypatch.setattr(command, "measure_pace", lambda *_: pace)
    monkeypatch.setattr(command, "measure_scale", lambda *_: [Scale(64, 2.0), Scale(1000, 2.2)])
    monkeypatch.setattr(command, "measure_startup", lambda _: 1.25)
    monkeypatch.setattr(command, "measure_peak_memory", lambda _: 2**30)
    assert main(["simulation", "--quick", *(["--json"] if as_json else [])]) == 0
    shown = capsys.readouterr().out
    if as_json:
        document = json.loads(shown)
        assert document["start_seconds_beyond_torch"] == 1.25
        assert np.shape(document["paces"]) == (4,)
    else:
        assert "1.25 s more than importing torch" in shown
        assert "1,024 MiB" in shown


def test_one_setting(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what was asked for is measured."""
    asked: list[str] = []

    def measured(setting: BenchSetting, *_: int) -> Pace:
        asked.append(setting.model)
        return Pace(setting.name, "threads", 0.5, 0.4, {"threads": 0.5}, 1.0, 1.0, 1.0)

    monkeypatch.setattr(command, "measure_pace", measured)
    assert main(["simulation", "--only", "small_cnn", "--json"]) == 0
    assert [pace["name"] for pace in json.loads(capsys.readouterr().out)["paces"]] == [SMALL.name]
    assert main(["simulation", "--only", "leaf_cnn", "--quick"]) == 0
    assert asked == ["small_cnn", "leaf_cnn"]
