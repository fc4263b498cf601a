"""Tells the trackers of a run what happens, in a thread of its own.

A tracker may be slow, wait for a network or fail; the run must not. What each tracker has been told is kept
in `tracking.json` in the run directory, so that a resumed run continues there, and a run that was started
without a tracker can be resumed with one.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from queue import SimpleQueue

from cfel.durable import read_bytes, replace_file, translate_parse_errors
from cfel.errors import CfelError
from cfel.report.load import load_run
from cfel.report.summary import measure
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from cfel.tracking.sinks import RunEnd, RunSink, Status, TrackedRun, Tracker
from cfel.validation import parse_json

STATE_FILE = "tracking.json"
FINISH_SECONDS = 60.0
"""How long the end of a run waits for trackers that are still busy."""
_FILES = ("experiment.toml", "environment.json", "fleet.json", "rounds.jsonl")

Notify = Callable[[str], None]
OnRecord = Callable[[RoundRecord], None]


@dataclass(frozen=True, slots=True)
class _Told:
    """What a tracker has been told about a run: the fields of `tracking.json`."""

    run_id: str = ""
    rounds: int = 0
    finished: bool = False


class _Feed:
    """One tracker of one run: tells it each thing once; after an error nothing more."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, told: _Told, notify: Notify) -> None:
        self.name, self.told = name, told
        self._tracker, self._run, self._notify = tracker, run, notify
        self._sink: RunSink | None = None
        self._failed = False

    def start(self) -> None:
        """Opens the sink, unless its run is known to be over: nothing may be left to say."""
        if not self.told.finished:
            self._attempt(self._open)

    def log_round(self, record: RoundRecord) -> None:
        if record.round > self.told.rounds:
            self._attempt(partial(self._log, record))

    def finish(self, end: RunEnd) -> None:
        if self._sink is not None:
            self._attempt(partial(self._sink.finish, end))
            self.told = replace(self.told, finished=end.status == "finished" and not self._failed)

    def _open(self) -> RunSink:
        self._sink = self._tracker(replace(self._run, earlier=self.told.run_id or None))
        self.told = _Told(self._sink.run_id, self.told.rounds)
        return self._sink

    def _log(self, record: RoundRecord) -> None:
        (self._sink or self._open()).log_round(record)
        self.told = replace(self.told, rounds=record.round)

    def _attempt(self, action: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 — another package's; whatever it is, the run continues
            self._failed = True
            words = f"{type(error).__name__}: {error}"
            self._notify(f"tracker {self.name} failed and is off; {self._run.name} continues: {words}")


class _Follower:
    """The thread that feeds the trackers of one run."""

    def __init__(self, run: TrackedRun, trackers: Mapping[str, Tracker], notify: Notify) -> None:
        self._run, self._notify = run, notify
        resumed = holds_run(run.directory)
        told = _read_told(run) if resumed else {}
        self._feeds = [
            _Feed(name, tracker, run, told.get(name, _Told()), notify) for name, tracker in trackers.items()
        ]
        self._others = {name: each for name, each in told.items() if name not in trackers}
        self._events: SimpleQueue[RoundRecord | Status] = SimpleQueue()
        # Rounds from before the run was tracked.
        for record in RunDirectory.open(run.directory).records() if resumed else ():
            self._events.put(record)
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        self._thread.start()

    def put(self, record: RoundRecord) -> None:
        self._events.put(record)

    def end(self, status: Status) -> None:
        """Reports the end and waits until the trackers know all, but not forever."""
        self._events.put(status)
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            self._notify(
                f"trackers of {self._run.name} are still busy after {FINISH_SECONDS:g} s: left alone"
            )

    def _work(self) -> None:
        try:
            self._feed_all()
        except CfelError as error:
            self._notify(f"{self._run.name} is no longer tracked: {error}")

    def _feed_all(self) -> None:
        for feed in self._feeds:
            feed.start()
        while isinstance(event := self._events.get(), RoundRecord):
            for feed in self._feeds:
                feed.log_round(event)
            self._write_told()
        end = _describe_end(self._run, event)
        for feed in self._feeds:
            feed.finish(end)
        # A run that failed at once has no directory.
        if holds_run(self._run.directory):
            self._write_told()

    def _write_told(self) -> None:
        told = self._others | {feed.name: feed.told for feed in self._feeds}
        content = json.dumps({name: asdict(each) for name, each in told.items()}, indent=2)
        replace_file(self._run.directory / STATE_FILE, f"{content}\n".encode())


@contextmanager
def follow_run(run: TrackedRun, trackers: Mapping[str, Tracker], notify: Notify) -> Iterator[OnRecord]:
    """Reports a run to trackers while the block executes it; yields the function to call after each round.

    `notify` receives a message if a tracker fails.
    """
    if not trackers:
        yield lambda _: None
        return
    follower = _Follower(run, trackers, notify)
    try:
        yield follower.put
    except BaseException as error:
        follower.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    follower.end("finished")


def _describe_end(run: TrackedRun, status: Status) -> RunEnd:
    if not holds_run(run.directory):
        return RunEnd(status, {}, ())
    loaded = load_run(run.directory)
    # Of several runs side by side, some are complete when the others are interrupted.
    if loaded.records and loaded.records[-1].round >= run.settings.get("rounds.global", float("inf")):
        status = "finished"
    values = measure(loaded, loaded.target)
    files = tuple(path for name in _FILES if (path := run.directory / name).exists())
    return RunEnd(status, {name: value for name, value in values.items() if value is not None}, files)


def _read_told(run: TrackedRun) -> dict[str, _Told]:
    path = run.directory / STATE_FILE
    if not path.exists():
        return {}
    with translate_parse_errors(path):
        document = parse_json(read_bytes(path).decode())
        return {str(name): _Told(**each) for name, each in document.items()}
