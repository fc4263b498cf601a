"""`cfel theory`: evaluates the bound of Theorem 1 for an experiment or a run."""

import argparse
import math
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.api.theorem import Assumptions, TheoremReport, report_theorem
from cfel.cli import options, output
from cfel.plugins import ANY_CODE, import_from
from cfel.wording import plural

EXAMPLES = {
    "theory": """  cfel theory experiment.toml
  cfel theory experiment.toml --set scheme.name=cef --set rounds.global=10
  cfel theory experiment.toml --smoothness 4 --initial-gap 2.3 --sigma2 2 --json
  cfel theory runs/first     (uses the plans, σ² and G² of the log)"""
}

MEANING = {
    "progress": "initial loss, divided by all steps",
    "noise": "mini-batch sampling and compression",
    "skipped": "skipped local steps",
}

MAX_ROUNDS = 8
"""Number of first and of last rounds to show."""


def add_theory_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiment",
        type=Path,
        metavar="EXPERIMENT|DIR",
        help="an experiment file, its folder, or a run directory",
    )
    options.add_set_option(parser)
    options.add_trust_option(parser)
    numbers = {
        "smoothness": ("L", None, "smoothness L of the loss (default 1/(2η), as in the paper's problem P2)"),
        "initial-gap": (
            "N",
            math.log(10),  # cross-entropy of guessing among ten classes
            "initial loss minus its minimum, F(u⁰) − F_inf (default ln 10)",
        ),
        "sigma2": ("N", None, "variance σ² of a mini-batch gradient (default: estimates of the run, or 1)"),
        "g2": ("N", None, "squared norm G² of a local gradient (default: estimates of the run, or 1)"),
        "learning-rate": ("ETA", None, "step size η (default: that of the experiment)"),
    }
    for name, (metavar, default, text) in numbers.items():
        parser.add_argument(
            f"--{name}", type=options.parse_number, metavar=metavar, default=default, help=text
        )
    options.add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Makes a dry run of the experiment, or reads the run, and prints the bound."""
    assumed = Assumptions(**{each.name: getattr(arguments, each.name) for each in fields(Assumptions)})
    # An experiment file belongs to the user, and so does the code beside it; a directory need not.
    code = ANY_CODE
    if arguments.experiment.is_dir():
        code = options.select_code_policy(arguments, arguments.experiment)
    else:
        import_from(arguments.experiment.parent)
    report = report_theorem(arguments.experiment, arguments.set, assumed, code)
    if arguments.json:
        output.print_json(report.to_dict())
    else:
        _print(Console(highlight=False), report)


def _print(console: Console, report: TheoremReport) -> None:
    bound, landscape = report.bound, report.landscape
    title = f"[bold]{escape(report.name)}[/]: {escape(report.scheme)}"
    done = f"in {plural(len(report.rounds), 'logged round')}" if report.rounds else "planned in a dry run"
    console.print(f"{title}, {plural(report.edge_rounds, 'edge round')} {done}\n")
    table = output.new_table("clusters", "ζ", "Ω₁")
    table.add_row(str(report.clusters), f"{report.zeta:.4f}", f"{report.omega1:.4g}")
    output.print_table(
        console, "Backhaul (ζ: 0 mixes at once, 1 never; Ω₁: its effect on the bound, 3 at best)", table
    )
    table = output.new_table("term", "value", "share", "cause", texts=("cause",))
    table.columns[-1].justify = "left"
    for name, meaning in MEANING.items():
        value = getattr(bound, name)
        share = f"{100 * value / bound.total:.1f} %" if bound.total else "–"
        table.add_row(name, f"{value:.6g}", share, meaning)
    table.add_row("total", f"{bound.total:.6g}", "", "")
    output.print_table(console, "Theorem 1: bound on the mean of ‖∇F‖²", table)
    if report.rounds:
        _print_rounds(console, report)
    console.print(
        f"assumed:   η = {landscape.learning_rate:g}, L = {landscape.smoothness:g}, "
        f"F(u⁰) − F_inf = {landscape.initial_gap:.4g}, σ² = {landscape.sigma2:.4g}, G² = {landscape.g2:.4g}"
        + (" (means over the rounds)" if report.rounds else "")
    )
    plans = f"η ≤ {bound.plan_limit:.3g}" if bound.plan_limit > 0 else "none (some θ ≤ 1/2)"
    console.print(f"step size: the backhaul allows η ≤ {bound.topology_limit:.3g}, the plans allow {plans}")
    if report.rounds:
        console.print(_describe_violations(report))
    elif bound.holds:
        console.print("[green]the step-size condition holds[/]")
    else:
        console.print(
            "[yellow]the step-size condition is violated[/]: the bound is not proven for this experiment"
        )


def _print_rounds(console: Console, report: TheoremReport) -> None:
    """Prints the first and last rounds; the JSON document has all of them."""
    table = output.new_table("round", "σ²", "G²", "noise", "skipped", "η ≤", "over", "condition")
    cut = len(report.rounds) > 2 * MAX_ROUNDS
    for place, each in enumerate(report.rounds):
        if cut and MAX_ROUNDS <= place < len(report.rounds) - MAX_ROUNDS:
            if place == MAX_ROUNDS:
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
            "holds" if each.holds else "violated",
        )
    output.print_table(
        console, "Rounds (η ≤: largest step size for all plans; over: plans that need less)", table
    )


def _describe_violations(report: TheoremReport) -> str:
    """How many rounds violate the step-size condition, and which part of it."""
    total, broken = len(report.rounds), report.violating_rounds
    if not broken:
        return f"[green]the step-size condition holds in every round ({total} of {total})[/]"
    rate = report.landscape.learning_rate
    by_plans = sum(each.terms.breaches > 0 for each in report.rounds)
    backhaul = "violates it in every round" if rate > report.bound.topology_limit else "never does"
    return (
        f"[yellow]the step-size condition is violated in {broken} of {plural(total, 'round')}[/]: by the "
        f"plans in {by_plans}, and the backhaul {backhaul}. The bound is not proven for this run"
    )
