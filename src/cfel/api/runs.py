"""Single runs and comparisons of several schemes, each run in its own directory."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfel.api.cluster_runs import PlacedRun, prefer_whole_runs, run_on_cluster
from cfel.api.run_options import OnRound, RunOptions
from cfel.control.scheme import SchemeBuilder
from cfel.errors import InputError
from cfel.experiment import Experiment, experiment_toml
from cfel.experiment.tables import to_document
from cfel.extras import MissingExtraError, explain_missing_extra
from cfel.report import load_runs, summarise, write_summary
from cfel.rounds.engine_choice import choose_engine
from cfel.rounds.parameters import SimulationParameters
from cfel.runlog import RoundRecord
from cfel.scaleout import connect_cluster, ray_executor
from cfel.scheme_names import name_variants, parse_variants
from cfel.simulation import Executor, PoolExecutor, Watch, run_in_directory
from cfel.world import World

__all__ = [
    "OnRound",
    "PlacedRun",
    "RunOptions",
    "compare",
    "compare_runs",
    "count_rounds",
    "open_executor",
    "place_run",
    "replace_scheme",
    "run_all",
    "run_experiment",
    "scheme_folder",
    "write_report_if_possible",
]


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
            resolved.simulation,
            out,
            experiment_toml=experiment_toml(resolved),
            command=list(options.command),
            resume=options.resume,
            watch=Watch(lambda: options.follow(resolved, out, name or experiment.name), options.interrupted),
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
