"""`cfel theory`: what Theorem 1 says of an experiment."""

import argparse
import math
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.cli.shared import (
    Commands,
    add_command,
    add_json,
    amount,
    import_from,
    new_table,
    print_json,
    print_table,
)
from cfel.control import Bound
from cfel.studies.theorem import Assumptions, TheoremReport, report_theorem

EXAMPLE = """  cfel theory experiment.toml
  cfel theory experiment.toml --set scheme.name=cef --set rounds.global=10
  cfel theory experiment.toml --smoothness 4 --initial-gap 2.3 --sigma2 2 --json"""

MEANING = {
    "progress": "loss at the start, spread over all steps",
    "noise": "random mini-batches and compression",
    "skipped": "local steps left out",
}

SET_HELP = "change a key of the experiment, e.g. rounds.global=10; may be repeated"


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "theory", EXAMPLE)
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT", help="experiment.toml, or its folder")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=VALUE", help=SET_HELP)
    options = {
        "smoothness": ("L", None, "of the gradient (default 1/(2η), for which P2 is the bound as printed)"),
        "initial-gap": (
            "N",
            math.log(10),
            "loss at the start above the least, F(u⁰) − F_inf (default ln 10)",
        ),
        "sigma2": ("N", 1.0, "variance σ² of a mini-batch gradient (default 1)"),
        "g2": ("N", 1.0, "squared norm G² of a local gradient (default 1)"),
        "learning-rate": ("ETA", None, "step size η (default: the experiment's)"),
    }
    for name, (metavar, default, text) in options.items():
        parser.add_argument(f"--{name}", type=amount, metavar=metavar, default=default, help=text)
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
    import_from(arguments.experiment if arguments.experiment.is_dir() else arguments.experiment.parent)
    report = report_theorem(arguments.experiment, arguments.set, assumed)
    if arguments.json:
        print_json(report.to_dict())
    else:
        _print(Console(highlight=False), report)
    return 0


def _print(console: Console, report: TheoremReport) -> None:
    bound, landscape = report.bound, report.landscape
    title = f"[bold]{escape(report.name)}[/]: {escape(report.scheme)}"
    console.print(f"{title}, {report.edge_rounds} edge rounds rehearsed\n")
    table = new_table("clusters", "ζ", "Ω₁")
    table.add_row(str(report.clusters), f"{report.zeta:.4f}", f"{report.omega1:.4g}")
    print_table(console, "Backhaul (ζ: 0 agrees at once, 1 never; Ω₁: the price of that, 3 at best)", table)
    table = new_table("term", "value", "share", "comes from", texts=("comes from",))
    table.columns[-1].justify = "left"
    for name, meaning in MEANING.items():
        value = getattr(bound, name)
        share = f"{100 * value / bound.total:.1f} %" if bound.total else "–"
        table.add_row(name, f"{value:.6g}", share, meaning)
    table.add_row("total", f"{bound.total:.6g}", "", "")
    print_table(console, "Theorem 1: bound on the mean of ‖∇F‖²", table)
    console.print(
        f"assumed:   η = {landscape.learning_rate:g}, L = {landscape.smoothness:g}, "
        f"F(u⁰) − F_inf = {landscape.initial_gap:.4g}, σ² = {landscape.sigma2:g}, G² = {landscape.g2:g}"
    )
    console.print(f"step size: the backhaul allows η ≤ {bound.topology_limit:.3g}, {_plan_limit(bound)}")
    if bound.holds:
        console.print("[green]the step-size condition holds[/]")
    else:
        console.print(
            "[yellow]the step-size condition does not hold[/]: the bound is not proven for this run"
        )


def _plan_limit(bound: Bound) -> str:
    if bound.plan_limit <= 0:
        return "the plans none (some θ ≤ 1/2)"
    return f"the plans η ≤ {bound.plan_limit:.3g}"
