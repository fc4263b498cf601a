"""Whole runs side by side on a Ray cluster, one core each, where that is faster.

A run is sent as the text of its experiment and the path of its directory. Data files must be at the same path
on every machine, and the directory on storage that all machines share, unless there is only this one.
"""

import math
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cfel.errors import RunBusyError
from cfel.experiment import experiment_toml, parse_experiment
from cfel.plugins import ANY_CODE
from cfel.rounds.run_directory import RunRequest, reject_unusable
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from cfel.simulation.executors import PoolExecutor
from cfel.simulation.loop import Watch, run_in_directory

if TYPE_CHECKING:
    # `runs` executes runs with this module.
    from cfel.api.runs import PlannedRun, RunOptions

# How long a run waits for an earlier process to release its directory: after a network failure that process
# may still be alive and hold the lock.
BUSY_SECONDS = 60.0
# Speed of a worker when runs are split by device, relative to a worker that has a whole run to itself: for
# models whose steps take tens of milliseconds, and for models whose steps take less time than a message.
LARGE_MODEL_EFFICIENCY = 0.9
SMALL_MODEL_EFFICIENCY = 0.3


def prefer_whole_runs(runs: "Sequence[PlannedRun]") -> bool:
    """Whether the connected cluster finishes these runs sooner side by side than one after another."""
    from cfel.scaleout.cluster import cluster_cores

    first = runs[0].experiment
    automatic = replace(first, simulation=replace(first.simulation, engine="auto"))
    small = automatic.resolve(automatic.build_world()).simulation.engine == "batched"
    cores = cluster_cores()
    workers = min(cores, first.simulation.workers) if first.simulation.workers else cores
    return whole_runs_are_better(len(runs), workers, first.fleet.devices, small)


def whole_runs_are_better(runs: int, workers: int, devices: int, small_model: bool) -> bool:
    """Whether running whole runs side by side, each on one worker, is faster than one run at a time on all.

    In units of one run on one worker, whole runs take ⌈runs / workers⌉. Runs split by device take
    runs / (efficiency · min(workers, devices)), as at most one worker per device is busy. The model is small
    if a local step takes less time than a message.
    """
    efficiency = SMALL_MODEL_EFFICIENCY if small_model else LARGE_MODEL_EFFICIENCY
    return math.ceil(runs / workers) <= runs / (efficiency * min(workers, devices))


def run_on_cluster(runs: "Sequence[PlannedRun]", folder: Path, options: "RunOptions") -> None:
    """Executes whole runs on the connected cluster.

    Raises:
        RunDirectoryError: a directory cannot take its run; none has started then.
        KeyboardInterrupt: the user interrupted them; every run that had started has a checkpoint.
    """
    from cfel.scaleout.run_sweep import Run, RunSweep, SweepCallbacks

    function = partial(run_from_text, command=options.command)
    wanted = [
        Run(run.name, experiment_toml(run.experiment), run.directory.absolute(), options.resume)
        for run in runs
    ]
    # Before any of them is followed: trackers would take what is in a directory for part of its run.
    for run in wanted:
        reject_unusable(run.directory, run.text, run.resume)
    with _RoundReporter(runs, options) as reporter:
        callbacks = SweepCallbacks(lambda run: reporter.report(run.name), options.interrupted, options.notify)
        if not RunSweep(function, folder.absolute(), callbacks).execute(wanted):
            raise KeyboardInterrupt


class _RoundReporter(ExitStack):
    """Reports runs on other machines by reading their logs: to `on_round` and to the trackers."""

    def __init__(self, runs: "Sequence[PlannedRun]", options: "RunOptions") -> None:
        super().__init__()
        self._runs = {run.name: run for run in runs}
        self._options = options
        self._reported: dict[str, int] = {}
        self._report: dict[str, Callable[[RoundRecord], None]] = {}

    def report(self, name: str) -> None:
        """Reports the rounds that were added to a run's log since the last call."""
        run = self._runs[name]
        if not holds_run(run.directory):
            return
        if name not in self._report:
            followed = self._options.follow(run.experiment, run.directory, name)
            self._report[name] = self.enter_context(followed)
        records = RunDirectory.open(run.directory).records()
        for record in records[self._reported.get(name, 0) :]:
            self._report[name](record)
        # A directory that is being rewritten may briefly show fewer records than before.
        self._reported[name] = max(self._reported.get(name, 0), len(records))


def run_from_text(text: str, directory: str, resume: bool, stop: str, *, command: tuple[str, ...]) -> bool:
    """Executes a run in this process, one device at a time: the job of one core of the cluster.

    The run ends after the current round once the file `stop` exists. Returns whether it finished.
    """
    experiment = parse_experiment(tomllib.loads(text), ANY_CODE)
    world = experiment.build_world()
    resolved = experiment.resolve(world)
    with PoolExecutor(world, replace(resolved.simulation, engine="threads", workers=1)) as executor:
        run = partial(
            run_in_directory,
            world,
            executor,
            RunRequest(Path(directory), experiment_toml(resolved), command, resume),
            resolved.simulation.checkpoint_every,
            Watch(interrupted=Path(stop).exists),
        )
        try:
            _run_when_free(run)
        except KeyboardInterrupt:
            return False
    return True


def _run_when_free(run: Callable[[], object]) -> None:
    """Waits until no other process uses the run directory, then runs."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            run()
        except RunBusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
        else:
            return
