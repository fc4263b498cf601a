"""Fleets that change while a simulation runs."""

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cfel
from cfel.errors import InputError
from cfel.experiment import Experiment, experiment_toml, parse_experiment
from cfel.experiment.experiment import load_experiment
from cfel.membership import FleetChange
from cfel.plugins import ANY_CODE
from cfel.rounds.run_directory import RunRequest
from cfel.runlog import RoundRecord, RunDirectory
from cfel.runlog.directory import read_plan
from cfel.simulation.executors import PoolExecutor
from cfel.simulation.loop import Watch, run_in_directory
from cfel.simulation.state import RoundOutcome, enter_round
from cfel.validation import parse_toml
from tests.simulation.drive import outcomes, timeless, tiny

CHANGES = [
    {"round": 2, "what": "add device", "device": [6, 7], "edge": 0},
    {"round": 2, "what": "extend", "rounds": 2, "joules": 5.0},
    {"round": 3, "what": "add edge", "edge": 3},
    {"round": 3, "what": "move device", "device": [1, 2], "edge": 3},
    {"round": 4, "what": "remove device", "device": 0},
    {"round": 4, "what": "remove edge", "edge": 1},
]


def changing(*changes: Any, **sections: Any) -> Experiment:
    return tiny({"fleet": {"changes": list(changes or CHANGES)}}, **sections)


@cache
def changed() -> tuple[RoundOutcome, ...]:
    """The rounds of a fleet with all these changes."""
    return tuple(outcomes(changing()))


def test_devices_and_edge_servers_come_and_go() -> None:
    """By round, the clusters of the devices that took part: 0 and 1 at edge 0, 2 and 3 at 1, 4 and 5 at 2.

    Device 3 is alone at edge 1 when that one leaves; edge 2 and 3 have two devices each and 0 has the new
    ones, so it goes to the first of the three.
    """
    found = changed()
    homes = [
        dict(zip(each.plans.device.tolist(), each.plans.cluster.tolist(), strict=True)) for each in found
    ]
    assert homes == [
        {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2},
        {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 0, 7: 0},
        {0: 0, 1: 3, 2: 3, 3: 1, 4: 2, 5: 2, 6: 0, 7: 0},
        {1: 3, 2: 3, 3: 0, 4: 2, 5: 2, 6: 0, 7: 0},
        {1: 3, 2: 3, 3: 0, 4: 2, 5: 2, 6: 0, 7: 0},
    ]
    assert [len(each.record.changes) for each in found] == [2, 2, 2, 0, 0]


def test_what_nobody_changed_stays_the_same() -> None:
    """Before the first change, records equal those of a fleet that never changes."""
    plain, found = (timeless([each[0].record]) for each in (outcomes(tiny()), changed()))
    assert found[0] | {"changes": ()} == plain[0]
    assert '"changes"' not in outcomes(tiny())[0].record.to_json_line()


def test_a_new_edge_server_begins_with_the_first_ones_model() -> None:
    """Edge 3 joins in round 2; before its first gossip it has the model that edge 0 had after round 1."""
    experiment = changing({"round": 2, "what": "add edge", "edge": 3})
    world = experiment.build_world()
    before = outcomes(experiment, world)[0].state
    entered = enter_round(world, before)
    assert len(before.models) == 3
    assert entered.models[3] is before.models[0]


def test_a_device_keeps_what_it_remembers_when_it_moves() -> None:
    """Momentum of device 0 after it has moved away and taken part at its new edge server is not empty."""
    found = outcomes(changing({"round": 2, "what": "move device", "device": 0, "edge": 2}))
    for each in found:
        assert each.state.control.spent_joules[0] > 0
    spent = [each.state.control.spent_joules[0] for each in found]
    assert spent == sorted(set(spent))


def test_a_removed_device_costs_nothing_any_more() -> None:
    found = outcomes(changing({"round": 2, "what": "remove device", "device": 0}))
    assert found[2].state.control.spent_joules[0] == found[0].state.control.spent_joules[0]
    assert found[1].record.devices_taking_part == 5


def test_more_rounds_and_budget_count_from_their_round_on() -> None:
    """Three rounds and two more; the run's budgets are those of the file and what was added."""
    experiment = changing(budget={"seconds": 1e5, "joules": 1e3})
    world = experiment.build_world()
    assert [world.at(r).setting.rounds.global_rounds for r in range(3)] == [3, 5, 5]
    assert [world.at(r).setting.budget.joules for r in range(2)] == [1000.0, 1005.0]


def test_a_run_resumes_after_every_round(tmp_path: Path) -> None:
    """Also where the next round changes the fleet."""
    experiment = changing()
    world = experiment.build_world()
    experiment = experiment.resolve(world)
    with PoolExecutor(world, experiment.simulation) as executor:
        for number in range(5):
            request = RunRequest(tmp_path / "run", experiment_toml(experiment), resume=number > 0)
            with suppress(KeyboardInterrupt):
                run_in_directory(world, executor, request, 1, Watch(interrupted=lambda: True))
    assert timeless(RunDirectory.open(tmp_path / "run").records()) == timeless(
        [each.record for each in changed()]
    )


def test_records_with_changes_are_read_back() -> None:
    record = changed()[0].record
    assert RoundRecord.from_json_line(record.to_json_line()) == record


def test_the_file_keeps_its_changes() -> None:
    experiment = changing()
    again = parse_experiment(parse_toml(experiment_toml(experiment)), ANY_CODE)
    assert again.fleet.changes == experiment.fleet.changes
    assert "changes" not in experiment_toml(tiny())


def test_a_change_does_not_compute_the_budget_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator changes its world between two heartbeats, and a dry run of CEF takes longer than that."""
    world = tiny({"budget": {"share_of_cef": 0.5}}).build_world()
    monkeypatch.setattr(Experiment, "_compute_budget", None)
    changed = world.with_changes([FleetChange(2, "extend", joules=7.0)])
    assert changed.at(0).setting.budget == world.setting.budget
    assert changed.at(1).setting.budget.joules == world.setting.budget.joules + 7.0


def test_a_world_can_be_changed_later() -> None:
    """As in a federation, where nobody knows of the changes at the start; data are not loaded again."""
    planned = changing()
    world = tiny().build_world().with_changes(planned.fleet.changes)
    assert timeless([each.record for each in outcomes(planned, world)]) == timeless(
        [each.record for each in changed()]
    )
    twice = tiny().build_world().with_changes(planned.fleet.changes[:2]).with_changes(planned.fleet.changes)
    for one, other in zip(world.data, twice.data, strict=True):
        assert np.array_equal(one.indices, other.indices)


def test_new_devices_hold_samples_of_their_own() -> None:
    """Devices 6 and 7 of six hold the shares of devices 0 and 1 of another division by the same rule."""
    world = changing().build_world()
    assert len(world.data) == 8
    assert not np.array_equal(world.data[6].indices, world.data[0].indices)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": 2, "what": "move device", "device": 9, "edge": 1}, "device 9 is no member"),
        ({"round": 2, "what": "add device", "device": 5, "edge": 1}, "member already, of edge 2"),
        ({"round": 2, "what": "add device", "device": 6, "edge": 4}, "edge 4 is no member"),
        ({"round": 2, "what": "add device", "device": 6}, "edge is missing"),
        ({"round": 2, "what": "extend"}, "rounds, seconds or joules is missing"),
        ({"round": 2, "what": "grow"}, "unknown"),
        ({"round": 0, "what": "pause"}, "fleet.changes.round = 0"),
        ({"round": 2, "what": "remove device", "device": [0, 1, 2, 3, 4, 5]}, "no device would be left"),
        ({"round": 2, "what": "add device", "device": 99999, "edge": 0}, "the next new number is 6"),
    ],
)
def test_impossible_changes_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        changing(change)


def test_one_edge_server_at_a_time() -> None:
    with pytest.raises(InputError, match="round 2 adds or removes more than one edge server"):
        changing({"round": 2, "what": "add edge", "edge": 3}, {"round": 2, "what": "remove edge", "edge": 0})


def test_changes_are_tables_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('preset = "demo"\n[[fleet.changes]]\nround = 2\nwhat = "remove device"\ndevice = 3\n')
    (change,) = load_experiment(path).fleet.changes
    assert (change.round, change.what, change.device) == (2, "remove device", (3,))


def test_the_page_of_a_fleet_that_grows(tmp_path: Path) -> None:
    """Devices 6 and 7 join in round 2: tables keep them, figures show the six that began."""
    result = cfel.run(changing(), out=tmp_path)
    assert read_plan(tmp_path, 2).device.max() == 7
    assert RunDirectory.open(tmp_path).plan(2, 6).device.max() == 5
    assert result.report().exists()
