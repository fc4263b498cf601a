"""`cfel theory`: what Theorem 1 says of an experiment."""

import argparse
import math
from pathlib import Path

from rich.console import Console

from cfel.cli.shared import Commands, add_command, add_json, amount, new_table, print_json, print_table
from cfel.studies.theorem import Assumptions, TheoremReport, report_theorem

EXAMPLE = """  cfel theory experiment.toml
  cfel theory experiment.toml --smoothness 4 --initial-gap 2.3 --sigma2 2 --g2 0.5 --json"""


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "theory", "evaluate Theorem 1 for an experiment, term by term", EXAMPLE)
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.toml")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=VALUE", help="change a key")
    parser.add_argument("--smoothness", type=amount, metavar="L", help="default 1/(2η): the printed P2")
    parser.add_argument(
        "--initial-gap", type=amount, default=math.log(10), help="F(u⁰) − F_inf (default ln 10)"
    )
    parser.add_argument("--sigma2", type=amount, default=1.0, help="σ² (default 1)")
    parser.add_argument("--g2", type=amount, default=1.0, help="G² (default 1)")
    parser.add_argument("--learning-rate", type=amount, metavar="ETA", help="default: the experiment's")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Rehearses the run and prints the bound."""
    assumed = Assumptions(
        smoothness=arguments.smoothness,
        initial_gap=arguments.initial_gap,
        sigma2=arguments.sigma2,
        g2=arguments.g2,
        learning_rate=arguments.learning_rate,
    )
    report = report_theorem(arguments.experiment, arguments.set, assumed)
    if arguments.json:
        print_json(report.to_dict())
    else:
        _print(Console(highlight=False), report)
    return 0


def _print(console: Console, report: TheoremReport) -> None:
    bound, landscape = report.bound, report.landscape
    console.print(f"[bold]{report.name}[/]: {report.scheme}, {report.edge_rounds} edge rounds rehearsed\n")
    table = new_table("clusters", "ζ", "Ω₁")
    table.add_row(str(report.clusters), f"{report.zeta:.4f}", f"{report.omega1:.4g}")
    print_table(console, "Backhaul", table)
    table = new_table("term", "value", "share")
    for name, value in (("progress", bound.progress), ("noise", bound.noise), ("skipped", bound.skipped)):
        table.add_row(name, f"{value:.6g}", f"{100 * value / bound.total:.1f} %" if bound.total else "–")
    table.add_row("total", f"{bound.total:.6g}", "")
    print_table(console, "Theorem 1: bound on the mean of ‖∇F‖²", table)
    console.print(
        f"assumed: η = {landscape.learning_rate:g}, L = {landscape.smoothness:g}, "
        f"F(u⁰) − F_inf = {landscape.initial_gap:.4g}, σ² = {landscape.sigma2:g}, G² = {landscape.g2:g}"
    )
    limits = f"η ≤ {bound.topology_limit:.3g} for the backhaul, η ≤ {bound.plan_limit:.3g} for the plans"
    console.print(f"step size: {limits}")
    if bound.holds:
        console.print("[green]the step-size condition holds[/]")
    else:
        console.print(
            "[yellow]the step-size condition does not hold[/]: the bound is not proven for this run"
        )
