"""Live event files for TensorBoard, in the run directory: `tensorboard --logdir DIR`.

The files are those of `cfel report --tensorboard`; here they grow with the run.
"""

from pathlib import Path

from cfel.report.load import load_run
from cfel.report.tensorboard import FOLDER, encode_round, write_run_events
from cfel.runlog import RoundRecord
from cfel.tracking.sink import RunEnd, TrackedRun


def open_sink(run: TrackedRun) -> "TensorBoardSink":
    """Opens a sink for a run."""
    return TensorBoardSink(run.directory)


class TensorBoardSink:
    """An event file that is rewritten from the log once, and then appended to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: Path | None = None
        self._last = 0

    @property
    def run_id(self) -> str:
        """Event files have no names of their own."""
        return FOLDER

    def log_round(self, record: RoundRecord) -> None:
        """Appends an event."""
        if self._file is None:
            # The log may have more rounds already: this thread follows the run.
            run = load_run(self._directory)
            self._file = write_run_events(self._directory / FOLDER, run)
            self._last = run.records[-1].round
        elif record.round > self._last:
            with self._file.open("ab") as stream:
                stream.write(encode_round(record))

    def finish(self, end: RunEnd) -> None:
        """All events are written already."""
