"""`cfel bench simulation`: the round loop against a bare PyTorch loop, side by side in one run.

Wall-clock depends on the machine and on what else it does; what counts are ratios between things that ran a
moment apart. A round of ours includes all that a round is: estimates, solver, training, top-k, aggregation,
gossip, digests and the log on disk. Evaluation and checkpoints are apart.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cfel.bench.bare_loop import WAYS, Timed
from cfel.bench.settings import SMALL, BenchSetting, bench_parameters, bench_world
from cfel.rounds.parameters import SimulationParameters
from cfel.rounds.run_directory import create_run
from cfel.runlog import RunWriter
from cfel.simulation import PoolExecutor, initial_state, simulate
from cfel.world import World


@dataclass(frozen=True, slots=True)
class Round:
    """One global round of ours: local steps, and seconds by the wall clock and of CPU, workers included."""

    steps: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """The round loop of a setting beside the bare loop.

    Attributes:
        name: of the setting.
        engine: that its model gets.
        milliseconds: of wall clock per local step, the median over rounds.
        cpu_milliseconds: of CPU per local step, the least over rounds.
        bare_milliseconds: per step of the bare loop, for each way to run it, the median.
        ratio: best bare median over ours; above 1 we are faster.
        ratio_of_minima: the same between the quickest rounds, which the rest of the machine disturbed least.
        target: the least ratio aimed for.
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
    """CPU milliseconds per device-step of a fleet of some size."""

    devices: int
    cpu_milliseconds: float


@contextmanager
def timed_rounds(world: World, parameters: SimulationParameters) -> Iterator[Iterator[Round]]:
    """Global rounds through the real loop, in a run directory that is thrown away."""
    with (
        TemporaryDirectory() as folder,
        PoolExecutor(world, parameters) as executor,
        create_run(Path(folder) / "run", world.setting, "", ()) as writer,
    ):
        yield _rounds(world, parameters, executor, writer)


def _rounds(
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
    """Rounds and bare loops in turn; the first round of each is not counted.

    Args:
        setting: what is run.
        repeats: rounds that count.
        bare_steps: of a bare loop between two rounds.
    """
    world = bench_world(setting)
    parameters = bench_parameters(setting, world)
    ours: list[Round] = []
    bare: dict[str, list[float]] = {name: [] for name in WAYS}
    with ExitStack() as stack:
        rounds = stack.enter_context(timed_rounds(world, parameters))
        loops = {name: stack.enter_context(way(setting, bare_steps)) for name, way in WAYS.items()}
        _once(loops)
        next(rounds)
        for _ in range(repeats):
            ours.append(next(rounds))
            for name, seconds in _once(loops).items():
                bare[name].append(1e3 * seconds / bare_steps)
    return _pace(setting, parameters.engine, ours, bare)


def _once(loops: Mapping[str, Timed]) -> dict[str, float]:
    return {name: loop() for name, loop in loops.items()}


def _pace(
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
    """The cost of a device-step in fleets of several sizes, everybody taking part, interleaved.

    Each fleet has clusters of eight, and devices hold few samples, so that data need no memory to speak of.
    """
    least: dict[int, float] = {}
    with ExitStack() as stack:
        fleets = {}
        for devices in sizes:
            own = replace(setting, devices=devices, clusters=8, samples=setting.batch, present=None)
            world = bench_world(replace(own, local_steps=1))
            parameters = bench_parameters(own, world)
            fleets[devices] = stack.enter_context(timed_rounds(world, parameters))
            next(fleets[devices])
        for _ in range(repeats):
            for devices, rounds in fleets.items():
                done = next(rounds)
                cost = 1e3 * done.cpu_seconds / done.steps
                least[devices] = min(cost, least.get(devices, cost))
    return [Scale(devices, cost) for devices, cost in least.items()]


def paces_document(paces: Sequence[Pace]) -> dict[str, Any]:
    """The settings' paces, as plain values."""
    return {"paces": [asdict(pace) | {"bare_milliseconds": dict(pace.bare_milliseconds)} for pace in paces]}


def as_document(
    paces: Sequence[Pace], scales: Sequence[Scale], start_seconds: float, peak_bytes: int
) -> dict[str, Any]:
    """What was measured, as plain values."""
    return paces_document(paces) | {
        "cost_per_device_step": [asdict(scale) for scale in scales],
        "start_seconds_beyond_torch": start_seconds,
        "peak_bytes_of_10000_devices": peak_bytes,
    }
