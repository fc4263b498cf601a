"""`cfel run`: one simulation."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.api.runs import RunOptions, run_experiment
from cfel.cli.ending import tell_ending
from cfel.cli.interrupt import interruptible
from cfel.cli.progress import RunProgress
from cfel.cli.shared import Commands, add_changes, add_command, add_json, import_from
from cfel.errors import RunDirectoryError
from cfel.experiment import Experiment, load_experiment
from cfel.plugins import ANY_CODE
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from cfel.simulation import ENGINES
from cfel.system import bias_warning, cluster_sizes

EXAMPLE = """  cfel run experiment.toml --out runs/first --set rounds.global=10
  cfel run experiment.toml --out runs/first --resume"""

ENGINE_HELP = (
    "threads: one device per core; batched: many small models at once; ray: as threads, on a cluster "
    "(default: the experiment's)"
)


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "run", EXAMPLE)
    add_experiment(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in DIR")
    add_run_options(parser)
    parser.set_defaults(run=run)


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """The experiment file."""
    parser.add_argument(
        "experiment", type=Path, metavar="EXPERIMENT.toml", help="what to run; keys: docs/experiment.md"
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What all commands that simulate understand: --engine, --ray-address, --set and --json."""
    parser.add_argument("--engine", choices=ENGINES, help=ENGINE_HELP)
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="with --engine ray: the cluster's head (default: start one here)",
    )
    add_changes(parser)
    add_json(parser)


def read_experiment(arguments: argparse.Namespace) -> Experiment:
    """The experiment that the arguments name, changed by --set and --engine; its own code lies beside it."""
    import_from(arguments.experiment.parent)
    experiment = with_engine(load_experiment(arguments.experiment, arguments.set, ANY_CODE), arguments.engine)
    sizes = cluster_sizes(experiment.fleet.devices, experiment.fleet.clusters)
    warning = bias_warning(experiment.topology.weights, sizes)
    if warning is not None:
        Console(stderr=True, highlight=False).print(f"[yellow]warning:[/] {escape(warning)}")
    return experiment


def with_engine(experiment: Experiment, engine: str | None) -> Experiment:
    """The experiment with the engine asked for on the command line."""
    if engine is None:
        return experiment
    return replace(experiment, simulation=replace(experiment.simulation, engine=engine))


def _in_the_way(out: Path, experiment: Experiment) -> str:
    """What lies in a directory that is to be written to."""
    records = RunDirectory.open(out).records()
    total = experiment.rounds.global_rounds
    if records and records[-1].round >= total:
        return f"{out} holds a finished run already: {_ending(records[-1], experiment)}"
    done = f"{len(records)} of {total} rounds are done"
    return f"{out} holds a run already, {done}: go on with it with --resume, or choose another --out"


def _ending(last: RoundRecord, experiment: Experiment) -> str:
    """Why a run is finished, and how to get more of it."""
    if last.round >= experiment.rounds.global_rounds:
        return (
            f"all {last.round} rounds are done. rounds.global of a run cannot change, as its plans share the "
            "budgets among all rounds: for a longer one choose another --out"
        )
    return (
        f"it ended at its {experiment.simulation.stop} after {last.round} of "
        f"{experiment.rounds.global_rounds} rounds. To go on, --resume it with --set rounds.stop=rounds or "
        "another rounds.target"
    )


def build_run_options(
    arguments: argparse.Namespace, progress: RunProgress, interrupted: Callable[[], bool], resume: bool
) -> RunOptions:
    """How the arguments want runs to be carried out."""
    return RunOptions(
        command=tuple(sys.argv),
        resume=resume,
        on_round=progress.on_round,
        interrupted=interrupted,
        notify=progress.say,
        ray_address=arguments.ray_address,
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs and reports."""
    experiment = read_experiment(arguments)
    out: Path = arguments.out or Path("runs") / experiment.name
    if holds_run(out) and not arguments.resume:
        raise RunDirectoryError(_in_the_way(out, experiment))
    with RunProgress(experiment.rounds.global_rounds) as progress, interruptible(progress.say) as interrupted:
        options = build_run_options(arguments, progress, interrupted, arguments.resume)
        records = run_experiment(experiment, out, options)
        if not progress.moved:
            progress.say(f"{out} is finished already: {_ending(records[-1], experiment)}")
    return tell_ending(arguments, experiment, out, records)
