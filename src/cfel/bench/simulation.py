"""`cfel bench simulation`: the round loop compared with a bare PyTorch loop.

Wall time depends on the machine and its load, so only ratios between measurements close in time count. A
round includes everything (estimates, solver, training, top-k, aggregation, gossip, digests and the log on
disk) except evaluation and checkpoints.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cfel.bench.bare_loop import LOOPS, MeasureSteps
from cfel.bench.settings import SMALL, BenchSetting, build_bench_parameters, build_bench_world
from cfel.rounds.parameters import SimulationParameters
from cfel.rounds.run_directory import create_run
from cfel.runlog import RunWriter
from cfel.simulation import PoolExecutor, initial_state, simulate
from cfel.world import World


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


@contextmanager
def open_timed_rounds(world: World, parameters: SimulationParameters) -> Iterator[Iterator[Round]]:
    """Global rounds of the real loop in a temporary run directory."""
    with (
        TemporaryDirectory() as folder,
        PoolExecutor(world, parameters) as executor,
        create_run(Path(folder) / "run", world.setting, "", ()) as writer,
    ):
        yield _time_rounds(world, parameters, executor, writer)


def _time_rounds(
    world: World, parameters: SimulationParameters, executor: PoolExecutor, writer: RunWriter
) -> Iterator[Round]:
    outcomes = simulate(world, executor, parameters, initial_state(world), time.perf_counter)
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


def make_document(paces: Sequence[Pace]) -> dict[str, Any]:
    """The speeds of all settings as plain values."""
    return {"paces": [asdict(pace) | {"bare_milliseconds": dict(pace.bare_milliseconds)} for pace in paces]}


def as_document(
    paces: Sequence[Pace], scales: Sequence[Scale], start_seconds: float, peak_bytes: int
) -> dict[str, Any]:
    """The results as plain values."""
    return make_document(paces) | {
        "cost_per_device_step": [asdict(scale) for scale in scales],
        "start_seconds_beyond_torch": start_seconds,
        "peak_bytes_of_10000_devices": peak_bytes,
    }
