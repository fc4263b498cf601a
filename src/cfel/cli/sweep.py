"""`cfel sweep`: every combination of some values of some keys, for some seeds."""

import argparse
from typing import Any

from rich.console import Console
from rich.markup import escape

import cfel
from cfel.cli import options, output
from cfel.cli.compare import print_main_table, print_overruns
from cfel.errors import InputError
from cfel.experiment.sections import parse_change

EXAMPLE = """  cfel sweep experiment.toml --over local.learning_rate=0.01,0.05 --over scheme.name=hcef,cef
  cfel sweep experiment.toml --over rounds.edge=1,2,5 --seeds 0,1,2 --out runs/edge"""


def register(commands: options.Commands, name: str) -> None:
    parser = options.add_command(commands, name, EXAMPLE)
    options.add_experiment_argument(parser)
    parser.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="A.B=X,Y,…",
        help="a key of the experiment and its values; repeated, every combination is run",
    )
    options.add_seeds_option(parser, "seeds of each combination (default: the experiment's)")
    options.add_target_option(parser)
    options.add_out_option(
        parser, "output directory (default runs/NAME-sweep); runs that are there are kept or continued"
    )
    options.add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    over = dict(map(parse_values, arguments.over))
    experiment = options.load_from_arguments(arguments)
    sweep = cfel.sweep(
        experiment,
        over,
        arguments.seeds or None,
        out=arguments.out,
        target=arguments.target,
        **options.select_run_options(arguments),
    )
    if arguments.json:
        output.print_json(sweep.summary)
        return 0
    console = Console(highlight=False)
    print_main_table(console, sweep.main_table)
    print_overruns(console, sweep.describe_overruns())
    if best := _find_best(sweep):
        console.print(output.use_plain_spaces(best), soft_wrap=True)
    output.print_report_path(console, sweep.path)
    return 0


def parse_values(text: str) -> tuple[str, list[Any]]:
    """Reads "a.b=1,2" as a key and its values, each as `--set` reads it."""
    key, sign, listed = text.partition("=")
    words = options.parse_names(listed)
    if not sign or not words:
        raise InputError(f"--over {text}: must look like section.key=value,value")
    return key.strip(), [parse_change(f"{key}={word}")[1] for word in words]


def _find_best(sweep: cfel.Sweep) -> str:
    """The setting with the best quality within the budgets, in words; empty if none was evaluated."""
    metric, rows = sweep.metric, sweep.summary["schemes"]
    known = {name: row["quality_within_budgets"] for name, row in rows.items()}
    known = {name: value for name, value in known.items() if value is not None}
    if not known:
        return ""
    best = min(known, key=lambda name: metric.sort_key(known[name]))
    return f"best {metric.name} within the budgets: {escape(best)}, {metric.format(known[best])}"
