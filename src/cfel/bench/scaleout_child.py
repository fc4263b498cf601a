"""One engine of `cfel bench scaleout` in its own process: runs a round for every line on standard input.

`python -m cfel.bench.scaleout_child JSON`, where JSON is an `EngineSetting`. Several
children run at the same time and take turns, so that the compared rounds are close in time. Each answer is a
line of JSON.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from cfel.bench.process_memory import read_peak_bytes
from cfel.bench.settings import PERCEPTRON, RESNET, BenchSetting, build_bench_parameters, build_bench_world
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.evaluate import Evaluation
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.scaleout import prepare, ray_executor
from cfel.simulation import Executor, PoolExecutor, initial_state, simulate
from cfel.simulation.executors import Job, JobResult
from cfel.world import World

SETTINGS = {
    "resnet": replace(RESNET, engine="threads"),
    # As little work as a device can have: one step with a small model, and no state to keep.
    "small": replace(
        PERCEPTRON, samples=10, local_steps=1, edge_rounds=1, momentum_state="reset", engine="threads"
    ),
}


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
        peak_bytes: peak memory of the process so far.
    """

    seconds: float
    update_seconds: float
    busy_seconds: float
    peak_bytes: int


class TimedExecutor:
    """An executor that measures the time of its updates."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.update_seconds = 0.0

    def run_estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """See `Executor`."""
        return self._inner.run_estimates(orders)

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Executor`."""
        begin = time.perf_counter()
        yield from self._inner.run_updates(jobs)
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
        assert pipe is not None  # noqa: S101 — opened below
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
    command = [sys.executable, "-m", "cfel.bench.scaleout_child", json.dumps(asdict(engine))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603 — ourselves
        yield ChildProcess(process)
        process.communicate()


def _time_rounds(world: World, executor: Executor, setting: BenchSetting) -> Iterator[RoundTiming]:
    timed = TimedExecutor(executor)
    parameters = build_bench_parameters(setting, world)
    outcomes = simulate(world, timed, parameters, initial_state(world), time.perf_counter)
    while True:
        begin, before = time.perf_counter(), getattr(executor, "busy_seconds", 0.0)
        timed.update_seconds = 0.0
        next(outcomes)
        yield RoundTiming(
            time.perf_counter() - begin,
            timed.update_seconds,
            getattr(executor, "busy_seconds", 0.0) - before,
            read_peak_bytes(),
        )


def main(text: str) -> None:
    """Runs a round for every line on standard input."""
    engine = EngineSetting(**json.loads(text))
    setting = engine.build_setting()
    with ExitStack() as stack:
        world = build_bench_world(setting)
        parameters = replace(build_bench_parameters(setting, world), workers=engine.cores)
        if engine.nodes:
            prepare(None)
            from cfel.scaleout.cluster import start_nodes

            address = stack.enter_context(start_nodes(engine.nodes, engine.cores // engine.nodes))
            executor: Executor = stack.enter_context(ray_executor(world, parameters, address))
        else:
            executor = stack.enter_context(PoolExecutor(world, parameters))
        timings = _time_rounds(world, executor, setting)
        # An empty line of JSON tells the parent that this child is ready.
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            sys.stdout.write(json.dumps(asdict(next(timings))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
