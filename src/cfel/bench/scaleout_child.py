"""One engine of `cfel bench scaleout`, in a process of its own: a round for every line on standard input.

`python -m cfel.bench.scaleout_child JSON`, where JSON is an `Engine`. Several of them are open at a
time and asked in turn, so that what is compared ran a moment apart. Each answer is a line of JSON.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from cfel.bench.child import peak_resident_bytes
from cfel.bench.settings import PERCEPTRON, RESNET, BenchSetting, bench_parameters, bench_world
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.evaluate import Evaluation
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.scaleout import prepare, ray_executor
from cfel.simulation import Executor, PoolExecutor, initial_state, simulate
from cfel.simulation.executors import Answer, Task
from cfel.world import World

SETTINGS = {
    "resnet": replace(RESNET, engine="threads"),
    # As little work as a device can have: one step with a small model, and nothing to remember.
    "small": replace(
        PERCEPTRON, samples=10, local_steps=1, edge_rounds=1, momentum_state="reset", engine="threads"
    ),
}


@dataclass(frozen=True, slots=True)
class Engine:
    """What a child runs.

    Attributes:
        setting: a key of `SETTINGS`.
        devices, clusters, edge_rounds: in place of the setting's.
        nodes: of the Ray cluster; 0 for threads in the child itself.
        cores: in all.
    """

    setting: str
    devices: int
    clusters: int
    edge_rounds: int
    nodes: int
    cores: int

    def built(self) -> BenchSetting:
        """The setting with its sizes."""
        sizes = {"devices": self.devices, "clusters": self.clusters, "edge_rounds": self.edge_rounds}
        return replace(SETTINGS[self.setting], **sizes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Lap:
    """One global round.

    Attributes:
        seconds: by the wall clock, planning and gossip included.
        update_seconds: of that, until the last report was aggregated.
        busy_seconds: of CPU on local training, all workers together; 0 for threads.
        peak_bytes: the process's memory so far.
    """

    seconds: float
    update_seconds: float
    busy_seconds: float
    peak_bytes: int


class Timed:
    """An executor whose updates are timed."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.update_seconds = 0.0

    def estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """See `Executor`."""
        return self._inner.estimates(orders)

    def updates(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """See `Executor`."""
        begin = time.perf_counter()
        yield from self._inner.updates(tasks)
        self.update_seconds += time.perf_counter() - begin

    def evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """See `Executor`."""
        return self._inner.evaluations(models, samples)


class Child:
    """The parent's side: asks for a round and waits for it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._read()

    def lap(self) -> Lap:
        """One more round."""
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101 — opened below
        pipe.write("\n")
        pipe.flush()
        return Lap(**self._read())

    def _read(self) -> dict[str, Any]:
        pipe: IO[str] | None = self._process.stdout
        line = "" if pipe is None else pipe.readline()
        if not line:
            raise RuntimeError("a measured process ended early; what it said is above")
        document: dict[str, Any] = json.loads(line)
        return document


@contextmanager
def child(engine: Engine) -> Iterator[Child]:
    """A child that is ready to begin."""
    command = [sys.executable, "-m", "cfel.bench.scaleout_child", json.dumps(asdict(engine))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603 — ourselves
        yield Child(process)
        process.communicate()


def _laps(world: World, executor: Executor, setting: BenchSetting) -> Iterator[Lap]:
    timed = Timed(executor)
    parameters = bench_parameters(setting, world)
    outcomes = simulate(world, timed, parameters, initial_state(world), time.perf_counter)
    while True:
        begin, before = time.perf_counter(), getattr(executor, "busy_seconds", 0.0)
        timed.update_seconds = 0.0
        next(outcomes)
        yield Lap(
            time.perf_counter() - begin,
            timed.update_seconds,
            getattr(executor, "busy_seconds", 0.0) - before,
            peak_resident_bytes(),
        )


def main(text: str) -> None:
    """Answers every line on standard input with a round."""
    engine = Engine(**json.loads(text))
    setting = engine.built()
    with ExitStack() as stack:
        world = bench_world(setting)
        parameters = replace(bench_parameters(setting, world), workers=engine.cores)
        if engine.nodes:
            prepare(None)
            from cfel.scaleout.cluster import start_nodes

            address = stack.enter_context(start_nodes(engine.nodes, engine.cores // engine.nodes))
            executor: Executor = stack.enter_context(ray_executor(world, parameters, address))
        else:
            executor = stack.enter_context(PoolExecutor(world, parameters))
        laps = _laps(world, executor, setting)
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            sys.stdout.write(json.dumps(asdict(next(laps))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
