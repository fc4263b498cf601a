"""`cfel reproduce`: a table or figure of the paper, measured here and beside the paper's values."""

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.cli.compare import names, numbers
from cfel.cli.interrupt import interruptible
from cfel.cli.progress import RunProgress
from cfel.cli.run import add_run_options, build_run_options
from cfel.cli.shared import Commands, add_command, new_table, print_json, print_table
from cfel.report.reproduction import TextTable
from cfel.reproduce.forecast import estimated_seconds, measured_pace, rounds_left
from cfel.reproduce.items import (
    DATASETS,
    ITEMS,
    SCALES,
    Asked,
    PlannedRun,
    experiments_directory,
    planned_runs,
)
from cfel.reproduce.landing import land
from cfel.reproduce.rates import chosen_rates
from cfel.reproduce.reproduction import carry_out, reproduced

EXAMPLE = """  cfel reproduce table1 --dataset cifar10 --data data/cifar10 --scale smoke
  cfel reproduce q --dataset femnist --data data/femnist --seeds 0,1
  cfel reproduce rates --dataset cifar10 --data data/cifar10
  cfel reproduce table1 --dataset femnist --data data/femnist --scale full --land results/femnist"""


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "reproduce", EXAMPLE)
    parser.add_argument("item", choices=ITEMS, help="which table or figure; rates chooses learning rates")
    parser.add_argument("--dataset", choices=DATASETS, required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="where the data set is")
    parser.add_argument("--scale", choices=SCALES, default="reduced", help="default reduced")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default reproduced/ITEM-DATASET-SCALE")
    parser.add_argument("--schemes", type=names, metavar="A,B,…", help="default: all of the paper's")
    parser.add_argument("--seeds", type=numbers, metavar="0,1,…", help="default: by item and scale")
    parser.add_argument("--stop", choices=("target",), help="end every run once the target is reached")
    parser.add_argument("--rates", type=Path, metavar="FILE", help="table of learning rates per scheme")
    parser.add_argument("--land", type=Path, metavar="DIR", help="copy the results there, without paths")
    parser.add_argument("--report-only", action="store_true", help="run nothing; report on what DIR holds")
    add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs what is missing, compares, prints."""
    asked = _asked(arguments)
    shared = "table1" if asked.item == "accuracy" else asked.item  # the same runs, shown otherwise
    out: Path = arguments.out or Path("reproduced") / f"{shared}-{asked.dataset}-{asked.scale}"
    if not arguments.report_only:
        _run_all(asked, arguments, out)
    document, shown = reproduced(asked, out)
    landed = [] if arguments.land is None else land(out, arguments.land)
    if arguments.json:
        print_json(document)
        return 0
    console = Console(highlight=False)
    for table in shown:
        _print(console, table)
    if note := document["paper"]["note"]:
        console.print(f"[dim]{escape(note)}[/]")
    console.print(f"report: {escape(str(out / 'report.html'))}", soft_wrap=True)
    if asked.item == "rates":
        kept = "for --rates, or to be kept in experiments/rates.toml"
        console.print(f"chosen: {escape(str(out / 'rates.toml'))} ({kept})", soft_wrap=True)
    if landed:
        console.print(f"landed: {len(landed)} files in {escape(str(arguments.land))}", soft_wrap=True)
    return 0


def _asked(arguments: argparse.Namespace) -> Asked:
    changes = tuple(arguments.set)
    if arguments.engine is not None:
        changes += (f"simulation.engine={arguments.engine}",)
    return Asked(
        item=arguments.item,
        dataset=arguments.dataset,
        data=arguments.data,
        scale=arguments.scale,
        schemes=None if arguments.schemes is None else tuple(arguments.schemes),
        seeds=None if arguments.seeds is None else tuple(arguments.seeds),
        stop=arguments.stop,
        changes=changes,
    )


def _run_all(asked: Asked, arguments: argparse.Namespace, out: Path) -> None:
    table = arguments.rates or experiments_directory() / "rates.toml"
    rates = {} if asked.item == "rates" else chosen_rates(table, asked.dataset, asked.scale)
    runs = planned_runs(asked, rates)
    most = max(run.experiment.rounds.global_rounds for run in runs)
    with RunProgress(most) as progress, interruptible(progress.say) as interrupted:
        progress.say(forecast(runs, out))
        carry_out(runs, out, build_run_options(arguments, progress, interrupted, resume=True))


def forecast(runs: list[PlannedRun], out: Path) -> str:
    """How long it will take, in words."""
    rounds = sum(rounds_left(run, out) for run in runs)
    if not rounds:
        return f"all {len(runs)} runs are finished"
    seconds = estimated_seconds(runs, out, measured_pace(runs[0].experiment))
    workers = runs[0].experiment.simulation.workers or os.cpu_count() or 1
    return (
        f"{len(runs)} runs, {rounds} global rounds to go: at most about {_duration(seconds)} on "
        f"{workers} workers, by timing a few steps now"
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _print(console: Console, table: TextTable) -> None:
    grid = new_table(*table.headings)
    for row in table.rows:
        grid.add_row(*(escape(cell) for cell in row))
    print_table(console, escape(table.title), grid)
