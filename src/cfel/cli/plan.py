"""`cfel plan`: how much each device of a fleet should compute and upload in one round."""

import argparse
import math
import textwrap
import tomllib
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfel.api.plan import HCEF, MEANING, FleetPlan, find_margins, plan_fleet
from cfel.cli import options, output
from cfel.wording import format_amount, plural

EXAMPLES = {
    "plan": """  cfel plan devices.csv --tau 5 --sigma2 2 --time-cap 450 --energy-cap 900
  cfel plan fleet.json --method alternating --json
  cfel plan devices.csv --time-budget 85000 --energy-budget 15000 --rounds 40
  cfel plan devices.csv --time-cap 450 --energy-cap 900 --scheme hcef_plus

Columns of the CSV file: mu (s/step), alpha (J/step), nu (s per full upload),
power (W) and cluster; optional: id, rho_min, rho_max, theta_min, theta_max,
battery (J), clock_static and clock_exponent (what a slower clock saves)."""
}

OptionTexts = Mapping[str, tuple[Callable[[str], float], str]]

PROBLEM_OPTIONS: OptionTexts = {
    "tau": (options.parse_positive_integer, "local steps per edge round (default 5)"),
    "sigma2": (options.parse_number, "variance of a mini-batch gradient (default 1)"),
    "g2": (options.parse_number, "squared norm of a local gradient (default 1)"),
    "time-cap": (options.parse_cap, "seconds for this edge round, per cluster (default: no limit)"),
    "energy-cap": (options.parse_cap, "joules for this edge round, all devices (default: no limit)"),
    "rho-min": (options.parse_number, "minimum share of local steps, ρ (default 0.1)"),
    "theta-min": (options.parse_number, "minimum share of the update to upload, θ (default 0.01)"),
    "noise-weight": (options.parse_number, "weight of the noise term (default 1, as in the paper)"),
}
LENGTH_OPTIONS: OptionTexts = {
    "time-budget": (options.parse_positive, "seconds for a whole run, instead of --time-cap"),
    "energy-budget": (options.parse_positive, "joules for a whole run, instead of --energy-cap"),
    "rounds": (options.parse_positive_integer, "global rounds of that run; required with a budget"),
    "edge-rounds": (options.parse_positive_integer, "edge rounds per global round (default 5)"),
}

UNREACHABLE_HELP = "time caps that cannot be met: stretch them (default), or plan the minimum there"
SCHEME_HELP = (
    "who plans (default hcef_plus): any scheme, with variants (hcef+slow_clocks) or your own "
    "(module:function), as in the first round of a simulation with these devices"
)
SCHEME_OPTIONS: OptionTexts = {
    "batch": (
        options.parse_positive_integer,
        "samples in a full batch: hcef_plus then plans smaller batches, and whole steps without it",
    ),
    "step-overhead": (
        options.parse_number,
        "share of a step's cost that its batch does not change (default 0.05)",
    ),
    "seed": (options.parse_count, "for schemes that choose at random (default 0)"),
}
METHOD_HELP = "of HCEF: joint, with a proven gap (default), or alternating, the paper's Algorithm 3"


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fleet", type=Path, metavar="FLEET", help="table of devices: .csv, .parquet or .json")
    _add_numbers(problem := parser.add_argument_group("the fleet and its round"), PROBLEM_OPTIONS)
    problem.add_argument("--on-unreachable", choices=("stretch", "minimum"), help=UNREACHABLE_HELP)
    _add_numbers(parser.add_argument_group("budgets of a whole run, in place of caps"), LENGTH_OPTIONS)
    scheme = parser.add_argument_group("the scheme")
    scheme.add_argument("--scheme", metavar="NAME", help=SCHEME_HELP)
    scheme.add_argument(
        "--scheme-option",
        dest="scheme_options",
        action="append",
        type=parse_option,
        metavar="KEY=VALUE",
        help="a setting of the scheme, e.g. least_speed=0.7 of hcef_plus (repeatable)",
    )
    _add_numbers(scheme, SCHEME_OPTIONS)
    scheme.add_argument("--method", choices=("joint", "alternating"), help=METHOD_HELP)
    scheme.add_argument(
        "--start", type=options.parse_share, metavar="RHO", help="initial ρ of --method alternating"
    )
    parser.add_argument(
        "--rows", type=options.parse_count, default=20, metavar="N", help="devices to show (default 20)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the plan of all devices to a file")
    options.add_json_option(parser)
    parser.set_defaults(run=run)


def _add_numbers(group: argparse._ArgumentGroup, texts: OptionTexts) -> None:
    for name, (kind, text) in texts.items():
        group.add_argument(f"--{name}", type=kind, help=text, metavar="N")


def run(arguments: argparse.Namespace) -> None:
    if arguments.scheme_options is not None:
        arguments.scheme_options = dict(ChainMap(*reversed(arguments.scheme_options)))
    plan = plan_fleet(arguments.fleet, vars(arguments), lambda name: f"--{name.replace('_', '-')}")
    if arguments.csv is not None:
        plan.write_csv(arguments.csv)
    if arguments.json:
        output.print_json(plan.to_document())
    else:
        console = Console(highlight=False)
        _print_clusters(console, plan, arguments.rows)
        _print_devices(console, plan, arguments.rows)
        _print_verdict(console, plan)


def parse_option(text: str) -> dict[str, Any]:
    """Reads KEY=VALUE with a value as in TOML; a bare word counts as text."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} must look like KEY=VALUE")
    try:
        return tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        return {key.strip(): value.strip()}


def _print_clusters(console: Console, plan: FleetPlan, rows: int) -> None:
    named, problem, solution = plan.named, plan.named.problem, plan.solution
    columns = ("cluster", "devices", "cap s", "time s", "slowest", "mean ρ", "mean θ", "energy J")
    table = output.new_table(*columns, texts=("cluster", "slowest"))
    present = np.unique(problem.cluster)
    for number in present[:rows]:
        members = np.flatnonzero(problem.cluster == number)
        slowest = members[np.argmax(solution.device_seconds[members])]
        table.add_row(
            escape(named.cluster_names[number]),
            f"{len(members):,}",
            format_amount(cap, 1) if np.isfinite(cap := solution.time_cap[number]) else "none",
            format_amount(solution.device_seconds[slowest], 1),
            escape(named.device_names[slowest]),
            f"{solution.rho[members].mean():.3f}",
            f"{solution.theta[members].mean():.3f}",
            format_amount(solution.device_joules[members].sum(), 1),
        )
    _print_some(console, "Clusters", table, len(present))


def _print_devices(console: Console, plan: FleetPlan, rows: int) -> None:
    named, solution, limits = plan.named, plan.solution, plan.limited_by
    clock = () if plan.clock is None else ("clock",)
    columns = ("device", "cluster", "ρ", "θ", *clock, "time s", "energy J", "limited by")
    table = output.new_table(*columns, texts=("device", "cluster"))
    for device in range(min(named.problem.devices, rows)):
        table.add_row(
            escape(named.device_names[device]),
            escape(named.cluster_names[named.problem.cluster[device]]),
            f"{solution.rho[device]:.3f}",
            f"{solution.theta[device]:.3f}",
            *(() if plan.clock is None else (f"{plan.clock[device]:.3f}",)),
            format_amount(solution.device_seconds[device], 1),
            format_amount(solution.device_joules[device], 2),
            str(limits[device]),
        )
    _print_some(console, "Devices", table, named.problem.devices)
    # For all devices, also those that the table leaves out.
    words, counts = np.unique(limits, return_counts=True)
    for word, number in zip(words, counts, strict=True):
        console.print(f"  [dim]{plural(int(number), 'device')} {MEANING[str(word)]}[/]")
    console.print()


def _print_some(console: Console, title: str, table: Table, total: int) -> None:
    """Prints a table, and how many rows it leaves out."""
    output.print_table(console, title, table)
    left_out = total - table.row_count
    if left_out > 0:
        console.print(f"  [dim]… and {left_out:,} more (to see all: --rows N, --csv FILE or --json)[/]\n")


def _print_verdict(console: Console, plan: FleetPlan) -> None:
    _print_point(console, "time", _describe_time(plan))
    spent, cap = f"{format_amount(plan.joules, 1)} J", plan.named.problem.energy_cap
    _print_point(
        console,
        "energy",
        f"{spent} of {format_amount(cap, 1)} J" if np.isfinite(cap) else f"{spent} (no limit)",
    )
    _print_point(console, "scheme", plan.scheme)
    if plan.local_steps is not None:
        _print_point(console, "steps", f"{plan.local_steps} of {plan.named.problem.tau}, on smaller batches")
    if plan.scheme == HCEF and 0 < plan.solution.multiplier < np.inf:
        _print_point(console, "price", _describe_price(plan))
    _print_point(console, "proof", _describe_proof(plan))
    if plan.scheme == HCEF:
        _print_point(console, "method", plan.solution.method)
    if plan.feasible:
        console.print("[green]all limits are kept[/]")
    for words in plan.violations:
        console.print(f"[yellow]not met:[/] {escape(words)}")


def _print_point(console: Console, name: str, text: str) -> None:
    """Prints a line that begins with a name; what does not fit is indented below."""
    words = textwrap.fill(
        text, console.width, initial_indent=f"{name:8}", subsequent_indent=8 * " ", break_on_hyphens=False
    )
    console.print(words, markup=False, soft_wrap=True)


def _describe_time(plan: FleetPlan) -> str:
    """The seconds of the slowest device, of the cap that its cluster was given."""
    problem, slowest = plan.named.problem, int(plan.solution.device_seconds.argmax())
    number = problem.cluster[slowest]
    cap, spent = problem.time_cap[number], f"{format_amount(plan.seconds, 1)} s"
    whose = f"slowest: {plan.devices[slowest]}"
    if not np.isfinite(cap):
        return f"{spent} (no limit; {whose})"
    one_cap = np.ptp(problem.time_cap[np.unique(problem.cluster)]) == 0
    where = "" if one_cap else f" in cluster {plan.named.cluster_names[number]}"
    return f"{spent} of {format_amount(cap, 1)} s{where} ({whose})"


def _describe_price(plan: FleetPlan) -> str:
    """The chosen point of the fleet's curve, and what a little more of each budget would bring."""
    margins = find_margins(plan)
    half, twice = (f"{format_amount(joules, 1)} J" for joules in margins.curve)
    return (
        f"{margins.price:.3g} per J (at half the price devices would use {half}, at twice {twice}); 1 % more "
        f"energy lowers the error bound by {100 * margins.more_energy:.3f} %, 1 % more time by "
        f"{100 * margins.more_time:.3f} %"
    )


# A smaller gap would be printed as 0.
LEAST_SHOWN = 1e-6


def _describe_proof(plan: FleetPlan) -> str:
    if math.isnan(plan.gap):
        return f"none: {plan.scheme} solves no problem"
    gap = f"{100 * max(plan.gap, LEAST_SHOWN):.4f} %"
    if plan.scheme == HCEF:
        return f"the error bound is at most {gap} above its least possible value"
    # Schemes that choose time and energy themselves prove nothing about other choices.
    return f"at most {gap} worse than the best plan of {plan.scheme} for this time and energy"
