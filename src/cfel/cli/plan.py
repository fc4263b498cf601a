"""`cfel plan`: how much every device of a fleet should compute and send in one round."""

import argparse
import csv
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfel.api.binding_limits import MEANING, binding_limits
from cfel.api.fleet_file import NamedProblem, RunLength, read_problem
from cfel.cli.shared import (
    Commands,
    add_command,
    add_json,
    amount,
    count,
    new_table,
    positive,
    print_json,
    print_table,
    share,
    whole,
)
from cfel.control import Solution, solve
from cfel.errors import FleetFileError, InputError

EXAMPLE = """  cfel plan devices.csv --tau 5 --sigma2 2 --time-cap 450 --energy-cap 900
  cfel plan fleet.json --method alternating --json
  cfel plan devices.csv --time-budget 85000 --energy-budget 15000 --rounds 40

A CSV has the columns mu (s/step), alpha (J/step), nu (s per full upload),
power (W) and cluster; optional: id, rho_min, rho_max, theta_min, theta_max,
battery (J)."""

OptionTexts = Mapping[str, tuple[Callable[[str], float], str]]

PROBLEM_OPTIONS: OptionTexts = {
    "tau": (whole, "local iterations per edge round (default 5)"),
    "sigma2": (amount, "variance of a mini-batch gradient (default 1)"),
    "g2": (amount, "squared norm of a local gradient (default 1)"),
    "time-cap": (amount, "seconds for this edge round, per cluster (default: no limit)"),
    "energy-cap": (amount, "joules for this edge round, all devices (default: no limit)"),
    "rho-min": (amount, "least probability of a local step (default 0.1)"),
    "theta-min": (amount, "least share of an update that is sent (default 0.01)"),
    "noise-weight": (amount, "weight of the noise term (default 1, as printed)"),
}
LENGTH_OPTIONS: OptionTexts = {
    "time-budget": (positive, "seconds for a whole run, instead of --time-cap"),
    "energy-budget": (positive, "joules for a whole run, instead of --energy-cap"),
    "rounds": (whole, "global rounds of that run; needed with a budget"),
    "edge-rounds": (whole, "edge rounds per global round (default 5)"),
}

UNREACHABLE_HELP = "time caps out of reach: stretch them (default), or drop their devices to the least"
METHOD_HELP = "joint: best plan with a proof (default); alternating: the paper's Algorithm 3"


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "plan", EXAMPLE)
    parser.add_argument("fleet", type=Path, metavar="FLEET", help="devices: .csv, .parquet or .json")
    for name, (kind, text) in (*PROBLEM_OPTIONS.items(), *LENGTH_OPTIONS.items()):
        parser.add_argument(f"--{name}", type=kind, help=text, metavar="N")
    parser.add_argument("--on-unreachable", choices=("stretch", "minimum"), help=UNREACHABLE_HELP)
    parser.add_argument("--method", choices=("joint", "alternating"), default="joint", help=METHOD_HELP)
    parser.add_argument("--start", type=share, metavar="RHO", help="ρ at which --method alternating starts")
    parser.add_argument("--rows", type=count, default=20, metavar="N", help="devices to show (default 20)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the whole table to a file")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Solves and prints."""
    named = read_problem(arguments.fleet, _options(arguments), _length(arguments))
    if arguments.start is not None and arguments.method != "alternating":
        raise InputError("--start: only with --method alternating")
    start = None if arguments.start is None else (arguments.start, 1.0)
    solution = solve(named.problem, arguments.method, start)
    if arguments.csv is not None:
        _write_csv(arguments.csv, named, solution)
    if arguments.json:
        print_json(_document(solution))
    else:
        _print(Console(highlight=False), named, solution, arguments.rows)
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    names = [name.replace("-", "_") for name in (*PROBLEM_OPTIONS, "on-unreachable")]
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}


def _length(arguments: argparse.Namespace) -> RunLength | None:
    seconds, joules = arguments.time_budget, arguments.energy_budget
    if seconds is None and joules is None:
        for option in ("rounds", "edge_rounds"):
            if getattr(arguments, option) is not None:
                name = option.replace("_", "-")
                raise InputError(f"--{name}: only with --time-budget or --energy-budget")
        return None
    if arguments.rounds is None:
        raise InputError("--rounds: needed with --time-budget or --energy-budget")
    for cap, budget in (("time_cap", seconds), ("energy_cap", joules)):
        if getattr(arguments, cap) is not None and budget is not None:
            option = cap.replace("_", "-")
            raise InputError(f"--{option}: give either a cap for the round or a budget for the run")
    return RunLength(
        time_budget=seconds,
        energy_budget=joules,
        rounds=arguments.rounds,
        edge_rounds=5 if arguments.edge_rounds is None else arguments.edge_rounds,
    )


def _document(solution: Solution) -> dict[str, Any]:
    names = ("rho", "theta", "objective", "lower_bound", "gap", "feasible", "violations")
    costs = (
        "device_seconds",
        "device_joules",
        "time_cap",
        "energy_cap",
        "multiplier",
        "method",
        "iterations",
    )
    return {name: getattr(solution, name) for name in (*names, *costs)}


def _print(console: Console, named: NamedProblem, solution: Solution, rows: int) -> None:
    _print_clusters(console, named, solution, rows)
    _print_devices(console, named, solution, rows)
    _print_verdict(console, named, solution)


def _print_clusters(console: Console, named: NamedProblem, solution: Solution, rows: int) -> None:
    problem = named.problem
    columns = ("cluster", "devices", "cap s", "used s", "slowest", "mean ρ", "mean θ", "J")
    table = new_table(*columns, texts=("cluster", "slowest"))
    present = np.unique(problem.cluster)
    for number in present[:rows]:
        members = np.flatnonzero(problem.cluster == number)
        slowest = members[np.argmax(solution.device_seconds[members])]
        table.add_row(
            escape(named.cluster_names[number]),
            f"{len(members):,}",
            _limit(solution.time_cap[number]),
            f"{solution.device_seconds[slowest]:.1f}",
            escape(named.device_names[slowest]),
            f"{solution.rho[members].mean():.3f}",
            f"{solution.theta[members].mean():.3f}",
            f"{solution.device_joules[members].sum():.1f}",
        )
    _print_some(console, "Clusters", table, len(present))


def _print_devices(console: Console, named: NamedProblem, solution: Solution, rows: int) -> None:
    limits = binding_limits(named.problem, solution)
    columns = ("device", "cluster", "ρ", "θ", "seconds", "joules", "limited by")
    table = new_table(*columns, texts=("device", "cluster"))
    for device in range(min(named.problem.devices, rows)):
        table.add_row(
            escape(named.device_names[device]),
            escape(named.cluster_names[named.problem.cluster[device]]),
            f"{solution.rho[device]:.3f}",
            f"{solution.theta[device]:.3f}",
            f"{solution.device_seconds[device]:.1f}",
            f"{solution.device_joules[device]:.2f}",
            str(limits[device]),
        )
    _print_some(console, "Devices", table, named.problem.devices)
    words, counts = np.unique(limits, return_counts=True)
    for word, number in zip(words, counts, strict=True):
        console.print(f"  [dim]{number:>9,} × {word}: {MEANING[str(word)]}[/]")
    console.print()


def _print_some(console: Console, title: str, table: Table, total: int) -> None:
    """A table that may show only the first of many rows."""
    print_table(console, title, table)
    left_out = total - table.row_count
    if left_out > 0:
        console.print(f"  [dim]… and {left_out:,} more (--rows, --csv FILE or --json for all)[/]\n")


def _print_verdict(console: Console, named: NamedProblem, solution: Solution) -> None:
    asked = named.problem.energy_cap
    console.print(f"time    {solution.seconds:,.1f} s for the slowest device")
    allowed = f"of {asked:,.1f} J" if np.isfinite(asked) else "without a limit"
    console.print(f"energy  {solution.joules:,.1f} J {allowed}")
    console.print(
        f"proof   at most {100 * solution.gap:.4f} % above the best possible plan ({solution.method})"
    )
    if solution.feasible:
        console.print("[green]every limit is kept[/]")
    for words in solution.violations:
        console.print(f"[yellow]not met:[/] {escape(_with_names(words, named))}")


def _limit(seconds: float) -> str:
    return f"{seconds:.1f}" if np.isfinite(seconds) else "none"


def _with_names(words: str, named: NamedProblem) -> str:
    """The sentence with cluster and device numbers replaced by what the file calls them."""
    names = {"cluster": named.cluster_names, "device": named.device_names}
    return re.sub(
        r"^(cluster|device) (\d+)", lambda found: f"{found[1]} {names[found[1]][int(found[2])]}", words
    )


def _write_csv(path: Path, named: NamedProblem, solution: Solution) -> None:
    limits = binding_limits(named.problem, solution)
    columns = (solution.rho, solution.theta, solution.device_seconds, solution.device_joules)
    clusters = [named.cluster_names[number] for number in named.problem.cluster]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["device", "cluster", "rho", "theta", "seconds", "joules", "limited_by"])
            values = (column.tolist() for column in columns)
            writer.writerows(zip(named.device_names, clusters, *values, limits.tolist(), strict=True))
    except OSError as error:
        raise FleetFileError(f"{path}: cannot be written: {error}") from error
