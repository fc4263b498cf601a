"""`cfel sweep`: every combination of some values of some keys, for some seeds."""

import argparse
from typing import Any

from rich.console import Console
from rich.markup import escape

import cfel
from cfel.cli.arguments import (
    Commands,
    add_command,
    add_out_option,
    add_seeds_option,
    add_target_option,
    parse_names,
)
from cfel.cli.compare import describe_target, format_costs, format_end
from cfel.cli.output import new_table, print_json, print_report_path, print_table
from cfel.cli.run import add_experiment_argument, add_run_options, load_from_arguments, select_run_options
from cfel.errors import InputError
from cfel.experiment.document import parse_assignment
from cfel.report.load import name_setting
from cfel.rounds.run_directory import flatten

EXAMPLE = """  cfel sweep experiment.toml --over local.learning_rate=0.01,0.05 --over scheme.name=hcef,cef
  cfel sweep experiment.toml --over rounds.edge=1,2,5 --seeds 0,1,2 --out runs/edge"""
MEASURED = ("time\ns", "energy\nkJ", "final\naccuracy", "budget\nof time", "budget\nof energy")


def register(commands: Commands, name: str) -> None:
    """Adds the command."""
    parser = add_command(commands, name, EXAMPLE)
    add_experiment_argument(parser)
    parser.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="A.B=X,Y,…",
        help="a key of the experiment and its values; repeated, every combination is run",
    )
    add_seeds_option(parser, "seeds of each combination (default: the experiment's)")
    add_target_option(parser)
    add_out_option(
        parser, "output directory (default runs/NAME-sweep); runs that are there are kept or continued"
    )
    add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs all combinations and prints the table."""
    over = dict(map(parse_values, arguments.over))
    experiment = load_from_arguments(arguments)
    sweep = cfel.sweep(
        experiment,
        over,
        arguments.seeds or None,
        out=arguments.out,
        target=arguments.target,
        **select_run_options(arguments),
    )
    if arguments.json:
        print_json(sweep.summary)
        return 0
    console = Console(highlight=False)
    _print_summary(console, sweep)
    print_report_path(console, sweep.path)
    return 0


def parse_values(text: str) -> tuple[str, list[Any]]:
    """Reads "a.b=1,2" as a key and its values, each as `--set` reads it."""
    key, sign, listed = text.partition("=")
    words = parse_names(listed)
    if not sign or not words:
        raise InputError(f"--over {text}: must look like section.key=value,value")
    return key.strip(), [flatten(parse_assignment(f"{key}={word}"))[key.strip()] for word in words]


def _print_summary(console: Console, sweep: cfel.Sweep) -> None:
    """Prints a line per setting: its values, time and energy to the target, accuracy, budgets used."""
    rows, settings = sweep.summary["schemes"], sweep.settings
    several_seeds = any(len(row["per_seed"]) > 1 for row in rows.values())
    pad = "\n" if several_seeds else ""
    table = new_table(*settings[0], *MEASURED)
    for values in {name_setting(each): each for each in settings}.values():
        row = rows[name_setting(values)]
        table.add_row(
            *(escape(str(value)) + pad for value in values.values()),
            *format_costs(row),
            *format_end(row, pad),
        )
    title = f"Time and energy to {describe_target(sweep.target)}, and budget used at the end"
    print_table(console, title, table)
    if several_seeds:
        console.print("mean over seeds, with its 95 % confidence interval")
    measured = {name: row["final_accuracy"] for name, row in rows.items()}
    if known := {name: float(value) for name, value in measured.items() if value is not None}:
        best = max(known, key=known.__getitem__)
        console.print(f"best final accuracy: {escape(best)}, {100 * known[best]:.1f} %", soft_wrap=True)
