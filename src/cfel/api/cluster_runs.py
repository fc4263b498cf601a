"""Comparisons on a cluster: whole runs side by side, each on one core, where that is the better split.

A run is handed over as its experiment's text and its directory. Data sets that are read from files must lie
at the same path on every machine; the directory on storage that all machines see, or on this one alone.
"""

import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cfel.api.run_options import Doing
from cfel.errors import RunBusyError
from cfel.experiment import Experiment, experiment_toml, parse_experiment
from cfel.runlog import RunDirectory, holds_run
from cfel.scaleout.work_split import whole_runs_are_better
from cfel.simulation import PoolExecutor, Watch, run_in_directory

# How long a run waits for the process that had it before: one whose machine was lost may take a while to end.
BUSY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """One run of a comparison: its name in tables, what is run, and where."""

    name: str
    experiment: Experiment
    directory: Path


def is_better_whole(runs: Sequence[PlacedRun]) -> bool:
    """Whether the cluster that is connected does these runs sooner side by side than one after the other."""
    from cfel.scaleout.cluster import cluster_cores

    first = runs[0].experiment
    automatic = replace(first, simulation=replace(first.simulation, engine="auto"))
    small = automatic.resolved(automatic.world()).simulation.engine == "batched"
    cores = cluster_cores()
    workers = min(cores, first.simulation.workers) if first.simulation.workers else cores
    return whole_runs_are_better(len(runs), workers, first.fleet.devices, small)


def do_on_cluster(runs: Sequence[PlacedRun], folder: Path, doing: Doing) -> None:
    """Does whole runs on the cluster that is connected.

    Raises:
        KeyboardInterrupt: they were interrupted; each that had begun has a checkpoint.
    """
    from cfel.scaleout.run_tasks import Looking, Run, Sweep

    told: dict[str, int] = {}
    looking = Looking(
        lambda run: _tell_of_rounds(run.name, run.directory, told, doing), doing.interrupted, doing.say
    )
    work = partial(run_from_text, command=doing.command)
    wanted = [
        Run(run.name, experiment_toml(run.experiment), run.directory.absolute(), doing.resume) for run in runs
    ]
    if not Sweep(work, folder.absolute(), looking).do(wanted):
        raise KeyboardInterrupt


def run_from_text(text: str, directory: str, resume: bool, stop: str, *, command: tuple[str, ...]) -> bool:
    """A run in this process, one device at a time: what a core of the cluster does.

    Args:
        text: the experiment.
        directory: of the run.
        resume: go on with what it holds.
        stop: a file; where it exists the run ends after its round.
        command: what was typed, for the record.

    Returns:
        Whether the run came to its end.
    """
    experiment = parse_experiment(tomllib.loads(text))
    world = experiment.world()
    resolved = experiment.resolved(world)
    with PoolExecutor(world, replace(resolved.simulation, engine="threads", workers=1)) as executor:
        run = partial(
            run_in_directory,
            world,
            executor,
            resolved.simulation,
            Path(directory),
            experiment_toml=experiment_toml(resolved),
            command=list(command),
            resume=resume,
            watch=Watch(None, Path(stop).exists),
        )
        try:
            _once_free(run)
        except KeyboardInterrupt:
            return False
    return True


def _once_free(run: Callable[[], object]) -> None:
    """Runs as soon as no other process has the directory."""
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


def _tell_of_rounds(name: str, directory: Path, told: dict[str, int], doing: Doing) -> None:
    """Tells of the rounds that a run's log holds and nobody has been told of."""
    if doing.on_round is None or not holds_run(directory):
        return
    records = RunDirectory.open(directory).records()
    for record in records[told.get(name, 0) :]:
        doing.on_round(name, record)
    told[name] = max(told.get(name, 0), len(records))
