"""`python -m benchmarks simulation`: the round loop compared with a bare PyTorch loop.

Wall time depends on the machine and its load, so only ratios between measurements close in time count. A
round includes everything (estimates, solver, training, top-k, aggregation, gossip, digests and the log on
disk) except evaluation and checkpoints.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 — the name every torch reader knows
from rich.console import Console
from torch import Tensor

from benchmarks.child import measure_peak_memory, measure_startup
from benchmarks.settings import (
    LEAF,
    PERCEPTRON,
    RESNET,
    SEED,
    SMALL,
    BenchSetting,
    build_bench_parameters,
    build_bench_world,
    make_random_data,
)
from cfel.cli.output import new_table, print_table
from cfel.learning.data.images import augmentation
from cfel.learning.local.training import draw_batches
from cfel.learning.models.builders import model_builder
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.rounds.run_directory import create_run
from cfel.runlog import RunWriter
from cfel.seeding import make_generator
from cfel.simulation.executors import PoolExecutor
from cfel.simulation.loop import simulate
from cfel.simulation.parameters import SimulationParameters
from cfel.simulation.state import initial_state
from cfel.world import World

MAX_DEVICES = 10_000
MeasureSteps = Callable[[], float]
"""Runs a fixed number of steps and returns the seconds it took."""


@dataclass(frozen=True, slots=True)
class Round:
    """One global round: local steps, wall time and CPU time, workers included."""

    steps: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of the round loop in a setting, and of the bare loop.

    Attributes:
        name: name of the setting.
        engine: the engine used.
        milliseconds: wall time per local step, the median over rounds.
        cpu_milliseconds: CPU time per local step, the minimum over rounds.
        bare_milliseconds: median wall time per step of each variant of the bare loop.
        ratio: the best of these divided by ours; above 1 our loop is faster.
        ratio_of_minima: the same for the fastest rounds, which other load disturbed least.
        target: the minimum ratio we aim for.
    """

    name: str
    engine: str
    milliseconds: float
    cpu_milliseconds: float
    bare_milliseconds: Mapping[str, float]
    ratio: float
    ratio_of_minima: float
    target: float


@dataclass(frozen=True, slots=True)
class Scale:
    """CPU milliseconds per device and step in a fleet of some size."""

    devices: int
    cpu_milliseconds: float


@dataclass(frozen=True, slots=True)
class Results:
    """All measurements; with one setting only, just its pace.

    Attributes:
        paces: speeds of the round loop.
        cost_per_device_step: in fleets of several sizes.
        start_seconds_beyond_torch: seconds to the first local step, minus those of importing torch.
        peak_bytes_of_10000_devices: memory of a round.
    """

    paces: Sequence[Pace]
    cost_per_device_step: Sequence[Scale] = ()
    start_seconds_beyond_torch: float | None = None
    peak_bytes_of_10000_devices: int | None = None

    def document(self) -> dict[str, Any]:
        """The results as plain values."""
        return asdict(self)

    def show(self, console: Console) -> None:
        """Prints the results as tables."""
        _print_paces(console, self.paces)
        if self.cost_per_device_step:
            _print_scales(console, self.cost_per_device_step)
        if self.start_seconds_beyond_torch is not None:
            seconds = f"{self.start_seconds_beyond_torch:.2f} s"
            console.print(
                f"time to the first local step: {seconds} more than importing torch (goal: below 3)"
            )
        if self.peak_bytes_of_10000_devices is not None:
            peak = f"{self.peak_bytes_of_10000_devices / 2**20:,.0f} MiB"
            console.print(f"peak memory with {MAX_DEVICES:,} devices: {peak} (goal: below 2,048)")


def measure(*, quick: bool, only: str | None = None) -> Results:
    """Runs the benchmark, or the one setting with this model."""
    paces = []
    for setting, repeats, steps in _list_settings(quick):
        if only in (None, setting.model):
            print(f"{setting.name} …", file=sys.stderr)
            paces.append(measure_pace(setting, repeats, steps))
    if only is not None:
        return Results(paces)
    print("fleets of several sizes …", file=sys.stderr)
    scales = measure_scale((64, 1000) if quick else (64, 1000, MAX_DEVICES), 2)
    return Results(paces, scales, measure_startup(2 if quick else 5), measure_peak_memory(MAX_DEVICES))


def _list_settings(quick: bool) -> list[tuple[BenchSetting, int, int]]:
    """Settings with the number of measured rounds and of bare-loop steps between them."""
    if not quick:
        return [(PERCEPTRON, 9, 1600), (SMALL, 9, 250), (RESNET, 2, 200), (LEAF, 2, 200)]
    few = [replace(setting, devices=16, clusters=4, edge_rounds=1) for setting in (RESNET, LEAF)]
    return [(PERCEPTRON, 5, 800), (SMALL, 5, 250), *((setting, 3, 40) for setting in few)]


@contextmanager
def open_timed_rounds(world: World, parameters: SimulationParameters) -> Iterator[Iterator[Round]]:
    """Global rounds of the real loop in a temporary run directory."""
    with (
        TemporaryDirectory() as folder,
        PoolExecutor(world, parameters) as executor,
        create_run(Path(folder) / "run", world.setting, "", ()) as writer,
    ):
        yield _time_rounds(world, executor, writer)


def _time_rounds(world: World, executor: PoolExecutor, writer: RunWriter) -> Iterator[Round]:
    outcomes = simulate(world, executor, initial_state(world), time.perf_counter)
    while True:
        cpu, begin = executor.cpu_seconds(), time.perf_counter()
        outcome = next(outcomes)
        writer.append(outcome.record, outcome.plans)
        steps = int(outcome.plans.steps.sum())
        seconds = time.perf_counter() - begin
        yield Round(steps, seconds, executor.cpu_seconds() - cpu)


def measure_pace(setting: BenchSetting, repeats: int, bare_steps: int) -> Pace:
    """Runs rounds and bare loops in turn; the first round of each is not counted.

    Args:
        setting: what to run.
        repeats: number of rounds that count.
        bare_steps: steps of a bare loop between two rounds.
    """
    world = build_bench_world(setting)
    parameters = build_bench_parameters(setting, world)
    ours: list[Round] = []
    bare: dict[str, list[float]] = {name: [] for name in LOOPS}
    with ExitStack() as stack:
        rounds = stack.enter_context(open_timed_rounds(world, parameters))
        loops = {
            name: stack.enter_context(open_loop(setting, bare_steps)) for name, open_loop in LOOPS.items()
        }
        # Warm-up: caches, workers and lazy initialisation of torch.
        _time_loops(loops)
        next(rounds)
        for _ in range(repeats):
            ours.append(next(rounds))
            for name, seconds in _time_loops(loops).items():
                bare[name].append(1e3 * seconds / bare_steps)
    return _compute_pace(setting, parameters.engine, ours, bare)


def _time_loops(loops: Mapping[str, MeasureSteps]) -> dict[str, float]:
    return {name: loop() for name, loop in loops.items()}


def _compute_pace(
    setting: BenchSetting, engine: str, ours: Sequence[Round], bare: Mapping[str, Sequence[float]]
) -> Pace:
    own = [1e3 * each.seconds / each.steps for each in ours if each.steps]
    medians = {name: statistics.median(values) for name, values in bare.items()}
    return Pace(
        name=setting.name,
        engine=engine,
        milliseconds=statistics.median(own),
        cpu_milliseconds=min(1e3 * each.cpu_seconds / each.steps for each in ours if each.steps),
        bare_milliseconds=medians,
        ratio=min(medians.values()) / statistics.median(own),
        ratio_of_minima=min(min(values) for values in bare.values()) / min(own),
        target=setting.target,
    )


def measure_scale(sizes: Sequence[int], repeats: int, setting: BenchSetting = SMALL) -> list[Scale]:
    """The cost per device and step in fleets of several sizes; all devices participate, fleets take turns.

    Each fleet has eight clusters, and devices hold few samples, so that the data need little memory.
    """
    least: dict[int, float] = {}
    with ExitStack() as stack:
        fleets = {}
        for devices in sizes:
            own = replace(setting, devices=devices, clusters=8, samples=setting.batch, present=None)
            world = build_bench_world(replace(own, local_steps=1))
            parameters = build_bench_parameters(own, world)
            fleets[devices] = stack.enter_context(open_timed_rounds(world, parameters))
            next(fleets[devices])
        for _ in range(repeats):
            for devices, rounds in fleets.items():
                done = next(rounds)
                cost = 1e3 * done.cpu_seconds / done.steps
                least[devices] = min(cost, least.get(devices, cost))
    return [Scale(devices, cost) for devices, cost in least.items()]


class BareLoop:
    """The baseline: a bare PyTorch training loop on random data of a setting, as fast as we can write it.

    It has the same model, batches, augmentation, loss and optimiser as the devices, and nothing else: one
    model, batches drawn in advance, channels-last memory, the fused optimiser. It runs with all cores on one
    batch, with one torch thread in each of several Python threads, and in each of several processes; the
    fastest one counts.

    Args:
        setting: model and data.
        steps: steps per measurement.
        worker: number of this loop; each draws its own batches.
    """

    def __init__(self, setting: BenchSetting, steps: int, worker: int = 0) -> None:
        self._data = make_random_data(setting)
        self._augment = augmentation(setting.augment)
        self._draw = make_generator(SEED, "bare loop", worker)
        module = model_builder(setting.model)(setting.shape, setting.classes)
        self._module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimiser = torch.optim.SGD(self._module.parameters(), 0.01, momentum=0.9, fused=True)
        self._batches = _draw_batches(setting, steps, worker)

    def run(self) -> float:
        """Runs all steps and returns the seconds."""
        begin = time.perf_counter()
        for places in self._batches:
            self._step(places)
        return time.perf_counter() - begin

    def _step(self, places: Tensor) -> None:
        inputs = self._data.train_inputs.index_select(0, places)
        targets = self._data.train_targets.index_select(0, places)
        if self._augment is not None:
            inputs = self._augment(inputs, self._draw)
        loss = F.cross_entropy(self._module(self._data.scale(inputs)), targets)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()


def _draw_batches(setting: BenchSetting, steps: int, worker: int) -> list[Tensor]:
    """Batches of one device after another, as indices into the data."""
    draw = make_generator(SEED, "bare batches", worker)
    batches: list[Tensor] = []
    for device in range(-(-steps // setting.local_steps)):
        rows = draw_batches(setting.samples, setting.batch, setting.local_steps, draw)
        own = rows + device % setting.devices * setting.samples
        batches.extend(torch.from_numpy(row) for row in own)
    return batches[:steps]


@contextmanager
def open_all_cores_loop(setting: BenchSetting, steps: int) -> Iterator[MeasureSteps]:
    """One loop whose operations use all cores."""
    loop = BareLoop(setting, steps)

    def measure() -> float:
        torch.set_num_threads(os.cpu_count() or 1)
        try:
            return loop.run()
        finally:
            # Back to one torch thread, as the rounds between two measurements need it.
            prepare_thread()

    yield measure


@contextmanager
def open_threaded_loops(setting: BenchSetting, steps: int) -> Iterator[MeasureSteps]:
    """One loop per core in this process, one torch thread each."""
    workers = os.cpu_count() or 1
    loops = [BareLoop(setting, steps // workers, worker) for worker in range(workers)]
    with ThreadPoolExecutor(workers, initializer=prepare_thread) as pool:

        def measure() -> float:
            begin = time.perf_counter()
            for each in [pool.submit(loop.run) for loop in loops]:
                each.result()
            return time.perf_counter() - begin

        yield measure


@contextmanager
def open_process_loops(setting: BenchSetting, steps: int) -> Iterator[MeasureSteps]:
    """One loop and one process per core, one torch thread each."""
    workers = os.cpu_count() or 1
    context = get_context("spawn")
    ends: list[Connection] = []
    processes = []
    for worker in range(workers):
        here, there = context.Pipe()
        process = context.Process(
            target=_serve_process, args=(there, setting, steps // workers, worker), daemon=True
        )
        process.start()
        there.close()
        ends.append(here)
        processes.append(process)

    def measure() -> float:
        for end in ends:
            end.send(True)
        return max(float(end.recv()) for end in ends)

    try:
        # Each process reports once it is ready: loading must not count.
        for end in ends:
            end.recv()
        yield measure
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join()


def _serve_process(end: Connection, setting: BenchSetting, steps: int, worker: int) -> None:
    """Main function of a process: runs the loop for every message until the other end is closed."""
    prepare_process()
    prepare_thread()
    loop = BareLoop(setting, steps, worker)
    end.send(True)
    while True:
        try:
            end.recv()
        except EOFError:
            return
        end.send(loop.run())


LOOPS = {
    "all cores on one batch": open_all_cores_loop,
    "threads": open_threaded_loops,
    "processes": open_process_loops,
}


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
