"""Runs in trackio, on this machine: `trackio show` opens its dashboard. It has no files, only numbers."""

import sys
from contextlib import redirect_stdout

import trackio

from cfel.runlog import RoundRecord
from cfel.runlog.records import read_metrics
from cfel.tracking.follow import RunEnd, TrackedRun


def open_sink(run: TrackedRun) -> "TrackioSink":
    """Opens a sink for a run."""
    # trackio prints; standard output is for results alone.
    with redirect_stdout(sys.stderr):
        return TrackioSink(
            trackio.init(
                project=run.project,
                name=run.earlier or run.name,
                resume="must" if run.earlier else "never",
                config=dict(run.settings),
                embed=False,
            )
        )


class TrackioSink:
    """A run of trackio."""

    def __init__(self, run: trackio.Run) -> None:
        self._run = run
        self._step = 0

    @property
    def run_id(self) -> str:
        """The name, by which trackio finds a run again."""
        return str(self._run.name)

    def log_round(self, record: RoundRecord) -> None:
        """Logs the values of a round, with its number as the step."""
        self._step = record.round
        self._run.log(read_metrics(record), step=record.round)

    def finish(self, end: RunEnd) -> None:
        """Logs the summary at the last round, and ends the run."""
        self._run.log({f"summary/{name}": value for name, value in end.summary.items()}, step=self._step)
        with redirect_stdout(sys.stderr):
            self._run.finish()
