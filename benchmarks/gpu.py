"""`python -m benchmarks gpu` (`make test-gpu`): do engines agree on a GPU, and how fast are they there?

Every engine that can use a GPU runs the same rounds as threads on the CPU. Without a GPU it says so.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import torch
from rich.console import Console

from benchmarks.settings import PERCEPTRON, RESNET, SMALL, BenchSetting, build_bench_world
from benchmarks.simulation import open_timed_rounds
from cfel.cli.output import new_table, print_table
from cfel.simulation.executors import PoolExecutor
from cfel.simulation.loop import simulate
from cfel.simulation.parameters import SimulationParameters
from cfel.simulation.state import initial_state
from cfel.world import World

# Of the length of an update: on a GPU, sums run in another order.
MOST_DIFFERENCE = 0.01


@dataclass(frozen=True, slots=True)
class Row:
    """One engine on one device.

    Attributes:
        setting, engine, device: what was run, and where.
        milliseconds: per local step, the median over rounds.
        difference: of the first round's models to those of threads on the CPU, relative to their change.
        repeats: whether a second run gave the same models, bit for bit.
    """

    setting: str
    engine: str
    device: str
    milliseconds: float
    difference: float
    repeats: bool


@dataclass(frozen=True, slots=True)
class Results:
    """The name of the GPU, None where there is none, and what was measured."""

    gpu: str | None
    rows: Sequence[Row] = ()

    def document(self) -> dict[str, Any]:
        """The results as plain values."""
        return asdict(self) | {"agree": all(row.difference <= MOST_DIFFERENCE for row in self.rows)}

    def show(self, console: Console) -> None:
        """Prints the results as a table."""
        if self.gpu is None:
            console.print("torch finds no GPU here: nothing was measured")
            return
        table = new_table("setting", "engine", "device", "ms/step", "difference", "repeats")
        for row in self.rows:
            figures = (f"{row.milliseconds:.3f}", f"{row.difference:.1e}", "yes" if row.repeats else "no")
            table.add_row(row.setting, row.engine, row.device, *figures)
        print_table(console, f"{self.gpu}: differences above {MOST_DIFFERENCE} are defects", table)


def measure(*, quick: bool, only: None = None) -> Results:  # noqa: ARG001 — it has no parts
    """Runs the benchmark."""
    if not torch.cuda.is_available():
        return Results(None)
    few = replace(RESNET, devices=16, clusters=4, edge_rounds=1)
    rows = [
        row
        for setting, batched in ((PERCEPTRON, True), (SMALL, True), (few, False))
        for row in measure_setting(setting, "cuda", batched=batched, rounds=3 if quick else 9)
    ]
    return Results(torch.cuda.get_device_name(), rows)


def measure_setting(setting: BenchSetting, device: str, *, batched: bool, rounds: int) -> list[Row]:
    """Threads on the CPU, then the engines on `device`."""
    world = build_bench_world(setting)
    reference = SimulationParameters(engine="threads")
    wanted = run_first_round(world, reference)
    engines = [SimulationParameters(engine=name, device=device) for name in ("threads", "batched")]
    rows = []
    for parameters in (reference, *engines[: 1 + batched]):
        found, again = (run_first_round(world, parameters) for _ in range(2))
        change = float((wanted - world.start.parameters).norm())
        with open_timed_rounds(world, parameters) as timed:
            next(timed)
            steps = [1e3 * each.seconds / each.steps for each in islice(timed, rounds) if each.steps]
        rows.append(
            Row(
                setting.name,
                parameters.engine,
                parameters.device,
                statistics.median(steps),
                float((found - wanted).norm()) / change,
                torch.equal(found, again),
            )
        )
    return rows


def run_first_round(world: World, parameters: SimulationParameters) -> torch.Tensor:
    """The edge models after one global round, as rows."""
    with PoolExecutor(world, parameters) as executor:
        rounds = simulate(world, executor, initial_state(world), lambda: 0.0)
        outcome = next(rounds)
        rounds.close()  # type: ignore[attr-defined]
    return torch.stack([model.parameters for model in outcome.state.models])
