"""`python -m benchmarks scaleout`: Ray compared with threads, two nodes with one, and the cost of a device.

Wall time depends on the machine, so only ratios between engines that take turns count. The first round of
each engine is ignored, as workers load code and data in it.

Each engine has a process of its own, `python -m benchmarks.scaleout JSON`, where JSON is an `EngineSetting`:
it runs a round for every line on standard input and answers with a line of JSON. Several children take turns,
so that the compared rounds are close in time.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from rich.console import Console

from benchmarks.child import ROOT, read_peak_bytes
from benchmarks.settings import PERCEPTRON, RESNET, BenchSetting, build_bench_parameters, build_bench_world
from cfel.cli.output import new_table, print_table
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.evaluate import Evaluation
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.scaleout import prepare, ray_executor, require_ray
from cfel.simulation.executors import (
    ClusterExecutor,
    ClusterJob,
    ClusterResult,
    Executor,
    Job,
    JobResult,
    PoolExecutor,
)
from cfel.simulation.loop import simulate
from cfel.simulation.state import initial_state
from cfel.world import World

SETTINGS = {
    "resnet": replace(RESNET, engine="threads"),
    # As little work as a device can have: one step with a small model, and no state to keep.
    "small": replace(
        PERCEPTRON, samples=10, local_steps=1, edge_rounds=1, momentum_state="reset", engine="threads"
    ),
}


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """Speed of global rounds of ResNet-20 on several engines.

    Attributes:
        devices: number of devices.
        seconds: median seconds per round, by engine.
        ray_to_threads: speed of Ray on one node relative to threads, the median over pairs of rounds.
        two_nodes_to_one: speed of two nodes with half the cores each relative to one node, likewise.
    """

    devices: int
    seconds: Mapping[str, float]
    ray_to_threads: float
    two_nodes_to_one: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """The cost of a device beyond its training, measured with as little training as possible.

    Attributes:
        devices: number of devices.
        milliseconds: core time per device: (seconds of updates · cores − CPU seconds of training) / devices.
        training_milliseconds: CPU time of training per device.
        driver_milliseconds: CPU time of the driver's process per device, in the whole round.
        driver_bytes: peak memory of the driver.
    """

    devices: int
    milliseconds: float
    training_milliseconds: float
    driver_milliseconds: float
    driver_bytes: int


@dataclass(frozen=True, slots=True)
class Results:
    """All measurements."""

    cores: int
    race: EngineComparison
    overhead: Sequence[Overhead]

    def document(self) -> dict[str, Any]:
        """The results as plain values."""
        return asdict(self)

    def show(self, console: Console) -> None:
        """Prints the results as tables."""
        _print_race(console, self.race)
        _print_overheads(console, self.overhead)


def measure(*, quick: bool, only: None = None) -> Results:  # noqa: ARG001 — it has no parts
    """Runs the benchmark."""
    print("ResNet-20 on threads, on Ray, and on two Ray nodes …", file=sys.stderr)
    race = compare_engines(16, 4, 1, 3) if quick else compare_engines(64, 8, 1, 3)
    overheads = []
    for devices in (500, 2000) if quick else (1000, 10_000):
        print(f"small model on {devices:,} devices …", file=sys.stderr)
        overheads.append(measure_overhead(devices, 3))
    return Results(count_even_cores(), race, overheads)


def count_even_cores() -> int:
    """The cores of this machine, rounded down to an even number so that two nodes can share them."""
    return max(2, (os.cpu_count() or 2) // 2 * 2)


def compare_engines(devices: int, clusters: int, edge_rounds: int, repeats: int) -> EngineComparison:
    """Runs rounds on threads, on Ray and on two Ray nodes, in turn."""
    require_ray()
    cores = count_even_cores()
    node_counts = {"threads": 0, "ray": 1, "ray, two nodes": 2}
    seconds: dict[str, list[float]] = {name: [] for name in node_counts}
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(
                start_child(EngineSetting("resnet", devices, clusters, edge_rounds, nodes, cores))
            )
            for name, nodes in node_counts.items()
        }
        for number in range(1 + repeats):
            for name, engine in children.items():
                timing = engine.run_round()
                if number:
                    seconds[name].append(timing.seconds)
    return EngineComparison(
        devices,
        {name: statistics.median(values) for name, values in seconds.items()},
        _median_speedup(seconds["threads"], seconds["ray"]),
        _median_speedup(seconds["ray"], seconds["ray, two nodes"]),
    )


def _median_speedup(reference: Sequence[float], measured: Sequence[float]) -> float:
    return statistics.median(one / two for one, two in zip(reference, measured, strict=True))


def measure_overhead(devices: int, repeats: int) -> Overhead:
    """Runs rounds of one step with the small model on one node; the round with the least overhead counts."""
    require_ray()
    cores = count_even_cores()
    with start_child(EngineSetting("small", devices, 8, 1, 1, cores)) as engine:
        engine.run_round()
        timings = [engine.run_round() for _ in range(repeats)]

    def overhead(timing: RoundTiming) -> float:
        return 1e3 * (timing.update_seconds * cores - timing.busy_seconds) / devices

    best = min(timings, key=overhead)
    training = 1e3 * best.busy_seconds / devices
    driver = 1e3 * min(timing.driver_seconds for timing in timings) / devices
    most = max(timing.peak_bytes for timing in timings)
    return Overhead(devices, overhead(best), training, driver, most)


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
    table = new_table(
        "devices", "overhead ms", "training ms", "driver ms", "driver MiB", "KiB per extra device"
    )
    for number, each in enumerate(overheads):
        more = "–"
        if number:
            before = overheads[number - 1]
            more = f"{(each.driver_bytes - before.driver_bytes) / (each.devices - before.devices) / 1024:.1f}"
        table.add_row(
            f"{each.devices:,}",
            f"{each.milliseconds:.2f}",
            f"{each.training_milliseconds:.2f}",
            f"{each.driver_milliseconds:.3f}",
            f"{each.driver_bytes / 2**20:,.0f}",
            more,
        )
    print_table(
        console, "Per device with the small model and no device state (goal: overhead below 1 ms)", table
    )


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """What a child runs.

    Attributes:
        setting: a key of `SETTINGS`.
        devices, clusters, edge_rounds: override those of the setting.
        nodes: nodes of the Ray cluster; 0 for threads.
        cores: total number of cores.
    """

    setting: str
    devices: int
    clusters: int
    edge_rounds: int
    nodes: int
    cores: int

    def build_setting(self) -> BenchSetting:
        """The setting with these sizes."""
        sizes = {"devices": self.devices, "clusters": self.clusters, "edge_rounds": self.edge_rounds}
        return replace(SETTINGS[self.setting], **sizes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """Measurements of one global round.

    Attributes:
        seconds: wall time, including planning and gossip.
        update_seconds: part of it until the last report was aggregated.
        busy_seconds: CPU time of local training, all workers together; 0 for threads.
        driver_seconds: CPU time of this process.
        peak_bytes: peak memory of the process so far.
    """

    seconds: float
    update_seconds: float
    busy_seconds: float
    driver_seconds: float
    peak_bytes: int


class TimedExecutor:
    """An executor that measures the time of its updates."""

    def __init__(self, inner: Executor) -> None:
        self._inner, self.workers = inner, inner.workers
        self.update_seconds = 0.0

    def run_estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """See `Executor`."""
        return self._inner.run_estimates(orders)

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Executor`."""
        begin = time.perf_counter()
        yield from self._inner.run_updates(jobs)
        self.update_seconds += time.perf_counter() - begin

    def can_run_clusters(self, sizes: Sequence[int]) -> bool:
        """See `ClusterExecutor`."""
        return isinstance(self._inner, ClusterExecutor) and self._inner.can_run_clusters(sizes)

    def run_clusters(self, jobs: Sequence[ClusterJob]) -> Iterator[ClusterResult]:
        """See `ClusterExecutor`."""
        assert isinstance(self._inner, ClusterExecutor)
        begin = time.perf_counter()
        yield from self._inner.run_clusters(jobs)
        self.update_seconds += time.perf_counter() - begin

    def run_evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """See `Executor`."""
        return self._inner.run_evaluations(models, samples)


class ChildProcess:
    """The parent's handle of a child."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._read()

    def run_round(self) -> RoundTiming:
        """Runs one more round."""
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write("\n")
        pipe.flush()
        return RoundTiming(**self._read())

    def _read(self) -> dict[str, Any]:
        pipe: IO[str] | None = self._process.stdout
        line = "" if pipe is None else pipe.readline()
        if not line:
            raise RuntimeError("a child process ended early; see its output above")
        document: dict[str, Any] = json.loads(line)
        return document


@contextmanager
def start_child(engine: EngineSetting) -> Iterator[ChildProcess]:
    """Starts a child, and ends it at the end of the context."""
    command = [sys.executable, "-m", "benchmarks.scaleout", json.dumps(asdict(engine))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        yield ChildProcess(process)
        process.communicate()


def _time_rounds(world: World, executor: Executor) -> Iterator[RoundTiming]:
    timed = TimedExecutor(executor)
    outcomes = simulate(world, timed, initial_state(world), time.perf_counter)
    while True:
        begin, before = time.perf_counter(), getattr(executor, "busy_seconds", 0.0)
        cpu = time.process_time()
        timed.update_seconds = 0.0
        next(outcomes)
        yield RoundTiming(
            time.perf_counter() - begin,
            timed.update_seconds,
            getattr(executor, "busy_seconds", 0.0) - before,
            time.process_time() - cpu,
            read_peak_bytes(),
        )


@contextmanager
def _start_nodes(nodes: int, cores: int) -> Iterator[str]:
    """Starts a Ray cluster of several nodes with these cores each on this machine; yields its address."""
    prepare(None)
    # What `prepare` does must happen before Ray is imported.
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=cores)
        yield str(cluster.address)
    finally:
        cluster.shutdown()


def serve(text: str) -> None:
    """Runs a round for every line on standard input."""
    engine = EngineSetting(**json.loads(text))
    setting = engine.build_setting()
    with ExitStack() as stack:
        world = build_bench_world(setting)
        parameters = replace(build_bench_parameters(setting, world), workers=engine.cores)
        if engine.nodes:
            address = stack.enter_context(_start_nodes(engine.nodes, engine.cores // engine.nodes))
            executor: Executor = stack.enter_context(ray_executor(world, parameters, address))
        else:
            executor = stack.enter_context(PoolExecutor(world, parameters))
        timings = _time_rounds(world, executor)
        # An empty line of JSON tells the parent that this child is ready.
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            sys.stdout.write(json.dumps(asdict(next(timings))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
