"""The functions of `import cfel` that run experiments: run, simulate, compare, sweep, tune, load.

They do what the commands of the same name do, and return objects instead of printing.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from cfel.api.progress import track_runs
from cfel.api.results import Comparison, RunResult, Simulation, load_comparison, load_result
from cfel.api.runs import (
    PlacedRun,
    RunOptions,
    compare_runs,
    count_rounds,
    place_run,
    replace_scheme,
    run_experiment,
)
from cfel.api.sweeps import Sweep, Tuning, load_sweep, place_settings, sweep_runs, tune_runs
from cfel.control.scheme import SchemeBuilder
from cfel.errors import InputError
from cfel.experiment import Experiment, load_experiment
from cfel.plugins import ANY_CODE, NOT_FROM_DIRECTORIES, import_from
from cfel.report.load import SWEEP_FILE
from cfel.runlog import RoundRecord, holds_run
from cfel.tracking import Tracker, choose_trackers

Source = Experiment | str | PathLike[str]
"""An experiment, or the path of an experiment file."""


Track = str | Tracker | Sequence[str | Tracker]
"""Names of trackers, or functions that open a sink."""


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
    one = read_experiment(experiment)
    path = Path("runs") / one.name if out is None else Path(out)
    call = None if on_round is None else lambda _name, record: on_round(record)
    trackers = _list_trackers(track)
    options = RunOptions(tuple(sys.argv), resume, call, ray_address=ray_address, trackers=trackers)
    with track_runs(one.rounds.global_rounds, options, progress) as (_, tracked):
        run_experiment(one, path, tracked)
    return load_result(path, one)


def simulate(experiment: Source) -> Simulation:
    """Simulates one experiment round by round, for `for record in cfel.simulate(experiment): …`.

    Nothing is written to disk. The object also shows the plans and the model of the last round.
    """
    return Simulation(read_experiment(experiment))


def compare(
    experiment: Source | Sequence[Source],
    schemes: str | Sequence[str | SchemeBuilder] | None = None,
    seeds: Sequence[int] | None = None,
    *,
    out: str | PathLike[str] | None = None,
    target: float | None = None,
    resume: bool = False,
    progress: bool = True,
    ray_address: str | None = None,
    track: Track = (),
) -> Comparison:
    """Simulates several schemes under the same conditions, as `cfel compare` does.

    Args:
        experiment: everything but scheme and seed; or several experiments, each with its own scheme.
        schemes: one or more names, also with variants ("hcef+edge_gossip"), or functions; by default the
            scheme of each experiment. Gains are computed if "cef" is among them.
        seeds: of each scheme; by default the experiment's.
        out: the directory; `runs/NAME-compared` by default.
        target: accuracy to reach in the tables; by default the experiment's.
        resume: continue the runs in the directory.
        progress: show progress bars.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
        track: trackers to report every run to, as in `run`.

    Raises:
        InputError: a value is not allowed, or two runs have the same scheme and seed.
    """
    several = [experiment] if isinstance(experiment, Experiment | str | PathLike) else experiment
    if not several:
        raise InputError("compare: give at least one experiment")
    bases = [read_experiment(each) for each in several]
    path = Path("runs") / f"{bases[0].name}-compared" if out is None else Path(out)
    runs = _place_all(bases, [schemes] if isinstance(schemes, str) else schemes, seeds, path)
    trackers = _list_trackers(track)
    options = RunOptions(tuple(sys.argv), resume, ray_address=ray_address, trackers=trackers)
    with track_runs(count_rounds(runs), options, progress) as (_, tracked):
        compare_runs(runs, path, tracked, target)
    return load_comparison(path, target)


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
        target: accuracy to reach in the table; by default the experiment's.
        progress: show progress bars.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
        track: trackers to report every run to, as in `run`.
    """
    base = read_experiment(experiment)
    path = Path("runs") / f"{base.name}-sweep" if out is None else Path(out)
    trackers = _list_trackers(track)
    options = RunOptions(tuple(sys.argv), resume=True, ray_address=ray_address, trackers=trackers)
    settings, runs = place_settings(base, over, [base.seed] if seeds is None else seeds, path)
    with track_runs(count_rounds(runs), options, progress) as (_, tracked):
        sweep_runs(settings, runs, path, tracked, target)
    return load_sweep(path, target)


def tune(
    experiment: Source,
    over: Mapping[str, str | Sequence[Any]],
    *,
    trials: int = 20,
    seeds: Sequence[int] | None = None,
    out: str | PathLike[str] | None = None,
    progress: bool = True,
    ray_address: str | None = None,
    track: Track = (),
) -> Tuning:
    """Chooses values of some keys by held-out accuracy under the experiment's budgets, as `cfel tune` does.

    Args:
        experiment: everything else.
        over: by dotted key a list of values, or a range as text: "0.001..0.1", "0.001..0.1:log", "2..10".
        trials: how many, those of earlier calls in the same directory included.
        seeds: of each trial; by default the experiment's seed plus 1000, and never that seed itself.
        out: the directory; `runs/NAME-tuned` by default. A tuning that was stopped continues there.
        progress: show progress bars.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
        track: trackers to report every run to, as in `run`.
    """
    base = read_experiment(experiment)
    path = Path("runs") / f"{base.name}-tuned" if out is None else Path(out)
    trackers = _list_trackers(track)
    options = RunOptions(tuple(sys.argv), resume=True, ray_address=ray_address, trackers=trackers)
    with track_runs(base.rounds.global_rounds, options, progress) as (_, tracked):
        return tune_runs(base, over, trials, seeds, path, tracked)


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
    if holds_run(place):
        return load_result(place, code=ANY_CODE if trust else NOT_FROM_DIRECTORIES)
    return load_sweep(place) if (place / SWEEP_FILE).exists() else load_comparison(place)


def read_experiment(source: Source) -> Experiment:
    """The experiment itself, or the one in a file."""
    if isinstance(source, Experiment):
        return source
    loaded: Experiment = load(source)
    if not isinstance(loaded, Experiment):
        raise InputError(f"{source}: is a directory, must be an experiment or its file")
    return loaded


def _place_all(
    bases: Sequence[Experiment],
    schemes: Sequence[str | SchemeBuilder] | None,
    seeds: Sequence[int] | None,
    out: Path,
) -> list[PlacedRun]:
    runs: dict[Path, PlacedRun] = {}
    for base in bases:
        chosen = (
            [(base, "")]
            if schemes is None
            else [
                (replace_scheme(base, scheme), scheme if isinstance(scheme, str) else "")
                for scheme in schemes
            ]
        )
        for one, name in chosen:
            for seed in [base.seed] if seeds is None else seeds:
                run = place_run(one, seed, out, name)
                if runs.setdefault(run.directory, run).experiment != run.experiment:
                    raise InputError(f"compare: two experiments for {run.name}; use `sweep` for other keys")
    if not runs:
        raise InputError("compare: give at least one scheme and one seed")
    return list(runs.values())


def _list_trackers(track: Track) -> dict[str, Tracker]:
    return choose_trackers([track] if isinstance(track, str) or callable(track) else track)
