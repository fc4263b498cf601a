"""`cfel bench solver`: quality, speed and memory of the solver."""

import argparse

from rich.console import Console

from cfel.bench import solver as bench_solver
from cfel.cli.output import new_table, print_json, print_table


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark and prints the results."""
    progress = Console(stderr=True, highlight=False)
    seeds, starts, largest = (1, 0, 100_000) if arguments.quick else (5, 20, 1_000_000)
    sizes = (2, 8, 64, 512)
    quality = []
    for devices in sizes:
        progress.print(f"[dim]quality, {devices} devices …[/]")
        tried = starts if devices <= 64 else 0
        quality.append(bench_solver.measure_quality(devices, 1 if tried else seeds, tried))
    progress.print("[dim]speed …[/]")
    small = bench_solver.measure_speed(64, repeats=40)
    general = bench_solver.measure_general_solver(30)
    large = [bench_solver.measure_speed(n, repeats=3) for n in (10_000, 100_000, 1_000_000) if n <= largest]
    memory = bench_solver.measure_memory(largest)
    exponent = bench_solver.fit_growth_exponent(large)
    document = bench_solver.as_document(
        quality=quality,
        speed=[small, *large],
        growth_exponent=exponent,
        peak_bytes=memory,
        general_solver_seconds=general[1] if general else None,
        general_solver_ratio=general[1] / general[0] if general else None,
    )
    if arguments.json:
        print_json(document)
        return 0
    console = Console(highlight=False)
    _print_quality(console, quality)
    _print_speed(console, [small, *large])
    console.print(f"time grows as N^{exponent:.2f} from 10,000 devices")
    console.print(f"peak memory at {largest:,} devices: {memory / 2**20:,.0f} MiB")
    if general is None:
        console.print("no comparison with a general solver: CVXPY is not installed")
    else:
        console.print(
            f"one pass of P2.1 and P2.2 in CVXPY, 64 devices: {1e3 * general[1]:.1f} ms, "
            f"{general[1] / general[0]:.0f} times as long as a joint solve"
        )
    return 0


def _print_quality(console: Console, rows: list[bench_solver.Quality]) -> None:
    title = "Proven gap (both presets, σ²/G² 0.01 … 100, budgets 20 … 120 % of CEF)"
    table = new_table("devices", "instances", "median", "worst", "> 0.1 %", "vs 20 starts")
    for row in rows:
        compared = "–" if row.worse_than_starts is None else f"{row.worse_than_starts:+.1e}"
        table.add_row(
            f"{row.devices:,}",
            str(row.instances),
            f"{100 * row.median_gap:.5f} %",
            f"{100 * row.worst_gap:.4f} %",
            str(row.above),
            compared,
        )
    print_table(console, title, table)


def _print_speed(console: Console, rows: list[bench_solver.Speed]) -> None:
    table = new_table("devices", "ms", "× numpy.sort", "gap")
    for row in rows:
        ratio, gap = f"{row.sort_ratio:.1f}", f"{100 * row.gap:.5f} %"
        table.add_row(f"{row.devices:,}", f"{1e3 * row.seconds:.2f}", ratio, gap)
    print_table(console, "Time per solve (median, after warm-up)", table)
