"""The seam between runs and trackers: what a tracker is told, and what it must offer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from cfel.runlog import RoundRecord

Status = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run that starts, or that is resumed.

    Attributes:
        project: name of the experiment; the runs of a comparison or a sweep share it.
        name: of this run.
        directory: its run directory.
        settings: the experiment's values by dotted keys.
        earlier: the `run_id` of the sink that tracked the run before it was resumed, or None.
    """

    project: str
    name: str
    directory: Path
    settings: Mapping[str, Any]
    earlier: str | None = None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run.

    Attributes:
        status: whether all rounds are done, Ctrl-C was pressed, or an error ended the run.
        summary: its final values by name, as in `summary.json`.
        files: what is worth keeping besides the rounds: experiment, environment, fleet, log.
    """

    status: Status
    summary: Mapping[str, float]
    files: tuple[Path, ...]


class RunSink(Protocol):
    """Where one run is reported to. All methods are called from one thread, which is not the run's.

    An exception ends this sink, not the run; the user is told once.
    """

    @property
    def run_id(self) -> str:
        """What the tracker calls this run; a resumed run is reported to the same one."""

    def log_round(self, record: RoundRecord) -> None:
        """Takes a round. Each arrives once, in order, also if the run was resumed in between."""

    def finish(self, end: RunEnd) -> None:
        """Takes the end of the run, and releases whatever the sink holds."""


Tracker = Callable[[TrackedRun], RunSink]
"""Opens a sink for a run."""
