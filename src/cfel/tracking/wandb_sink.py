"""Runs in Weights & Biases, offline unless WANDB_MODE says otherwise: `wandb sync DIR` uploads them later."""

import os
import shutil

import wandb

from cfel.runlog import RoundRecord
from cfel.runlog.records import read_metrics
from cfel.tracking.follow import RunEnd, TrackedRun


def open_sink(run: TrackedRun) -> "WandbSink":
    """Opens a sink for a run."""
    # Nothing leaves this machine without being asked to.
    mode = os.environ.get("WANDB_MODE", "offline")
    if mode == "offline":
        # For reports of errors and usage, wandb looks up its server in offline runs, too.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    return WandbSink(
        wandb.init(
            project=run.project,
            name=run.name,
            id=run.earlier,
            resume="allow" if run.earlier else None,
            config=dict(run.settings),
            mode=mode,
            # Other runs may be in progress: those of a comparison on a cluster, or the user's own.
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
    )


class WandbSink:
    """A run of Weights & Biases."""

    def __init__(self, run: wandb.Run) -> None:
        self._run = run

    @property
    def run_id(self) -> str:
        """That of Weights & Biases."""
        return str(self._run.id)

    def log_round(self, record: RoundRecord) -> None:
        """Logs the values of a round, with its number as the step."""
        self._run.log({"round": record.round, **read_metrics(record)}, step=record.round)

    def finish(self, end: RunEnd) -> None:
        """Stores the summary and the files, and ends the run."""
        self._run.summary.update(dict(end.summary))
        for path in end.files:
            # Whatever is in this folder at the end belongs to the run.
            shutil.copy(path, self._run.dir)
        self._run.finish(exit_code=0 if end.status == "finished" else 1)
