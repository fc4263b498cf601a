"""`cfel bench simulation`: speed of the round loop, start-up time and memory."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from cfel.bench.child import measure_peak_memory, measure_startup
from cfel.bench.settings import LEAF, PERCEPTRON, RESNET, SMALL, BenchSetting
from cfel.bench.simulation import (
    Pace,
    Scale,
    as_document,
    make_document,
    measure_pace,
    measure_scale,
)
from cfel.cli.output import new_table, print_json, print_table

MAX_DEVICES = 10_000
SETTINGS = tuple(setting.model for setting in (PERCEPTRON, SMALL, RESNET, LEAF))


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark and prints the results."""
    progress = Console(stderr=True, highlight=False)
    paces = []
    for setting, repeats, steps in _list_settings(arguments.quick, arguments.only):
        progress.print(f"[dim]{setting.name} …[/]")
        paces.append(measure_pace(setting, repeats, steps))
    if arguments.only is not None:
        if arguments.json:
            print_json(make_document(paces))
        else:
            _print_paces(Console(highlight=False), paces)
        return 0
    progress.print("[dim]fleets of several sizes …[/]")
    scales = measure_scale((64, 1000) if arguments.quick else (64, 1000, MAX_DEVICES), 2)
    start = measure_startup(2 if arguments.quick else 5)
    peak = measure_peak_memory(MAX_DEVICES)
    if arguments.json:
        print_json(as_document(paces, scales, start, peak))
        return 0
    console = Console(highlight=False)
    _print_paces(console, paces)
    _print_scales(console, scales)
    console.print(f"time to the first local step: {start:.2f} s more than importing torch (goal: below 3)")
    console.print(f"peak memory with {MAX_DEVICES:,} devices: {peak / 2**20:,.0f} MiB (goal: below 2,048)")
    return 0


def _list_settings(quick: bool, only: str | None) -> list[tuple[BenchSetting, int, int]]:
    """Settings with the number of measured rounds and of bare-loop steps between them."""
    plan = (
        _list_quick_settings()
        if quick
        else [(PERCEPTRON, 9, 1600), (SMALL, 9, 250), (RESNET, 2, 200), (LEAF, 2, 200)]
    )
    return [each for each in plan if only in (None, each[0].model)]


def _list_quick_settings() -> list[tuple[BenchSetting, int, int]]:
    few = [replace(setting, devices=16, clusters=4, edge_rounds=1) for setting in (RESNET, LEAF)]
    return [(PERCEPTRON, 5, 800), (SMALL, 5, 250), *((setting, 3, 40) for setting in few)]


def _print_paces(console: Console, paces: Sequence[Pace]) -> None:
    table = new_table("setting", "engine", "ms/step", "bare ms", "ratio", "minima", "goal")
    for pace in paces:
        best = min(pace.bare_milliseconds, key=lambda way: pace.bare_milliseconds[way])
        table.add_row(
            pace.name,
            pace.engine,
            f"{pace.milliseconds:.3f}",
            f"{pace.bare_milliseconds[best]:.3f}",
            f"{pace.ratio:.2f}",
            f"{pace.ratio_of_minima:.2f}",
            f"≥ {pace.target:.2f}",
        )
    print_table(console, "Time per local step in a complete round, and in the best bare PyTorch loop", table)


def _print_scales(console: Console, scales: Sequence[Scale]) -> None:
    table = new_table("devices", "CPU ms per device-step", "relative")
    for scale in scales:
        relative = scale.cpu_milliseconds / scales[0].cpu_milliseconds
        table.add_row(f"{scale.devices:,}", f"{scale.cpu_milliseconds:.3f}", f"{relative:.2f}")
    print_table(console, "Cost of a device-step (small CNN, τ = 1)", table)
