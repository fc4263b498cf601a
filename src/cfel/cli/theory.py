"""`cfel theory`: what Theorem 1 says of an experiment, or of a run."""

import argparse
import math
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.api.theorem import Assumptions, TheoremReport, report_theorem
from cfel.cli.shared import (
    Commands,
    add_changes,
    add_command,
    add_json,
    add_trust,
    amount,
    import_from,
    new_table,
    print_json,
    print_table,
    trusted_code,
)
from cfel.control import Bound
from cfel.plugins import ANY_CODE, CodePolicy

EXAMPLE = """  cfel theory experiment.toml
  cfel theory experiment.toml --set scheme.name=cef --set rounds.global=10
  cfel theory experiment.toml --smoothness 4 --initial-gap 2.3 --sigma2 2 --json
  cfel theory runs/first     (a run directory: its logged plans, σ² and G²)"""

MEANING = {
    "progress": "loss at the start, spread over all steps",
    "noise": "random mini-batches and compression",
    "skipped": "local steps left out",
}

MOST_ROUNDS = 8
"""Rounds shown at the beginning and at the end of a run."""


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "theory", EXAMPLE)
    parser.add_argument(
        "experiment",
        type=Path,
        metavar="EXPERIMENT|DIR",
        help="experiment.toml, its folder, or a run directory",
    )
    add_changes(parser)
    add_trust(parser)
    options = {
        "smoothness": ("L", None, "of the gradient (default 1/(2η), for which P2 is the bound as printed)"),
        "initial-gap": (
            "N",
            math.log(10),
            "loss at the start above the least, F(u⁰) − F_inf (default ln 10)",
        ),
        "sigma2": ("N", None, "variance σ² of a mini-batch gradient (default: the run's estimates, or 1)"),
        "g2": ("N", None, "squared norm G² of a local gradient (default: the run's estimates, or 1)"),
        "learning-rate": ("ETA", None, "step size η (default: the experiment's)"),
    }
    for name, (metavar, default, text) in options.items():
        parser.add_argument(f"--{name}", type=amount, metavar=metavar, default=default, help=text)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Rehearses the experiment, or reads the run, and prints the bound."""
    assumed = Assumptions(
        smoothness=arguments.smoothness,
        initial_gap=arguments.initial_gap,
        sigma2=arguments.sigma2,
        g2=arguments.g2,
        learning_rate=arguments.learning_rate,
    )
    report = report_theorem(arguments.experiment, arguments.set, assumed, _code(arguments))
    if arguments.json:
        print_json(report.to_dict())
    else:
        _print(Console(highlight=False), report)
    return 0


def _code(arguments: argparse.Namespace) -> CodePolicy:
    """An experiment file is the user's own, with its code beside it; a directory need not be."""
    if arguments.experiment.is_dir():
        return trusted_code(arguments)
    import_from(arguments.experiment.parent)
    return ANY_CODE


def _print(console: Console, report: TheoremReport) -> None:
    bound, landscape = report.bound, report.landscape
    title = f"[bold]{escape(report.name)}[/]: {escape(report.scheme)}"
    done = f"carried out in {len(report.rounds)} rounds" if report.rounds else "planned in a dry run"
    console.print(f"{title}, {report.edge_rounds} edge rounds {done}\n")
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
    if report.rounds:
        _print_rounds(console, report)
    console.print(
        f"assumed:   η = {landscape.learning_rate:g}, L = {landscape.smoothness:g}, "
        f"F(u⁰) − F_inf = {landscape.initial_gap:.4g}, σ² = {landscape.sigma2:.4g}, G² = {landscape.g2:.4g}"
        + (" (means over the rounds)" if report.rounds else "")
    )
    console.print(f"step size: the backhaul allows η ≤ {bound.topology_limit:.3g}, {_plan_limit(bound)}")
    if report.rounds:
        console.print(_violations(report))
    elif bound.holds:
        console.print("[green]the step-size condition holds[/]")
    else:
        console.print(
            "[yellow]the step-size condition does not hold[/]: the bound is not proven for this run"
        )


def _print_rounds(console: Console, report: TheoremReport) -> None:
    """The first and last rounds; all of them are in the JSON document."""
    table = new_table("round", "σ²", "G²", "noise", "skipped", "η ≤", "over", "condition")
    cut = len(report.rounds) > 2 * MOST_ROUNDS
    for place, each in enumerate(report.rounds):
        if cut and MOST_ROUNDS <= place < len(report.rounds) - MOST_ROUNDS:
            if place == MOST_ROUNDS:
                table.add_row("…")
            continue
        terms = each.terms
        table.add_row(
            str(each.round),
            f"{each.sigma2:.4g}",
            f"{each.g2:.4g}",
            f"{terms.noise:.4g}",
            f"{terms.skipped:.4g}",
            "none" if terms.plan_limit <= 0 else f"{terms.plan_limit:.3g}",
            f"{terms.breaches}/{terms.devices}",
            "holds" if each.holds else "broken",
        )
    print_table(
        console, "Round by round (η ≤: what all plans allow; over: plans that allow only less)", table
    )


def _violations(report: TheoremReport) -> str:
    """How many rounds break the condition, and which half of it."""
    total, broken = len(report.rounds), report.violating_rounds
    if not broken:
        return f"[green]the step-size condition holds in all {total} rounds[/]"
    rate = report.landscape.learning_rate
    by_plans = sum(each.terms.breaches > 0 for each in report.rounds)
    backhaul = "breaks it in every one" if rate > report.bound.topology_limit else "keeps it"
    return (
        f"[yellow]{broken} of {total} rounds violate the step-size condition[/]: the plans break it in "
        f"{by_plans}, the backhaul {backhaul}; the bound is not proven for this run"
    )


def _plan_limit(bound: Bound) -> str:
    if bound.plan_limit <= 0:
        return "the plans none (some θ ≤ 1/2)"
    return f"the plans η ≤ {bound.plan_limit:.3g}"
