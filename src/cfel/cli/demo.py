"""`cfel demo`: the schemes side by side on a generated fleet of 64 devices."""

import argparse

from rich.console import Console

from cfel.cli.shared import Commands, add_command, add_json, new_table, print_json, print_table
from cfel.studies.rehearsals import SchemeUse, compare_use

EXAMPLE = "  cfel demo"


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "demo", "plan a run for 64 devices with every scheme", EXAMPLE)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Rehearses every scheme and prints what it would use."""
    uses = compare_use("demo")
    if arguments.json:
        print_json({use.scheme: use.to_dict() for use in uses})
    else:
        _print(Console(highlight=False), uses)
    return 0


def _print(console: Console, uses: list[SchemeUse]) -> None:
    title = "Plans for 64 devices in 8 clusters on a ring, budgets at 60 % of CEF's use"
    table = new_table("scheme", "time s", "of budget", "energy J", "of budget", "ρ", "θ", "worst gap")
    for use in uses:
        table.add_row(
            use.scheme,
            f"{use.seconds:,.0f}",
            f"{100 * use.seconds_share:.0f} %",
            f"{use.joules:,.0f}",
            f"{100 * use.joules_share:.0f} %",
            f"{use.rho:.2f}",
            f"{use.theta:.2f}",
            f"{100 * use.worst_gap:.3f} %",
        )
    print_table(console, title, table)
    console.print("[dim]of budget: above 100 % is overspent; only hcef, cef_f and cef_c look at budgets")
    console.print("[dim]ρ: mean share of local steps taken; θ: mean share of an update sent")
    console.print("[dim]worst gap: how far from the best possible plan a round was at most")
