"""Runs experiments: `run`, `simulate`, `compare`, `sweep` and `load` of `import cfel`.

The commands of the same names call these functions and print what they return. Every run has its own
directory; a comparison and a sweep also get a summary and a report of all their runs.
"""

import json
import math
import re
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from torch import nn

from cfel.api.progress import RunProgress, defer_interrupt
from cfel.api.results import (
    Comparison,
    RunResult,
    Sweep,
    load_result,
    load_run_set,
    tabulate_plan,
    write_report_if_possible,
)
from cfel.control.scheme import SchemeBuilder
from cfel.durable import replace_file, translate_os_errors
from cfel.errors import BudgetWarning, InputError, RunBusyError, unknown_name
from cfel.experiment import Experiment, experiment_toml, load_experiment, parse_experiment
from cfel.experiment.experiment import to_document
from cfel.experiment.sections import MAIN_KEYS
from cfel.learning.edge import mean_model
from cfel.metric import ACCURACY, Metric
from cfel.plugins import ANY_CODE, NOT_FROM_DIRECTORIES, import_from, name_variants, parse_variants
from cfel.report.load import COMPARISON_FILE, SWEEP_FILE, find_baseline, load_runs, name_setting, read_rows
from cfel.report.summary import REFERENCE, describe_overruns, write_summary
from cfel.rounds.run_directory import RunRequest, flatten, reject_unusable
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from cfel.scaleout import connect_cluster, ray_executor, require_ray
from cfel.simulation.executors import Executor, PoolExecutor
from cfel.simulation.loop import Watch, run_in_directory
from cfel.simulation.loop import simulate as simulate_rounds
from cfel.simulation.parameters import SimulationParameters, choose_engine
from cfel.simulation.state import RoundOutcome, initial_state
from cfel.tracking import TrackedRun, Tracker, choose_trackers, follow_run
from cfel.world import World

Source = Experiment | str | PathLike[str]
"""An experiment, or the path of an experiment file."""

Track = str | Tracker | Sequence[str | Tracker]
"""Names of trackers, or functions that open a sink."""

_Runs = TypeVar("_Runs", Comparison, Sweep)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to execute runs, whatever their experiments, and whom to tell about them."""

    command: tuple[str, ...] = ()  # the command line, kept in `environment.json`
    resume: bool = False  # continue runs that already exist
    # Called after every round, with the name of the run and the round's record.
    on_round: Callable[[str, RoundRecord], None] | None = None
    # Checked after every round; true ends the run there, with a checkpoint.
    interrupted: Callable[[], bool] = lambda: False
    notify: Callable[[str], None] = lambda _: None  # receives one-line messages for the user
    ray_address: str | None = None  # the cluster to use with engine "ray"; None starts one on this machine
    # What each run is reported to, by name; see `choose_trackers`.
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

    @contextmanager
    def show_progress(self, experiments: Sequence[Experiment], show: bool = True) -> Iterator["RunOptions"]:
        """Gives these options with progress bars for runs of experiments, and with a deferred Ctrl-C."""
        # A user's own task says what it measures only once it is loaded.
        metric = ACCURACY if experiments[0].data.task is None else Metric("metric", unit="")
        rounds = max(each.rounds.global_rounds for each in experiments)
        with RunProgress(rounds, metric, quiet=not show) as progress:

            def on_round(name: str, record: RoundRecord) -> None:
                progress.on_round(name, record)
                if self.on_round is not None:
                    self.on_round(name, record)

            notify = progress.print_line if show else self.notify
            with defer_interrupt(notify) as interrupted:
                yield replace(self, on_round=on_round, interrupted=interrupted, notify=notify)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run to execute."""

    name: str  # shown to the user
    experiment: Experiment
    directory: Path
    # Its values of the keys of a sweep, with names for objects; empty for other runs.
    setting: Mapping[str, Any] = field(default_factory=dict)
    row: str = ""  # the row of a comparison that it belongs to; empty for other runs


def run(
    experiment: Source,
    out: str | PathLike[str] | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
    on_round: Callable[[RoundRecord], None] | None = None,
    ray_address: str | None = None,
    track: Track = (),
) -> RunResult:
    """Simulates one experiment in a run directory, as `cfel run` does.

    Args:
        experiment: the experiment, or its file.
        out: the run directory; `runs/NAME` by default.
        resume: continue the run in that directory, if there is one. If parts of the experiment are objects,
            the same objects must be given again.
        progress: show a progress bar.
        on_round: called after every global round.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
        track: trackers to report to: "tensorboard", "mlflow", "wandb", "trackio", or a function that opens a
            sink for a run; one or several.

    Raises:
        InputError: a value is not allowed.
        RunDirectoryError: the directory holds a run and `resume` is not set, or a run of another experiment.
        KeyboardInterrupt: Ctrl-C was pressed; the run ended after its round, with a checkpoint.
    """
    one = find_experiment(experiment)
    path = Path("runs") / one.name if out is None else Path(out)
    options = make_options(track, ray_address, resume)
    if on_round is not None:
        options = replace(options, on_round=lambda _name, record: on_round(record))
    with options.show_progress([one], progress) as shown:
        run_experiment(one, path, shown)
    result = load_result(path, one)
    _warn(describe_overruns(result.run))
    return result


def _warn(sentences: Iterable[str], callers: int = 1) -> None:
    """Tells a Python user what was broken, so many calls above; commands print it instead."""
    for sentence in sentences:
        warnings.warn(sentence, BudgetWarning, stacklevel=2 + callers)


def simulate(experiment: Source) -> "Simulation":
    """Simulates one experiment round by round, for `for record in cfel.simulate(experiment): …`.

    Nothing is written to disk. The object also shows the plans and the model of the last round.
    """
    return Simulation(find_experiment(experiment))


def compare(
    experiment: Source | Sequence[Source] | Mapping[str, Source],
    schemes: str | Sequence[str | SchemeBuilder] | None = None,
    seeds: Sequence[int] | None = None,
    *,
    out: str | PathLike[str] | None = None,
    target: float | None = None,
    baseline: str | None = None,
    resume: bool = False,
    progress: bool = True,
    ray_address: str | None = None,
    track: Track = (),
) -> Comparison:
    """Simulates several schemes, or any other variants, under the same conditions, as `cfel compare` does.

    All runs with one seed share what their experiments share: device conditions, data, initial model.

    Args:
        experiment: everything but scheme and seed; or any experiments by the names of their rows, as in
            {"mine": one, "without momentum": other}; or several, each with its own scheme.
        schemes: one or more names, also with variants ("hcef+edge_gossip"), or functions; by default the
            scheme of each experiment. Not with named experiments.
        seeds: of each row; by default the experiment's.
        out: receives `<row>/seed-<n>/`, `summary.json` and `report.html`; `runs/NAME-compared` by default.
        target: quality to reach in the tables; by default the experiment's.
        baseline: the row that others are compared with; by default "cef" if there is one, else the first.
        resume: continue the runs in the directory.
        progress: show progress bars.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
        track: trackers to report every run to, as in `run`.

    Raises:
        InputError: a value is not allowed, or two experiments have the same row and seed.
    """
    rows = list_rows(experiment, [schemes] if isinstance(schemes, str) else schemes)
    path = Path("runs") / f"{next(iter(rows.values())).name}-compared" if out is None else Path(out)
    runs = plan_comparison(rows, seeds, path)
    if baseline is None:
        baseline = REFERENCE if REFERENCE in rows else next(iter(rows))
    elif baseline not in rows:
        raise InputError(unknown_name("baseline", baseline, tuple(rows)))
    options = make_options(track, ray_address, resume)
    if not resume:
        for run in runs:
            reject_unusable(run.directory, experiment_toml(run.experiment), resume=False)
    check_before_writing(runs[0].experiment, target)
    write_comparison(path, runs, baseline)
    return _run_and_summarise(Comparison, runs, path, options, target, progress)


def sweep(
    experiment: Source,
    over: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] | None = None,
    *,
    out: str | PathLike[str] | None = None,
    target: float | None = None,
    progress: bool = True,
    ray_address: str | None = None,
    track: Track = (),
) -> Sweep:
    """Simulates every combination of some values of some keys; runs that are already there are kept.

    Args:
        experiment: everything else.
        over: values by dotted keys, as in {"rounds.edge": [2, 5, 10]}.
        seeds: of each combination; by default the experiment's.
        out: the directory; `runs/NAME-sweep` by default. A sweep that was stopped continues there.
        target: quality to reach in the table; by default the experiment's.
        progress: show progress bars.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
        track: trackers to report every run to, as in `run`.
    """
    base = find_experiment(experiment)
    path = Path("runs") / f"{base.name}-sweep" if out is None else Path(out)
    runs = plan_sweep(base, over, [base.seed] if seeds is None else seeds, path)
    options = make_options(track, ray_address, resume=True)
    check_before_writing(runs[0].experiment, target)
    write_sweep(path, runs)
    return _run_and_summarise(Sweep, runs, path, options, target, progress)


def load(path: str | PathLike[str], *, trust: bool = False, **changes: Any) -> Any:  # noqa: ANN401 — depends on the path
    """Loads what a path holds: an experiment, or the result of `run`, `compare` or `sweep`.

    Args:
        path: an experiment file (gives an `Experiment`), a run directory (`RunResult`), or a directory of
            several runs (`Comparison` or `Sweep`).
        trust: whether the experiment in a run directory may name code, which then runs here.
        **changes: keys of an experiment file to change, with two underscores for the dot, as in
            `rounds__global=4`.
    """
    place = Path(path)
    if not place.is_dir():
        import_from(place.parent)
        loaded = load_experiment(place, (), ANY_CODE)
        return loaded.change({key.replace("__", "."): value for key, value in changes.items()})
    if changes:
        raise InputError(f"{next(iter(changes))}: {place} is a directory, whose keys cannot be changed")
    code = ANY_CODE if trust else NOT_FROM_DIRECTORIES
    return load_result(place, code=code) if holds_run(place) else load_run_set(place, code)


def find_experiment(source: Source) -> Experiment:
    loaded = source if isinstance(source, Experiment) else load(source)
    if not isinstance(loaded, Experiment):
        raise InputError(f"{source}: is a directory, must be an experiment or its file")
    return loaded


def make_options(track: Track, ray_address: str | None, resume: bool) -> RunOptions:
    """The options of runs that this process was asked for."""
    names = [track] if isinstance(track, str) or callable(track) else track
    return RunOptions(tuple(sys.argv), resume, ray_address=ray_address, trackers=choose_trackers(names))


class Simulation:
    """An experiment, simulated round by round while the caller iterates over its records.

    `plans` and `model` show the last round that was yielded. Iterating again starts again.

    Args:
        experiment: what is run.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._world = experiment.build_world()
        self._last: RoundOutcome | None = None

    def __iter__(self) -> Iterator[RoundRecord]:
        world = self._world
        parameters = self.experiment.resolve(world).simulation
        with open_executor(world, parameters) as executor:
            rounds = simulate_rounds(world, executor, initial_state(world), time.perf_counter)
            # A caller may stop early; the work that is under way must end before its executor does.
            with closing(rounds):  # type: ignore[type-var]
                for outcome in rounds:
                    self._last = outcome
                    yield outcome.record

    @property
    def plans(self) -> pa.Table:
        """One row per edge round and device of the last round: orders, conditions and costs."""
        return tabulate_plan(self._outcome().plans)

    def model(self, edge: int | None = None) -> nn.Module:
        """The model after the last round, in evaluation mode: one edge server's, or the consensus of all."""
        last = self._outcome()
        fleet = self._world.at(last.record.round - 1).setting.fleet
        models = {i: last.state.models[i] for i in fleet.list_edges()}
        if edge is not None and edge not in models:
            raise InputError(f"edge = {edge}: there are edge servers {', '.join(map(str, models))}")
        flat = self._world.task.build()
        flat.load(mean_model(fleet.sizes, models) if edge is None else models[edge])
        return flat.module.eval()

    def _outcome(self) -> RoundOutcome:
        if self._last is None:
            raise InputError("simulate: no round has been simulated yet; iterate first")
        return self._last


# Executing runs.


def run_experiment(
    experiment: Experiment, out: Path, options: RunOptions, name: str = ""
) -> list[RoundRecord]:
    """Simulates one experiment in one run directory and returns the records of all its rounds."""
    world = experiment.build_world()
    choice = choose_engine(experiment.simulation.engine, world, experiment.simulation.device)
    resolved = replace(experiment, simulation=replace(experiment.simulation, engine=choice.engine))
    if choice.notice is not None:
        options.notify(choice.notice)
    # The executor before anything is followed: it forks, and a fork copies locks in whatever state the
    # trackers' thread holds them.
    with open_executor(world, resolved.simulation, options.ray_address) as executor:
        return run_in_directory(
            world,
            executor,
            RunRequest(out, experiment_toml(resolved), options.command, options.resume),
            resolved.simulation.checkpoint_every,
            Watch(lambda: options.follow(resolved, out, name or experiment.name), options.interrupted),
        )


def open_executor(
    world: World, parameters: SimulationParameters, ray_address: str | None = None
) -> AbstractContextManager[Executor]:
    """Where devices' work is done: in this process and its children, or on a cluster."""
    if parameters.engine == "ray":
        return ray_executor(world, parameters, ray_address)
    return PoolExecutor(world, parameters)


def run_all(runs: Sequence[PlannedRun], out: Path, options: RunOptions) -> None:
    """Executes runs, which all use the same engine: one after another, or side by side on a Ray cluster."""
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
        once = replace(options, notify=cache(options.notify))
        for run in runs:
            run_experiment(run.experiment, run.directory, once, run.name)


def check_before_writing(experiment: Experiment, target: float | None = None) -> None:
    """Rejects what no run could do, while there is no directory of several runs yet."""
    experiment.data.check_target("target", target)
    if experiment.simulation.engine == "ray":
        require_ray()


def _run_and_summarise(
    kind: type[_Runs],
    runs: Sequence[PlannedRun],
    out: Path,
    options: RunOptions,
    target: float | None,
    progress: bool,
) -> _Runs:
    """Executes runs and writes summary and report; returns what they have found."""
    aim = runs[0].experiment.rounds.target if target is None else target
    with options.show_progress([run.experiment for run in runs], progress) as shown:
        run_all(runs, out, shown)
        found = kind(out, tuple(map(RunResult, load_runs(out))), aim, find_baseline(out))
        write_summary(out, found.summary)
        write_report_if_possible(out, aim, shown.notify)
    _warn(found.describe_overruns(), callers=2)
    return found


# Comparisons and sweeps: which runs they have, and where.


def list_rows(
    experiment: Source | Sequence[Source] | Mapping[str, Source],
    schemes: Sequence[str | SchemeBuilder] | None,
) -> dict[str, Experiment]:
    """The experiment of each row of a comparison, by its name, in the order given; see `compare`."""
    if isinstance(experiment, Mapping):
        if schemes is not None:
            raise InputError("compare: give schemes, or named experiments with their own schemes, not both")
        rows = {str(name): find_experiment(each) for name, each in experiment.items()}
    else:
        several = [experiment] if isinstance(experiment, Experiment | str | PathLike) else experiment
        rows = {}
        for base in map(find_experiment, several):
            for scheme in [None] if schemes is None else schemes:
                one = base if scheme is None else replace_scheme(base, scheme)
                name = scheme if isinstance(scheme, str) else name_variants(to_document(one)["scheme"])
                if rows.setdefault(name, one) != one:
                    raise InputError(f"compare: two experiments for {name}; name them, as in {{'mine': one}}")
    if not rows:
        raise InputError("compare: give at least one experiment and one scheme")
    return rows


def plan_comparison(
    rows: Mapping[str, Experiment], seeds: Sequence[int] | None, out: Path
) -> list[PlannedRun]:
    """The runs of a comparison, each in `<row>/seed-<n>/`; see `compare`."""
    runs: dict[Path, PlannedRun] = {}
    for row, experiment in rows.items():
        for seed in [experiment.seed] if seeds is None else dict.fromkeys(seeds):
            run = plan_run(experiment, row, seed, out)
            if (other := runs.setdefault(run.directory, run)) is not run:
                raise InputError(f"compare: {other.row!r} and {row!r} would share the folder {run.directory}")
    if not runs:
        raise InputError("compare: give at least one seed")
    return list(runs.values())


def write_comparison(out: Path, runs: Sequence[PlannedRun], baseline: str) -> None:
    """Writes which run belongs to which row; rows of an earlier comparison in the directory come last."""
    listed = {run.directory: run.row for run in runs}
    earlier = {path: row for path, row in read_rows(out).items() if path not in listed}
    found = [
        {"row": row, "directory": str(path.relative_to(out))} for path, row in (listed | earlier).items()
    ]
    _write_index(out, COMPARISON_FILE, {"baseline": baseline, "runs": found})


def write_sweep(out: Path, runs: Sequence[PlannedRun]) -> None:
    """Writes which run has which values, so that the sweep can be loaded (`report.load`)."""
    rows = [{"values": dict(run.setting), "directory": str(run.directory.relative_to(out))} for run in runs]
    _write_index(out, SWEEP_FILE, {"runs": rows})


def _write_index(out: Path, name: str, document: Mapping[str, Any]) -> None:
    with translate_os_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    replace_file(out / name, (json.dumps(document, indent=2) + "\n").encode())


def replace_scheme(experiment: Experiment, scheme: str | SchemeBuilder) -> Experiment:
    """The experiment with another scheme: a name, also with variants, or a function."""
    if isinstance(scheme, str):
        return replace(experiment, scheme=replace(experiment.scheme, **parse_variants(scheme)))
    return experiment.change({"scheme.name": scheme})


def plan_run(experiment: Experiment, row: str, seed: int, out: Path) -> PlannedRun:
    """A run in `<row>/seed-<n>/` of a directory."""
    directory = out / row_folder(row) / f"seed-{seed}"
    return PlannedRun(f"{row} (seed {seed})", replace(experiment, seed=seed), directory, row=row)


def row_folder(row: str) -> str:
    """The directory name for a row of a comparison, without what is not portable in paths."""
    plain = row.replace(":", ".").removeprefix("<scheme ").replace("<", "").replace(">", "")
    return re.sub(r"[^A-Za-z0-9._=,+-]", "_", plain)


def plan_sweep(
    experiment: Experiment, over: Mapping[str, Sequence[Any]], seeds: Sequence[int], out: Path
) -> list[PlannedRun]:
    """The runs of a sweep, each in `<key=value,…>/seed-<n>/`; see `sweep`."""
    if not over or not seeds or not all(map(len, over.values())):
        raise InputError("sweep: give at least one key with at least one value, and one seed")
    if "seed" in over:
        raise InputError("sweep: give seeds as `seeds`")
    runs: list[PlannedRun] = []
    folders: dict[str, Mapping[str, Any]] = {}
    for combination in product(*over.values()):
        chosen = dict(zip(over, combination, strict=True))
        changed = experiment.change(chosen)
        setting = {key: _name_value(changed, key, value) for key, value in chosen.items()}
        # Without what is not portable in paths.
        folder = re.sub(r"[^A-Za-z0-9._=,-]", "_", name_setting(setting))
        if folder in folders:
            raise InputError(f"sweep: {setting} and {folders[folder]} would share the folder {folder!r}")
        folders[folder] = setting
        # As a progress bar has room for it: "learning_rate=0.0346, edge=4".
        short = ((key.rpartition(".")[2], value) for key, value in setting.items())
        shown = ", ".join(
            f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in short
        )
        for seed in dict.fromkeys(seeds):
            name, directory = f"{shown} (seed {seed})", out / folder / f"seed-{seed}"
            runs.append(PlannedRun(name, changed.change({"seed": seed}), directory, setting))
    return runs


def _name_value(experiment: Experiment, key: str, value: object) -> object:
    """A value as the experiment file has it: an object by its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value)
    section, _, name = key.partition(".")
    part = getattr(experiment, section)
    return getattr(part, name or MAIN_KEYS[section])


# Whole runs side by side on a Ray cluster, one core each, where that is faster. A run is sent as the text
# of its experiment and the path of its directory. Data files must be at the same path on every machine, and
# the directory on storage that all machines share, unless there is only this one.


# How long a run waits for an earlier process to release its directory: after a network failure that process
# may still be alive and hold the lock.
BUSY_SECONDS = 60.0
# Speed of a worker when runs are split by device, relative to a worker that has a whole run to itself: for
# models whose steps take tens of milliseconds, and for models whose steps take less time than a message.
LARGE_MODEL_EFFICIENCY = 0.9
SMALL_MODEL_EFFICIENCY = 0.3


def prefer_whole_runs(runs: Sequence[PlannedRun]) -> bool:
    """Whether the connected cluster finishes these runs sooner side by side than one after another."""
    from cfel.scaleout.workers import cluster_cores

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


def run_on_cluster(runs: Sequence[PlannedRun], folder: Path, options: RunOptions) -> None:
    """Executes whole runs on the connected cluster.

    Raises:
        RunDirectoryError: a directory cannot take its run; none has started then.
        KeyboardInterrupt: the user interrupted them; every run that had started has a checkpoint.
    """
    from cfel.scaleout.whole_runs import ClusterRun, ClusterRuns

    function = partial(run_from_text, command=options.command)
    wanted = [
        ClusterRun(run.name, experiment_toml(run.experiment), run.directory.absolute(), options.resume)
        for run in runs
    ]
    # Before any of them is followed: trackers would take what is in a directory for part of its run.
    for run in wanted:
        reject_unusable(run.directory, run.text, run.resume)
    planned = {run.name: run for run in runs}
    done: dict[str, int] = {}
    follow: dict[str, Callable[[RoundRecord], None]] = {}
    with ExitStack() as followed:

        def report_new_rounds(run: ClusterRun) -> None:
            """Reports what was added to the log of a run on another machine since the last call."""
            one = planned[run.name]
            if not holds_run(one.directory):
                return
            if run.name not in follow:
                report = options.follow(one.experiment, one.directory, run.name)
                follow[run.name] = followed.enter_context(report)
            records = RunDirectory.open(one.directory).records()
            for record in records[done.get(run.name, 0) :]:
                follow[run.name](record)
            # A directory that is being rewritten may briefly show fewer records than before.
            done[run.name] = max(done.get(run.name, 0), len(records))

        cluster_runs = ClusterRuns(
            function,
            folder.absolute(),
            on_poll=report_new_rounds,
            interrupted=options.interrupted,
            notify=options.notify,
        )
        if not cluster_runs.execute(wanted):
            raise KeyboardInterrupt


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
