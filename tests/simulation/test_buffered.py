"""Semi-asynchronous aggregation: the first K updates count, later ones less, and accounts follow events."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from cfel.api.runs import RunOptions, run_experiment
from cfel.control.scheme import RoundPlan
from cfel.errors import InputError
from cfel.experiment import Experiment
from cfel.learning.compressors import DenseUpdate, Update
from cfel.learning.device_messages import DeviceReport, DeviceState
from cfel.learning.models.flat import FlatModel
from cfel.runlog import RoundRecord, RunDirectory
from cfel.simulation.buffered import find_busy, run_buffered, take_first
from cfel.simulation.executors import Executor, Job, JobResult
from cfel.simulation.loop import make_jobs
from cfel.simulation.state import (
    EdgeRoundOrders,
    PendingUpdate,
    RunState,
    from_checkpoint,
    initial_state,
    pending_tensors,
    pending_values,
    read_pending,
)
from cfel.world import World
from tests.simulation.drive import column, outcomes, records, timeless, tiny

REALISED = {"accounting": "realised"}


def buffered(count: int, **sections: dict[str, Any]) -> Experiment:
    """Three devices per edge server, which waits for some of them."""
    return tiny(
        {"aggregation": {"buffer": count}, "simulation": REALISED, "fleet": {"clusters": 2}}, sections
    )


class Scripted:
    """An executor whose devices all send ones."""

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """Every device takes all its steps."""
        for order, _ in jobs:
            ones = DenseUpdate(torch.ones(order.model.parameters.numel()))
            report = DeviceReport(order.device, ones, order.model.buffers, None, order.tau, 1.0, 10)
            yield report, DeviceState()


def _play(world: World, rounds: int, mu: list[float]) -> Iterator[tuple[RunState, Any, float]]:
    """Edge rounds of one cluster with full work, and how far its model moved in each."""
    state, devices = initial_state(world), len(mu)
    ones = np.ones(devices)
    plan = RoundPlan(ones, ones)
    for number in range(rounds):
        now = replace(world.setting.conditions(0, 0), mu=np.array(mu), nu=0.0 * ones)
        now = now.without(find_busy(state.pending, devices))
        jobs = make_jobs(world, state, number, now, plan, 1.0)
        orders = EdgeRoundOrders(number, now, plan, 1.0, jobs)
        before = state.models[0].parameters
        state, outcome = run_buffered(world, cast(Executor, Scripted()), state, orders)
        yield state, outcome, float((state.models[0].parameters - before)[0])


def test_a_slow_device_arrives_later_and_counts_less() -> None:
    """Three steps take 3 s on one device and 10.5 s on the other, whose update is three rounds late."""
    world = tiny(
        {"fleet": {"devices": 2, "clusters": 1}, "aggregation": {"buffer": 1}, "simulation": REALISED}
    ).build_world()
    played = list(_play(world, 5, [1.0, 3.5]))
    seconds = [float(outcome.realised.seconds[0]) for _, outcome, _ in played]
    assert seconds == pytest.approx([3.0, 3.0, 3.0, 1.5, 1.5])
    assert [outcome.realised.slowest_device[0] for _, outcome, _ in played] == [0, 0, 0, 1, 0]
    moved = [move for _, _, move in played]
    assert moved == pytest.approx([1.0, 1.0, 1.0, 1 / np.sqrt(1 + 3), 1 / np.sqrt(1 + 1)], rel=1e-4)
    pending = [[(each.device, round(each.seconds_left, 6)) for each in state.pending] for state, *_ in played]
    assert pending == [[(1, 7.5)], [(1, 4.5)], [(1, 1.5)], [(0, 1.5)], [(1, 9.0)]]
    # Energy is charged when work begins: twice in the first round, then for the one that begins.
    begun = [int((outcome.steps > 0).sum()) for _, outcome, _ in played]
    assert begun == [2, 1, 1, 1, 1]


def test_those_that_arrive_at_the_same_moment_are_taken() -> None:
    report = DeviceReport(0, DenseUpdate(torch.ones(1)), torch.empty(0), None, 1, 1.0, 1)
    waiting = [
        PendingUpdate(replace(report, device=n), 0, seconds, seconds, 1.0)
        for n, seconds in enumerate([2.0, 1.0, 2.0, 3.0])
    ]
    first, rest = take_first(waiting, 2)
    assert [each.device for each in first] == [1, 0, 2]
    assert [each.device for each in rest] == [3]
    assert take_first(waiting, 9)[1] == []
    assert take_first([], 1) == ([], [])


class Doubled:
    """An update of a user-defined compressor, which has no wire format."""

    size = 3
    wire_bits = 1

    def add_to(self, dense: torch.Tensor, weight: float) -> None:
        """Twos."""
        dense.add_(torch.full((3,), 2.0), alpha=weight)


@pytest.mark.parametrize("update", [DenseUpdate(torch.full((3,), 2.0)), Doubled()], ids=["built in", "own"])
def test_what_is_late_can_be_stored(update: Update) -> None:
    report = DeviceReport(0, update, torch.zeros(1), None, 1, 1.0, 1)
    late = PendingUpdate(report, 0, 1.0, 1.0, 1.0).keep()
    like = FlatModel(torch.zeros(3), torch.zeros(1))
    [again] = read_pending(pending_tensors([late]), pending_values([late]), like)
    found = torch.zeros(3)
    again.report.update.add_to(found, 0.5)
    assert found.tolist() == [1.0, 1.0, 1.0]
    assert (again.device, again.begun, again.seconds_left) == (0, 0, 1.0)
    with pytest.raises(InputError, match="pending/0/update"):
        read_pending({}, pending_values([late]), like)


@pytest.mark.long
def test_with_all_devices_it_is_the_synchronous_run() -> None:
    every = {"simulation": REALISED, "fleet": {"clusters": 2}}
    assert timeless(records(buffered(3))) == timeless(records(tiny(every)))


@pytest.mark.long
def test_accounts_follow_the_events() -> None:
    found, plain = outcomes(buffered(1)), records(tiny(fleet={"clusters": 2}, simulation=REALISED))
    assert any(outcome.state.pending for outcome in found)
    last = found[-1].record
    assert last.seconds < plain[-1].seconds
    assert last.joules == pytest.approx(column([each.plans for each in found], "joules").sum())
    # Nobody begins before the last work is done: nobody is asked twice at the same time.
    assert sum(len(each.plans.device) for each in found) < 3 * 2 * 6


class PowerCutError(Exception):
    """The run ends here."""


@pytest.mark.long
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    experiment = buffered(2)
    expected = timeless(run_experiment(experiment, tmp_path / "whole", RunOptions()))

    def cut(_name: str, _record: RoundRecord) -> None:
        raise PowerCutError

    with pytest.raises(PowerCutError):
        run_experiment(experiment, tmp_path / "cut", RunOptions(on_round=cut))
    checkpoint = RunDirectory.open(tmp_path / "cut").checkpoint()
    assert checkpoint is not None
    assert from_checkpoint(checkpoint, experiment.build_world()).pending
    assert timeless(run_experiment(experiment, tmp_path / "cut", RunOptions(resume=True))) == expected


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"simulation": {"accounting": "expected"}}, "accounting = 'realised'"),
        ({"aggregation": {"buffer": 1, "kind": "median"}}, "kind = 'mean'"),
        ({"local": {"algorithm": "feddyn"}}, "another algorithm"),
        ({"aggregation": {"buffer": -1}}, "buffer"),
    ],
)
def test_what_does_not_fit_is_rejected(sections: dict[str, dict[str, Any]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        buffered(1, **sections)


def test_others_say_that_they_cannot(tmp_path: Path) -> None:
    from cfel.api.theorem import Assumptions, report_theorem
    from cfel.experiment import experiment_toml
    from cfel.launch.federation import LaunchOptions, launch_federation

    with pytest.raises(InputError, match=r"deployment .*first 2 updates"):
        launch_federation(buffered(2), tmp_path / "up", LaunchOptions())
    file = tmp_path / "experiment.toml"
    file.write_text(experiment_toml(buffered(2)), encoding="utf-8")
    with pytest.raises(InputError, match="a dry run cannot"):
        report_theorem(str(file), (), Assumptions(1.0))
