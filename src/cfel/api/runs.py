"""Single runs and comparisons of several schemes, each run in its own directory."""

import math
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cfel.control.scheme import SchemeBuilder
from cfel.errors import InputError, RunBusyError
from cfel.experiment import Experiment, experiment_toml, parse_experiment
from cfel.experiment.experiment import to_document
from cfel.extras import MissingExtraError, explain_missing_extra
from cfel.plugins import ANY_CODE, name_variants, parse_variants
from cfel.report import load_runs, summarise, write_summary
from cfel.rounds.parameters import SimulationParameters, choose_engine
from cfel.rounds.run_directory import RunRequest, flatten, reject_unusable
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from cfel.scaleout import connect_cluster, ray_executor
from cfel.simulation import Executor, PoolExecutor, Watch, run_in_directory
from cfel.tracking import TrackedRun, Tracker, follow_run
from cfel.world import World

# --------------------------------------------------------------------------------------------------
# How runs are executed, whatever the experiment: progress, trackers, interruption, resuming, the cluster.


OnRound = Callable[[str, RoundRecord], None]
"""Called after every round, with the name of the run and the round's record."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to execute runs.

    Attributes:
        command: the command line, kept in `environment.json`.
        resume: continue runs that already exist.
        on_round: called after every round.
        interrupted: checked after every round; true ends the run there, with a checkpoint.
        notify: receives one-line messages for the user.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
        trackers: what each run is reported to, by name; see `choose_trackers`.
    """

    command: tuple[str, ...] = ()
    resume: bool = False
    on_round: OnRound | None = None
    interrupted: Callable[[], bool] = lambda: False
    notify: Callable[[str], None] = lambda _: None
    ray_address: str | None = None
    trackers: Mapping[str, Tracker] = field(default_factory=dict)

    @contextmanager
    def follow(
        self, experiment: Experiment, directory: Path, name: str
    ) -> Iterator[Callable[[RoundRecord], None]]:
        """Reports one run to the trackers and to `on_round` while a block executes it.

        Gives what to call after each round.
        """
        run = TrackedRun(experiment.name, name, directory, flatten(to_document(experiment)))
        with follow_run(run, self.trackers, self.notify) as track_round:

            def report(record: RoundRecord) -> None:
                track_round(record)
                if self.on_round is not None:
                    self.on_round(name, record)

            yield report


# --------------------------------------------------------------------------------------------------
# Comparisons on a Ray cluster: whole runs side by side, one core each, where that is faster.
#
# A run is sent as the text of its experiment and the path of its directory. Data files must be at the
# same path
# on every machine. The directory must be on storage shared by all machines, unless there is only this
# one.


# How long a run waits for an earlier process to release its directory: after a network failure that process
# may still be alive and hold the lock.
BUSY_SECONDS = 60.0
# Speed of a worker when runs are split by device, relative to a worker that has a whole run to itself: for
# models whose steps take tens of milliseconds, and for models whose steps take less time than a message.
LARGE_MODEL_EFFICIENCY = 0.9
SMALL_MODEL_EFFICIENCY = 0.3


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """One run of a comparison: its display name, its experiment and its directory."""

    name: str
    experiment: Experiment
    directory: Path


def prefer_whole_runs(runs: Sequence[PlacedRun]) -> bool:
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
    runs / (efficiency · min(workers, devices)), as at most one worker per device is busy.

    Args:
        runs: how many there are.
        workers: cores of the cluster.
        devices: in each run.
        small_model: whether a local step takes less time than a message.
    """
    efficiency = SMALL_MODEL_EFFICIENCY if small_model else LARGE_MODEL_EFFICIENCY
    return math.ceil(runs / workers) <= runs / (efficiency * min(workers, devices))


def run_on_cluster(runs: Sequence[PlacedRun], folder: Path, options: RunOptions) -> None:
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
    with RoundReporter(runs, options) as reporter:
        callbacks = SweepCallbacks(lambda run: reporter.report(run.name), options.interrupted, options.notify)
        if not RunSweep(function, folder.absolute(), callbacks).execute(wanted):
            raise KeyboardInterrupt


class RoundReporter(ExitStack):
    """Reports runs on other machines by reading their logs: to `on_round` and to the trackers.

    Args:
        runs: the runs.
        options: whom to report to.
    """

    def __init__(self, runs: Sequence[PlacedRun], options: RunOptions) -> None:
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
    """Executes a run in this process, one device at a time; this is the job of one core of the cluster.

    Args:
        text: the experiment as TOML.
        directory: the run directory.
        resume: continue the run in that directory.
        stop: path of a file; once it exists, the run ends after the current round.
        command: the command line, kept in `environment.json`.

    Returns:
        True if the run finished, False if it was stopped.
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


def run_experiment(
    experiment: Experiment, out: Path, options: RunOptions, name: str = ""
) -> list[RoundRecord]:
    """Simulates one experiment in one run directory and returns the records of all its rounds."""
    world = experiment.build_world()
    choice = choose_engine(experiment.simulation.engine, world)
    resolved = replace(experiment, simulation=replace(experiment.simulation, engine=choice.engine))
    if choice.notice is not None:
        options.notify(choice.notice)
    # The executor before anything is followed: it forks, and a fork copies locks in whatever state the
    # trackers' thread holds them.
    with open_executor(world, resolved.simulation, options) as executor:
        return run_in_directory(
            world,
            executor,
            RunRequest(out, experiment_toml(resolved), options.command, options.resume),
            resolved.simulation.checkpoint_every,
            Watch(lambda: options.follow(resolved, out, name or experiment.name), options.interrupted),
        )


def open_executor(
    world: World, parameters: SimulationParameters, options: RunOptions
) -> AbstractContextManager[Executor]:
    """Where devices' work is done: in this process and its children, or on a cluster."""
    # Ray is imported only here, as it is optional and takes seconds to load.
    if parameters.engine == "ray":
        return ray_executor(world, parameters, options.ray_address)
    return PoolExecutor(world, parameters)


def compare(
    experiment: Experiment,
    schemes: Sequence[str | SchemeBuilder],
    seeds: Sequence[int],
    out: Path,
    options: RunOptions,
    target: float | None = None,
) -> dict[str, Any]:
    """Runs several schemes with the same seeds, device conditions, data and initial model.

    Args:
        experiment: everything except scheme and seed.
        schemes: their names, also with variants ("hcef+edge_gossip"), or functions; gains are computed if
            "cef" is among them.
        seeds: one run per scheme and seed.
        out: receives `<scheme>/seed-<n>/`, `summary.json` and `report.html`.
        options: how to execute the runs.
        target: accuracy to reach in the tables; None for the experiment's target.

    Returns:
        The content of `summary.json`.

    Raises:
        InputError: there is no scheme or no seed.
    """
    if not schemes or not seeds:
        raise InputError("compare: give at least one scheme and one seed")
    # Build all of them before the first one runs: a misspelt scheme should fail now, not hours later.
    runs = [
        place_run(replace_scheme(experiment, scheme), seed, out, scheme if isinstance(scheme, str) else "")
        for scheme in dict.fromkeys(schemes)
        for seed in dict.fromkeys(seeds)
    ]
    return compare_runs(runs, out, options, target)


def replace_scheme(experiment: Experiment, scheme: str | SchemeBuilder) -> Experiment:
    """The experiment with another scheme: a name, also with variants, or a function."""
    if isinstance(scheme, str):
        return replace(experiment, scheme=replace(experiment.scheme, **parse_variants(scheme)))
    return experiment.change({"scheme.name": scheme})


def place_run(experiment: Experiment, seed: int, out: Path, name: str = "") -> PlacedRun:
    """A run of a comparison, in `<scheme>/seed-<n>/`; without a name, it gets the scheme's."""
    scheme = name or name_variants(to_document(experiment)["scheme"])
    return PlacedRun(
        f"{scheme} (seed {seed})",
        replace(experiment, seed=seed),
        out / scheme_folder(scheme) / f"seed-{seed}",
    )


def compare_runs(
    runs: Sequence[PlacedRun], out: Path, options: RunOptions, target: float | None = None
) -> dict[str, Any]:
    """Executes the runs of a comparison and summarises them; arguments as in `compare`."""
    runs[0].experiment.data.check_target("target", target)
    run_all(runs, out, options)
    aim = runs[0].experiment.rounds.target if target is None else target
    document = summarise(load_runs(out), aim)
    write_summary(out, document)
    write_report_if_possible(out, aim, options.notify)
    return document


def write_report_if_possible(out: Path, target: float | None, notify: Callable[[str], None]) -> Path | None:
    """Writes the report; where Matplotlib is missing, says so instead of failing after hours of work."""
    try:
        with explain_missing_extra():
            from cfel.report import write_report
    except MissingExtraError as error:
        notify(f"no report was written: {error}")
        return None
    return write_report(out, target)


def run_all(runs: Sequence[PlacedRun], out: Path, options: RunOptions) -> None:
    """Executes runs one after another, or side by side on a Ray cluster if that is faster.

    Args:
        runs: the runs and their directories; all use the same engine.
        out: contains all these directories.
        options: how to execute the runs.
    """
    parameters = runs[0].experiment.simulation
    on_ray = parameters.engine == "ray"
    with connect_cluster(options.ray_address, parameters.workers) if on_ray else nullcontext():
        # Many small runs: one core each. Few large runs: all cores for one run after another.
        # A run with parts that are objects cannot be sent as text.
        as_text = not any(run.experiment.code.objects for run in runs)
        if on_ray and as_text and prefer_whole_runs(runs):
            run_on_cluster(runs, out, options)
            return
        # A notice about the model would come with every run; what concerns one run names it.
        once = replace(options, notify=_without_repetitions(options.notify))
        for run in runs:
            run_experiment(run.experiment, run.directory, once, run.name)


def _without_repetitions(notify: Callable[[str], None]) -> Callable[[str], None]:
    said: set[str] = set()

    def notify_once(words: str) -> None:
        if words not in said:
            said.add(words)
            notify(words)

    return notify_once


def count_rounds(runs: Sequence[PlacedRun]) -> int:
    """Global rounds of the longest run, for progress bars."""
    return max(run.experiment.rounds.global_rounds for run in runs)


def scheme_folder(scheme: str) -> str:
    """The directory name for a scheme, without what is not portable in paths: a colon, angle brackets."""
    return scheme.replace(":", ".").removeprefix("<scheme ").replace("<", "").replace(">", "")
