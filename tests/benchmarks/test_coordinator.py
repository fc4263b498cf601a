"""What is printed about coordinators of large fleets; federations are made up, and played in `deployment`."""

import json

import pytest

from benchmarks import coordinator
from benchmarks.__main__ import main
from benchmarks.coordinator import ProcessSizes, Results, Sizes

RESULTS = Results(
    (Sizes(600, 3544, 3834, 1260, 1951, 3330),), (ProcessSizes(520, 31.1, 360 * 2**20, 361 * 2**20, 1, 2),)
)


def test_prints_both_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(coordinator, "measure", lambda **_: RESULTS)
    assert main(["coordinator"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["600", "3,544", "3,834", "1,260", "1,951", "3,330"] in lines
    assert ["520", "31.1", "360.0", "361.0", "1", "2"] in lines
    assert main(["coordinator", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tls"][0]["coordinator_bytes"] == 360 * 2**20


def test_its_fleets_are_planned_by_asking() -> None:
    world = coordinator.build_experiment(520).build_world()
    assert world.setting.by_clusters
    assert world.setting.fleet.sizes.tolist() == [130] * 4
