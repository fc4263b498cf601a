"""Runs and comparisons: experiments carried out in directories of their own."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfel.api.cluster_runs import PlacedRun, do_on_cluster, is_better_whole
from cfel.api.run_options import Doing, OnRound
from cfel.errors import InputError
from cfel.experiment import Experiment, experiment_toml
from cfel.report import load_runs, summarise, write_report, write_summary
from cfel.runlog import RoundRecord
from cfel.scaleout import connection, ray_executor
from cfel.simulation import Executor, PoolExecutor, SimulationParameters, Watch, run_in_directory
from cfel.world import World

__all__ = ["Doing", "OnRound", "PlacedRun", "compare", "do_all", "run_experiment", "run_name"]


def run_experiment(experiment: Experiment, out: Path, doing: Doing, name: str = "") -> list[RoundRecord]:
    """One simulation in one run directory."""
    world = experiment.world()
    resolved = experiment.resolved(world)
    tell = doing.on_round
    progress = None if tell is None else lambda record: tell(name or experiment.name, record)
    with _executor(world, resolved.simulation, doing) as executor:
        return run_in_directory(
            world,
            executor,
            resolved.simulation,
            out,
            experiment_toml=experiment_toml(resolved),
            command=list(doing.command),
            resume=doing.resume,
            watch=Watch(progress, doing.interrupted),
        )


def _executor(
    world: World, parameters: SimulationParameters, doing: Doing
) -> AbstractContextManager[Executor]:
    if parameters.engine == "ray":
        return ray_executor(world, parameters, doing.ray_address)
    return PoolExecutor(world, parameters)


def compare(
    experiment: Experiment,
    schemes: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    doing: Doing,
    target: float | None = None,
) -> dict[str, Any]:
    """Several schemes under the same conditions, data and first model, each for the same seeds.

    Args:
        experiment: all but scheme and seed.
        schemes: names; "cef" among them gives the others a gain.
        seeds: one run per scheme and seed.
        out: holds `<scheme>/seed-<n>/`, `summary.json` and `report.html` in the end.
        doing: how.
        target: accuracy the tables speak of; the experiment's own by default.

    Returns:
        The document of `summary.json`.
    """
    if not schemes or not seeds:
        raise InputError("compare: needs at least one scheme and one seed")
    # All are put together before the first is run: a misspelt scheme should not cost the time of the others.
    experiments = [
        replace(experiment, seed=seed, scheme=replace(experiment.scheme, name=name))
        for name in dict.fromkeys(schemes)
        for seed in dict.fromkeys(seeds)
    ]
    runs = [
        PlacedRun(
            f"{one.scheme.name} (seed {one.seed})", one, out / run_name(one.scheme.name) / f"seed-{one.seed}"
        )
        for one in experiments
    ]
    do_all(runs, out, doing)
    aim = experiment.simulation.target if target is None else target
    document = summarise(load_runs(out), aim)
    write_summary(out, document)
    write_report(out, aim)
    return document


def do_all(runs: Sequence[PlacedRun], out: Path, doing: Doing) -> None:
    """Does the runs one after the other, or side by side on a cluster where that is the better split.

    Args:
        runs: what is done, and where; all with the same engine.
        out: holds all their directories.
        doing: how.
    """
    parameters = runs[0].experiment.simulation
    on_ray = parameters.engine == "ray"
    with connection(doing.ray_address, parameters.workers) if on_ray else nullcontext():
        if on_ray and is_better_whole(runs):
            do_on_cluster(runs, out, doing)
            return
        for run in runs:
            run_experiment(run.experiment, run.directory, doing, run.name)


def run_name(scheme: str) -> str:
    """A scheme's name as a directory's: "module:function" has no place there."""
    return scheme.replace(":", ".")
