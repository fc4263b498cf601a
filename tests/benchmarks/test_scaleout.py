"""The Ray engine's measurements: what is computed from rounds, and what is printed; rounds are made up."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import scaleout as bench_scaleout
from benchmarks.__main__ import main
from benchmarks.scaleout import EngineSetting, RoundTiming, compare_engines, measure_overhead

SECONDS = {0: [9.0, 4.0, 4.0, 5.0], 1: [9.0, 5.0, 4.0, 4.0], 2: [9.0, 5.0, 5.0, 8.0]}


class MadeUp:
    """A child whose rounds are known."""

    def __init__(self, engine: EngineSetting) -> None:
        self._seconds = iter(SECONDS[engine.nodes])
        self._devices = engine.devices

    def run_round(self) -> RoundTiming:
        """The next one."""
        seconds = next(self._seconds)
        return RoundTiming(seconds, seconds - 1, 2.0, 0.5, 2**20 * self._devices)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def start_child(engine: EngineSetting) -> Iterator[MadeUp]:
        yield MadeUp(engine)

    monkeypatch.setattr(bench_scaleout, "start_child", start_child)
    monkeypatch.setattr(bench_scaleout, "require_ray", lambda: None)
    monkeypatch.setattr(bench_scaleout, "count_even_cores", lambda: 2)


def test_ratios_are_of_rounds_in_turn() -> None:
    """The first round is not counted: medians of 4/5, 4/4, 5/4 and of 5/5, 4/5, 4/8."""
    race = compare_engines(64, 8, 1, 3)
    assert race.seconds == {"threads": 4.0, "ray": 4.0, "ray, two nodes": 5.0}
    assert (race.ray_to_threads, race.two_nodes_to_one) == (1.0, 0.8)


def test_overhead_is_what_is_not_training() -> None:
    """The best of (4, 3, 3) seconds on two cores, less 2 of training, over 1,000 devices."""
    overhead = measure_overhead(1000, 3)
    assert overhead.milliseconds == pytest.approx(4.0)
    assert overhead.training_milliseconds == pytest.approx(2.0)
    assert overhead.driver_milliseconds == 0.5
    assert overhead.driver_bytes == 1000 * 2**20


def test_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["scaleout", "--quick"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "ray, two nodes" in text
    assert "1024.0" in text
    assert main(["scaleout", "--quick", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["race"]["two_nodes_to_one"] == 0.8
    assert [each["devices"] for each in document["overhead"]] == [500, 2000]


def test_settings_have_the_sizes_asked_for() -> None:
    setting = EngineSetting("small", 100, 4, 1, 0, 2).build_setting()
    assert (setting.devices, setting.clusters, setting.local_steps) == (100, 4, 1)
    assert setting.momentum_state == "reset"
