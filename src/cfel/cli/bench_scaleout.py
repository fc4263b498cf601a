"""`cfel bench scaleout`: speed and overhead of the Ray engine."""

import argparse
from collections.abc import Sequence

from rich.console import Console

from cfel.bench.scaleout import EngineComparison, Overhead, as_document, compare_engines, measure_overhead
from cfel.cli.output import new_table, print_json, print_table


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark and prints the results."""
    progress = Console(stderr=True, highlight=False)
    progress.print("[dim]ResNet-20 on threads, on Ray, and on two Ray nodes …[/]")
    race = compare_engines(16, 4, 1, 3) if arguments.quick else compare_engines(64, 8, 1, 3)
    overheads = []
    for devices in (500, 2000) if arguments.quick else (1000, 10_000):
        progress.print(f"[dim]small model on {devices:,} devices …[/]")
        overheads.append(measure_overhead(devices, 3))
    if arguments.json:
        print_json(as_document(race, overheads))
        return 0
    console = Console(highlight=False)
    _print_race(console, race)
    _print_overheads(console, overheads)
    return 0


def _print_race(console: Console, race: EngineComparison) -> None:
    table = new_table("engine", "s per round", "speed", "of", "goal")
    compared = {
        "threads": ("", "", ""),
        "ray": (f"{race.ray_to_threads:.2f}", "threads", "≥ 0.90"),
        "ray, two nodes": (f"{race.two_nodes_to_one:.2f}", "one node", "≥ 0.90"),
    }
    for name, seconds in race.seconds.items():
        table.add_row(name, f"{seconds:.2f}", *compared[name])
    print_table(console, f"ResNet-20 on {race.devices} devices", table)


def _print_overheads(console: Console, overheads: Sequence[Overhead]) -> None:
    table = new_table("devices", "overhead ms", "training ms", "driver MiB", "KiB per extra device")
    for number, each in enumerate(overheads):
        more = "–"
        if number:
            before = overheads[number - 1]
            more = f"{(each.driver_bytes - before.driver_bytes) / (each.devices - before.devices) / 1024:.1f}"
        table.add_row(
            f"{each.devices:,}",
            f"{each.milliseconds:.2f}",
            f"{each.training_milliseconds:.2f}",
            f"{each.driver_bytes / 2**20:,.0f}",
            more,
        )
    print_table(
        console, "Per device with the small model and no device state (goal: overhead below 1 ms)", table
    )
