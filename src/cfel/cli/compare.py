"""`cfel compare`: several schemes under the same conditions."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cfel.api.runs import compare
from cfel.cli.interrupt import interruptible
from cfel.cli.progress import RunProgress
from cfel.cli.run import add_experiment, add_run_options, build_run_options, read_experiment
from cfel.cli.shared import (
    Commands,
    add_command,
    amount,
    new_table,
    print_json,
    print_table,
)
from cfel.experiment import Experiment

EXAMPLE = """  cfel compare experiment.toml --seeds 0,1,2 --target 0.7 --out runs/table
  cfel compare experiment.toml --schemes hcef,cef,my_module:build"""
HEADINGS = (
    *("scheme", "time\ns", "energy\nkJ", "gain\nin time", "gain\nin energy"),
    *("final\naccuracy", "budget\nof time", "budget\nof energy"),
)
SCHEMES = "hcef_plus,hcef,cef,cef_c,cef_f,mll_sgd"


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "compare", EXAMPLE)
    add_experiment(parser)
    parser.add_argument(
        "--schemes", type=names, default=names(SCHEMES), metavar="A,B,…", help=f"default {SCHEMES}"
    )
    parser.add_argument("--seeds", type=numbers, metavar="0,1,…", help="default: the experiment's seed")
    parser.add_argument("--target", type=amount, metavar="ACCURACY", help="default: the experiment's")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default runs/NAME-compared")
    parser.add_argument("--resume", action="store_true", help="go on with the runs in DIR")
    add_run_options(parser)
    parser.set_defaults(run=run)


def names(text: str) -> list[str]:
    """Words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    """Whole numbers between commas."""
    try:
        return [int(word) for word in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be whole numbers between commas") from None


def run(arguments: argparse.Namespace) -> int:
    """Runs all of them and prints the table."""
    experiment = read_experiment(arguments)
    out: Path = arguments.out or Path("runs") / f"{experiment.name}-compared"
    seeds = arguments.seeds or [experiment.seed]
    return compare_and_print(experiment, arguments.schemes, seeds, out, arguments)


def compare_and_print(
    experiment: Experiment, schemes: list[str], seeds: list[int], out: Path, arguments: argparse.Namespace
) -> int:
    """The part that `demo` shares."""
    with RunProgress(experiment.rounds.global_rounds) as progress, interruptible(progress.say) as interrupted:
        options = build_run_options(arguments, progress, interrupted, arguments.resume)
        document = compare(experiment, schemes, seeds, out, options, arguments.target)
    if arguments.json:
        print_json(document)
        return 0
    console = Console(highlight=False)
    print_summary(console, document)
    console.print(f"report: {escape(str(out / 'report.html'))}")
    return 0


def print_summary(console: Console, document: Mapping[str, Any]) -> None:
    """Time and energy to the target, what of the budgets was used, and the gain over CEF."""
    target = document["target"]
    table = new_table(*HEADINGS)
    for name, row in document["schemes"].items():
        table.add_row(
            escape(name),
            _number(row["seconds_to_target"], "{:,.0f}"),
            _number(row["joules_to_target"], "{:,.1f}", 1e-3),
            _number(row["gain_seconds"], "{:.2f}×"),
            _number(row["gain_joules"], "{:.2f}×"),
            _number(row["final_accuracy"], "{:.1f} %", 100),
            _share(row["seconds"], row["seconds_budget"]),
            _share(row["joules"], row["joules_budget"]),
        )
    aim = "no target" if target is None else f"{100 * target:g} %"
    print_table(console, f"Time and energy to {aim}, gain over CEF, and budget used at the end", table)
    rows = document["schemes"].values()
    if target is not None and all(row["seconds_to_target"] is None for row in rows):
        console.print(f"nobody reached {aim} with every seed: try a lower --target, or more rounds")


def _number(value: float | None, form: str, factor: float = 1.0) -> str:
    return "–" if value is None else form.format(factor * value)


def _share(used: float | None, budget: float | None) -> str:
    return "–" if used is None or not budget else f"{100 * used / budget:.0f} %"
