"""`cfel bench deployment`: overhead and memory of federations of real processes."""

import argparse
from collections.abc import Sequence

from rich.console import Console

from cfel.bench.deployment import (
    MAX_BYTES,
    MAX_GROWTH,
    MAX_OVERHEAD,
    Memory,
    MemoryGrowth,
    Overhead,
    as_document,
    measure_growth,
    measure_memory,
    measure_overhead,
)
from cfel.cli.output import new_table, print_json, print_table

PARTS = ("overhead", "memory", "flat")


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark and prints the results."""
    progress = Console(stderr=True, highlight=False)
    wanted = PARTS if arguments.only is None else (arguments.only,)
    overheads: list[Overhead] = []
    memories: list[Memory] = []
    flats: list[MemoryGrowth] = []
    if "overhead" in wanted:
        progress.print("[dim]LEAF's CNN on 8 device processes …[/]")
        overheads.append(measure_overhead(*((3, 3) if arguments.quick else (6, 5))))
    if "memory" in wanted:
        devices, clusters = (16, 4) if arguments.quick else (64, 8)
        progress.print(f"[dim]{devices} device processes and {clusters} edge servers …[/]")
        memories.append(measure_memory(devices, clusters))
    if "flat" in wanted:
        early, late = (20, 60) if arguments.quick else (50, 200)
        progress.print(f"[dim]{late} rounds of one edge server …[/]")
        flats.append(measure_growth(early, late))
    if arguments.json:
        print_json(as_document(overheads, memories, flats))
    else:
        _print_results(Console(highlight=False), overheads, memories, flats)
    return 0


def _print_results(
    console: Console, overheads: Sequence[Overhead], memories: Sequence[Memory], flats: Sequence[MemoryGrowth]
) -> None:
    if overheads:
        table = new_table(
            "devices", "wall s", "slowest training s", "MB moved", "transfer s", "ratio", "goal"
        )
        for each in overheads:
            table.add_row(
                str(each.devices),
                f"{each.wall_seconds:.2f}",
                f"{each.training_seconds:.2f}",
                f"{each.transferred_bytes / 1e6:,.0f}",
                f"{each.transfer_seconds:.2f}",
                f"{each.ratio:.3f}",
                f"≤ {MAX_OVERHEAD}",
            )
        print_table(console, "An edge round of LEAF's CNN", table)
    for peak in memories:
        console.print(
            f"peak memory of {peak.devices} devices and {peak.edge_servers} edge servers: "
            f"{peak.peak_bytes / 2**30:.2f} GiB (goal: below {MAX_BYTES / 2**30:.0f})"
        )
    for flat in flats:
        console.print(
            f"an edge server after {flat.early_round} rounds: {flat.early_bytes / 2**20:.1f} MiB, after "
            f"{flat.late_round}: {flat.late_bytes / 2**20:.1f} MiB, ratio {flat.growth:.3f} "
            f"(goal: ≤ {MAX_GROWTH})"
        )
