"""`cfel bench peers`: seconds, memory and start of the same rounds in cfel, a bare loop, pfl and Flower."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from cfel.bench.peers.environment import DEFAULT_FOLDER, PINS, own_interpreter, prepare_environment
from cfel.bench.peers.race import Entrant, Standing, run_race
from cfel.bench.peers.workload import WORKLOADS
from cfel.cli.output import new_table, print_json, print_table

PARTS = tuple(WORKLOADS)
_MODULE = "cfel.bench.peers.{}_worker"


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark and prints the results."""
    progress = Console(stderr=True, highlight=False)
    progress.print(f"[dim]{escape(', '.join(PINS.values()))} in {DEFAULT_FOLDER} …[/]")
    entrants = _list_entrants()
    found = {}
    for name in PARTS if arguments.only is None else (arguments.only,):
        progress.print(f"[dim]{WORKLOADS[name].name} …[/]")
        found[name] = run_race(WORKLOADS[name], entrants, 2 if arguments.quick else 7)
    if arguments.json:
        print_json({name: [asdict(each) for each in standings] for name, standings in found.items()})
        return 0
    console = Console(highlight=False)
    for name, standings in found.items():
        _print_standings(console, WORKLOADS[name].name, standings)
    return 0


def _list_entrants() -> list[Entrant]:
    theirs, ours, cores = (
        prepare_environment(DEFAULT_FOLDER, tuple(PINS)),
        own_interpreter(),
        os.cpu_count() or 1,
    )
    return [
        Entrant("cfel", ours, _MODULE.format("cfel"), cores),
        Entrant("bare loop, 1 thread", ours, _MODULE.format("bare"), 1),
        Entrant(f"bare loop, {cores} threads", ours, _MODULE.format("bare"), cores),
        Entrant("pfl, 1 process", theirs, _MODULE.format("pfl"), 1),
        Entrant(f"pfl, {cores} processes", theirs, _MODULE.format("pfl"), cores),
        Entrant(f"Flower, {cores} actors", theirs, _MODULE.format("flower"), cores),
    ]


def _print_standings(console: Console, title: str, standings: Sequence[Standing]) -> None:
    table = new_table("system", "s per round", "fastest", "relative", "MiB", "first round s")
    for each in standings:
        table.add_row(
            each.name,
            f"{each.median:.2f}",
            f"{min(each.seconds):.2f}",
            f"{each.median / standings[0].median:.2f}",
            f"{each.peak_bytes / 2**20:,.0f}",
            f"{each.start_seconds:.1f}",
        )
    print_table(console, title, table)
