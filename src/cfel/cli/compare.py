"""`cfel compare`: several schemes under the same conditions."""

import argparse
from collections.abc import Mapping
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
from cfel.cli.output import new_table, print_json, print_report_path, print_table
from cfel.cli.run import add_experiment_argument, add_run_options, load_from_arguments, select_run_options
from cfel.experiment import Experiment
from cfel.report.summary import Overrun

EXAMPLE = """  cfel compare experiment.toml --seeds 0,1,2 --target 0.7 --out runs/table
  cfel compare experiment.toml --schemes hcef,cef,my_module:build"""
HEADINGS = (
    *("scheme", "time\ns", "energy\nkJ", "gain\nin time", "gain\nin energy"),
    *("final\naccuracy", "budget\nof time", "budget\nof energy"),
)
SCHEMES = "hcef_plus,hcef,cef,cef_c,cef_f,mll_sgd"


def register(commands: Commands, name: str) -> None:
    """Adds the command."""
    parser = add_command(commands, name, EXAMPLE)
    add_experiment_argument(parser)
    parser.add_argument(
        "--schemes",
        type=parse_names,
        default=parse_names(SCHEMES),
        metavar="A,B,…",
        help=f"schemes to run (default {SCHEMES})",
    )
    add_seeds_option(parser, "seeds of each scheme (default: the experiment's)")
    add_target_option(parser)
    add_out_option(parser, "output directory (default runs/NAME-compared)")
    parser.add_argument("--resume", action="store_true", help="resume the runs in DIR")
    add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs all schemes and prints the table."""
    experiment = load_from_arguments(arguments)
    return compare_and_print(experiment, arguments)


def compare_and_print(experiment: Experiment, arguments: argparse.Namespace) -> int:
    """Runs and prints a comparison; also the second half of `cfel demo`."""
    comparison = cfel.compare(
        experiment,
        arguments.schemes,
        arguments.seeds or None,
        out=arguments.out,
        target=arguments.target,
        resume=arguments.resume,
        **select_run_options(arguments),
    )
    if arguments.json:
        print_json(comparison.summary)
        return 0
    console = Console(highlight=False)
    print_summary(console, comparison.summary)
    print_report_path(console, comparison.path)
    return 0


def print_summary(console: Console, document: Mapping[str, Any]) -> None:
    """Prints time and energy to the target, the gain over CEF, and the share of the budgets that was used."""
    target, rows = document["target"], document["schemes"]
    several_seeds = any(len(row["per_seed"]) > 1 for row in rows.values())
    # The interval is on a second line, so that the table still fits a terminal of 80 columns.
    pad = "\n" if several_seeds else ""
    table = new_table(*HEADINGS)
    for name, row in rows.items():
        table.add_row(
            escape(name) + pad,
            *format_costs(row),
            _format_gain(row, "gain_seconds"),
            _format_gain(row, "gain_joules"),
            *format_end(row, pad),
        )
    aim = describe_target(target)
    print_table(console, f"Time and energy to {aim}, gain over CEF, and budget used at the end", table)
    if several_seeds:
        console.print("mean over seeds, with its 95 % confidence interval; gains are compared seed by seed")
    for name, row in rows.items():
        for sentence in _describe_worst(name, row["over_budget"]):
            console.print(f"[yellow]over budget:[/] {escape(sentence)}")
    if target is not None and all(row["seconds_to_target"] is None for row in rows.values()):
        console.print(f"no scheme reached {aim} with every seed: try a lower --target or more rounds")


def describe_target(target: float | None) -> str:
    """The target in the title of a table."""
    return "the target (none is set)" if target is None else f"{100 * target:g} %"


def format_costs(row: Mapping[str, Any]) -> tuple[str, str]:
    """Time and energy to the target."""
    return (
        _format_mean(row, "seconds_to_target", "{:,.0f}"),
        _format_mean(row, "joules_to_target", "{:,.1f}", 1e-3),
    )


def format_end(row: Mapping[str, Any], pad: str) -> tuple[str, str, str]:
    """Accuracy and shares of the budgets at the end; `pad` fills the second line, if there is one."""
    return (
        _format_mean(row, "final_accuracy", "{:.1f} %", 100),
        _format_share(row["seconds"], row["seconds_budget"]) + pad,
        _format_share(row["joules"], row["joules_budget"]) + pad,
    )


def _format_mean(row: Mapping[str, Any], key: str, form: str, factor: float = 1.0) -> str:
    """A mean, and with several seeds a second line with half the width of its confidence interval."""
    value, half = row[key], row["confidence"][key]
    mean = "–" if value is None else form.format(factor * value)
    if len(row["per_seed"]) == 1:
        return mean
    return mean + ("\n" if not half else f"\n±{form.format(factor * half)}")


def _format_gain(row: Mapping[str, Any], key: str) -> str:
    """A gain, and with several seeds a second line with the ends of its interval."""
    value, interval = row[key], row["interval"][key]
    gain = "–" if value is None else f"{value:.2f}×"
    if len(row["per_seed"]) == 1:
        return gain
    return f"{gain}\n" if interval is None else f"{gain}\n{interval[0]:.2f}–{interval[1]:.2f}"


def _describe_worst(scheme: str, over_budget: Mapping[str, Any]) -> list[str]:
    """What the seeds of a scheme broke, a line for each cause: of each budget the worst seed.

    The report and `summary.json` have the details.
    """
    found: dict[str, tuple[str, Overrun]] = {}
    for seed, broken in over_budget.items():
        for each in broken["overruns"]:
            overrun = Overrun(**{name: value for name, value in each.items() if name != "share"})
            if each["resource"] not in found or overrun.share > found[each["resource"]][1].share:
                found[each["resource"]] = (seed, overrun)
    by_cause: dict[str, list[str]] = {}
    for seed, overrun in found.values():
        words = overrun.describe_briefly() + (f" (seed {seed})" if len(over_budget) > 1 else "")
        by_cause.setdefault(overrun.cause, []).append(words)
    return [f"{scheme}, {' and '.join(parts)}: {cause}" for cause, parts in by_cause.items()]


def _format_share(used: float | None, budget: float | None) -> str:
    """Used of a budget, as a percentage."""
    return "–" if used is None or not budget else f"{100 * used / budget:.0f} %"
