"""Trackers are told each thing once, and none of them can stop a run."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

import cfel
from cfel import tracking
from cfel.api.runs import RunOptions, plan_run, run_all
from cfel.errors import InputError, RunBusyError, RunDirectoryError
from cfel.extras import MissingExtraError
from cfel.runlog import RoundRecord, RunWriter
from cfel.tracking import RunEnd, TrackedRun, choose_trackers, follow_run
from tests.api.test_runs import make_experiment


class Notebook:
    """A tracker that writes down what it is told, and a sink of its own."""

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.runs: list[TrackedRun] = []
        self.rounds: list[int] = []
        self.ends: list[RunEnd] = []

    def __call__(self, run: TrackedRun) -> "Notebook":
        """Opens itself."""
        self._fail("open")
        self.runs.append(run)
        return self

    @property
    def run_id(self) -> str:
        """Always the same."""
        return "page-1"

    def log_round(self, record: RoundRecord) -> None:
        """Writes down its number."""
        self._fail("round")
        self.rounds.append(record.round)

    def finish(self, end: RunEnd) -> None:
        """Writes it down."""
        self._fail("finish")
        self.ends.append(end)

    def _fail(self, where: str) -> None:
        if where == self.fails_at:
            raise OSError("the network is down")


@pytest.fixture
def log(tmp_path: Path, make_run: Callable[..., None], make_record: Callable[..., RoundRecord]) -> TrackedRun:
    """A run directory with three rounds."""
    make_run(tmp_path / "run", "cef", 0, [make_record(n, 0.5, float(n), 1.0) for n in (1, 2, 3)])
    return TrackedRun("project", "cef (seed 0)", tmp_path / "run", {"rounds.global": 3})


def test_a_run_is_reported_from_start_to_end(tmp_path: Path) -> None:
    tracker = Notebook()
    result = cfel.run(make_experiment(), out=tmp_path / "run", progress=False, track=tracker)
    (run,), (end,) = tracker.runs, tracker.ends
    assert (run.project, run.name, run.earlier) == ("objects", "objects", None)
    assert run.settings["rounds.global"] == 2
    assert tracker.rounds == [1, 2]
    assert end.status == "finished"
    assert end.summary["final_accuracy"] == result.summary["accuracy"]
    assert {path.name for path in end.files} == {
        *("experiment.toml", "environment.json", "fleet.json", "rounds.jsonl")
    }
    # Resumed when it is over already: there is nothing to say.
    again = Notebook()
    cfel.run(make_experiment(), out=tmp_path / "run", progress=False, track=again, resume=True)
    assert (again.runs, again.ends) == ([], [])


def test_a_resumed_run_continues_where_it_was_tracked(log: TrackedRun) -> None:
    """Rounds from before the first tracker are caught up; those that it has been told are not repeated."""
    first, second, late = Notebook(), Notebook(), Notebook()
    with pytest.raises(KeyboardInterrupt), follow_run(log, {"notebook": first}, print):
        raise KeyboardInterrupt
    # All three rounds are there, so this run is complete, whatever happened to others beside it.
    assert (first.rounds, [end.status for end in first.ends]) == ([1, 2, 3], ["finished"])
    with follow_run(log, {"notebook": second, "late": late}, print) as put:
        put(_make_round(log, 3))
        put(_make_round(log, 4))
    assert second.rounds == [4]
    assert [run.earlier for run in second.runs] == ["page-1"]
    assert late.rounds == [1, 2, 3, 4]
    told = json.loads((log.directory / tracking.STATE_FILE).read_text())
    assert {name: each["rounds"] for name, each in told.items()} == {"notebook": 4, "late": 4}


def _make_round(log: TrackedRun, number: int) -> RoundRecord:
    line = (log.directory / "rounds.jsonl").read_text().splitlines()[-1]
    return replace(RoundRecord.from_json_line(line), round=number)


@pytest.mark.parametrize("where", ["open", "round", "finish"])
def test_a_tracker_that_fails_is_reported_once(log: TrackedRun, where: str) -> None:
    broken, healthy = Notebook(where), Notebook()
    messages: list[str] = []
    with follow_run(log, {"broken": broken, "healthy": healthy}, messages.append):
        pass
    assert messages == [
        "tracker broken failed and is off; cef (seed 0) continues: OSError: the network is down"
    ]
    assert healthy.rounds == [1, 2, 3]
    assert len(healthy.ends) == 1


def test_a_tracker_that_fails_is_reported_for_every_run(tmp_path: Path) -> None:
    """What all runs have in common is said once: here, why devices cannot be trained side by side."""
    dropout = make_experiment(nn.Sequential(nn.Linear(4, 2), nn.Dropout())).change(
        {"simulation.engine": "auto"}
    )
    runs = [plan_run(dropout, "hcef", seed, tmp_path) for seed in (0, 1, 2)]
    messages: list[str] = []
    run_all(runs, tmp_path, RunOptions(notify=messages.append, trackers={"broken": Notebook("round")}))
    about_engine = [words for words in messages if words.startswith("engine: ")]
    assert len(about_engine) == 1
    assert [words for words in messages if words not in about_engine] == [
        f"tracker broken failed and is off; hcef (seed {seed}) continues: OSError: the network is down"
        for seed in (0, 1, 2)
    ]


def test_trackers_hear_nothing_of_a_run_that_may_not_start(tmp_path: Path) -> None:
    """The directory holds an interrupted run, which is not this one's to declare failed."""
    model = nn.Linear(4, 2)
    first = Notebook()
    with pytest.raises(KeyboardInterrupt):
        cfel.run(make_experiment(model), tmp_path, progress=False, track=first, on_round=_interrupt)
    assert [end.status for end in first.ends] == ["interrupted"]
    told = (tmp_path / tracking.STATE_FILE).read_text()
    second = Notebook()
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        cfel.run(make_experiment(model), tmp_path, progress=False, track=second)
    other = make_experiment(model).change({"rounds.edge": 3})
    with pytest.raises(RunDirectoryError, match=r"rounds\.edge = 2, not 3"):
        cfel.run(other, tmp_path, progress=False, track=second, resume=True)
    with RunWriter.resume(tmp_path)[0], pytest.raises(RunBusyError):
        cfel.run(make_experiment(model), tmp_path, progress=False, track=second, resume=True)
    assert (second.runs, second.rounds, second.ends) == ([], [], [])
    assert (tmp_path / tracking.STATE_FILE).read_text() == told
    cfel.run(make_experiment(model), tmp_path, progress=False, track=second, resume=True)
    assert [run.earlier for run in second.runs] == ["page-1"]
    assert (second.rounds, [end.status for end in second.ends]) == ([2], ["finished"])


def _interrupt(_: RoundRecord) -> None:
    raise KeyboardInterrupt


def test_a_tracker_that_hangs_is_left_alone(log: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 0.05)
    release = threading.Event()
    messages: list[str] = []

    def hang(_: TrackedRun) -> Notebook:
        release.wait(60)
        return Notebook()

    with follow_run(log, {"hang": hang}, messages.append):
        pass
    release.set()
    assert messages == ["trackers of cef (seed 0) are still busy after 0.05 s: left alone"]


def test_trackers_are_checked_before_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="track: unknown 'mlfow'"):
        cfel.run(make_experiment(), out=tmp_path / "run", track="mlfow")
    with pytest.raises(InputError, match=r"neither .* tracker nor a function"):
        cfel.run(make_experiment(), out=tmp_path / "run", track=[3])  # type: ignore[list-item]
    monkeypatch.setattr("cfel.tracking.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cfel\[wandb\]'"):
        cfel.run(make_experiment(), out=tmp_path / "run", track=["tensorboard", "wandb"])
    assert list(choose_trackers(["tensorboard"])) == ["tensorboard"]
    assert not (tmp_path / "run").exists()
