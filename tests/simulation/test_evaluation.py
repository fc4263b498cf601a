"""When and on what a run is evaluated, and when it ends."""

from dataclasses import replace

import pytest

from cfel.learning.edge import mean_model
from cfel.learning.evaluate import evaluate
from cfel.learning.local.workspace import Workspace
from cfel.runlog import WALL_CLOCK_FIELDS
from tests.simulation.drive import outcomes, records, tiny


def test_every_so_many_rounds_and_at_the_end() -> None:
    log = records(tiny(rounds={"global": 5}, simulation={"evaluate_every": 2}))
    assert [line.accuracy is not None for line in log] == [False, True, False, True, True]


def test_on_every_edge_model() -> None:
    """Clusters of 3, 2 and 1 devices: the edge models count 1/2, 1/3 and 1/6."""
    experiment = tiny(fleet={"clusters": [3, 2, 1]}, topology={"kind": "line"}, rounds={"global": 1})
    world = experiment.build_world()
    outcome = outcomes(experiment, world)[0]
    workspace = Workspace(world.task, world.training, world.compress)
    found = [evaluate(model, workspace).metric for model in outcome.state.models]
    assert outcome.record.accuracy == pytest.approx(found[0] / 2 + found[1] / 3 + found[2] / 6)
    assert len(set(found)) > 1


def test_on_the_mean_model() -> None:
    experiment = tiny(rounds={"global": 1}, simulation={"evaluate_on": "mean"})
    world = experiment.build_world()
    outcome = outcomes(experiment, world)[0]
    workspace = Workspace(world.task, world.training, world.compress)
    mean = mean_model(world.setting.fleet.sizes, dict(enumerate(outcome.state.models)))
    assert outcome.record.accuracy == evaluate(mean, workspace).metric


def test_on_a_sample() -> None:
    """Of 40 test samples, always the same: the mean model's accuracy is a multiple of 1/40."""
    probe = {"evaluate_on": "mean", "evaluate_samples": 40}
    log, again = (records(tiny(simulation=probe)) for _ in range(2))
    accuracies = [line.accuracy or 0.0 for line in log]
    assert [40 * each for each in accuracies] == pytest.approx([round(40 * each) for each in accuracies])
    assert accuracies == [line.accuracy for line in again]
    everything = tiny(simulation={"evaluate_samples": 10_000})
    assert records(everything)[-1].accuracy == records(tiny())[-1].accuracy


def test_evaluation_changes_nothing_else() -> None:
    often, seldom = (records(tiny(simulation={"evaluate_every": each})) for each in (1, 5))
    assert [line.model_sha256 for line in often] == [line.model_sha256 for line in seldom]
    clock = {name: getattr(often[-1], name) for name in WALL_CLOCK_FIELDS}
    assert often[-1] == replace(seldom[-1], **clock)


def test_stopping_at_a_budget() -> None:
    """CEF comes to 60 % of its own use after some six of ten rounds; that one is evaluated, if no other."""
    experiment = tiny(
        rounds={"global": 10, "stop": "budget"}, scheme={"name": "cef"}, simulation={"evaluate_every": 100}
    )
    world = experiment.build_world()
    log = [each.record for each in outcomes(experiment, world)]
    used = [
        max(line.seconds / world.setting.budget.seconds, line.joules / world.setting.budget.joules)
        for line in log
    ]
    assert 5 <= len(log) <= 7
    assert all(share < 1 for share in used[:-1])
    assert used[-1] >= 1
    assert [line.accuracy is not None for line in log] == [False] * (len(log) - 1) + [True]


def test_without_a_budget_nothing_stops() -> None:
    changes = {"preset": "none", "rounds": {"stop": "budget"}}
    assert len(records(tiny(changes))) == 3


def test_stopping_at_a_target() -> None:
    """The first evaluated round that has it is the last."""
    free = [line.accuracy or 0.0 for line in records(tiny())]
    assert free[0] < free[1]
    log = records(tiny(rounds={"stop": "target", "target": free[1]}))
    assert [line.accuracy for line in log] == free[:2]
    unreached = records(tiny(rounds={"stop": "target", "target": 1.0}))
    assert [line.accuracy for line in unreached] == free
    seldom = records(tiny(rounds={"stop": "target", "target": free[1]}, simulation={"evaluate_every": 2}))
    assert [line.accuracy for line in seldom] == [None, free[1]]


def test_devices_are_evaluated_when_asked() -> None:
    """At the end only, or every time; the worst tenth is not better than the mean."""
    end, every = (records(tiny(simulation={"device_accuracy": when})) for when in ("end", "every"))
    assert [line.device_accuracy_mean is None for line in end] == [True, True, False]
    assert None not in [line.device_accuracy_spread for line in every]
    last = every[-1]
    assert last.device_accuracy_worst is not None
    assert last.device_accuracy_mean is not None
    assert 0 <= last.device_accuracy_worst <= last.device_accuracy_mean <= 1
    assert end[-1].device_accuracy_mean == last.device_accuracy_mean
    assert [line.accuracy for line in end] == [line.accuracy for line in every]


def test_planned_beside_done() -> None:
    """CEF plans every step of 6 devices, 2 edge rounds and τ = 3, and does them; uploads are full models."""
    line = records(tiny(rounds={"global": 1}, scheme={"name": "cef"}, compression={"kind": "none"}))[0]
    assert (line.steps_planned, line.steps_taken) == (36, 36)
    assert line.upload_bytes == line.upload_bytes_planned
    assert line.upload_bytes is not None
    assert line.backhaul_bytes is not None
    assert line.wire_bytes == line.upload_bytes + line.backhaul_bytes
    assert (line.peak_memory_bytes or 0) > 2**20
