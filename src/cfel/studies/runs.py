"""Runs and comparisons: experiments carried out in directories of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cfel.errors import InputError
from cfel.experiment import Experiment, experiment_toml
from cfel.report import load_runs, summarise, write_report, write_summary
from cfel.runlog import RoundRecord
from cfel.simulation import PoolExecutor, Watch, run_in_directory

OnRound = Callable[[str, RoundRecord], None]
"""Told the run's name and every finished round."""


@dataclass(frozen=True, slots=True)
class Doing:
    """How runs are carried out, whatever the experiment.

    Attributes:
        command: what was typed, for the record.
        resume: go on with runs that exist already.
        on_round: told of every round.
        interrupted: asked after every round; true ends the run there, with a checkpoint.
    """

    command: tuple[str, ...] = ()
    resume: bool = False
    on_round: OnRound | None = None
    interrupted: Callable[[], bool] = lambda: False


def run_experiment(experiment: Experiment, out: Path, doing: Doing, name: str = "") -> list[RoundRecord]:
    """One simulation in one run directory."""
    world = experiment.world()
    resolved = experiment.resolved(world)
    tell = doing.on_round
    progress = None if tell is None else lambda record: tell(name or experiment.name, record)
    with PoolExecutor(world, resolved.simulation) as executor:
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
    for one in experiments:
        name, seed = one.scheme.name, one.seed
        run_experiment(one, out / run_name(name) / f"seed-{seed}", doing, f"{name} (seed {seed})")
    aim = experiment.simulation.target if target is None else target
    document = summarise(load_runs(out), aim)
    write_summary(out, document)
    write_report(out, aim)
    return document


def run_name(scheme: str) -> str:
    """A scheme's name as a directory's: "module:function" has no place there."""
    return scheme.replace(":", ".")
