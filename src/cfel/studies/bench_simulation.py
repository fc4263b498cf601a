"""`cfel bench simulation`: the round loop against a bare PyTorch loop, side by side in one run.

Wall-clock depends on the machine and on what else it does; what counts are ratios between things that ran a
moment apart. A round of ours includes all that a round is: estimates, solver, training, top-k, aggregation,
gossip, digests and the log on disk. Evaluation and checkpoints are apart.
"""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cfel.learning.exchange import DeviceState
from cfel.learning.estimates import Estimates
from cfel.runlog import RunWriter, describe_environment
from cfel.simulation import PoolExecutor, RunState, SimulationParameters, initial_state, simulate
from cfel.simulation.run import fleet_description
from cfel.studies.bare_loop import WAYS, Timed
from cfel.studies.bench_settings import BenchSetting, bench_parameters, bench_world
from cfel.world import World


@dataclass(frozen=True, slots=True)
class Pace:
    """A setting's round loop beside the bare loop, in local steps per second.

    Attributes:
        name: of the setting.
        engine: that was chosen.
        steps_per_second: median over rounds.
        bare_steps_per_second: of the best way to run the bare loop.
        bare_way: which that was.
        ratio: of the two.
        target: the least ratio aimed for.
    """

    name: str
    engine: str
    steps_per_second: float
    bare_steps_per_second: float
    bare_way: str
    ratio: float
    target: float


@dataclass(frozen=True, slots=True)
class Round:
    """One global round of ours: local steps taken, wall-clock and CPU seconds."""

    steps: int
    seconds: float
    cpu_seconds: float


@contextmanager
def rounds_of(world: World, parameters: SimulationParameters, warm_up: bool = True) -> Iterator[Iterator[Round]]:
    """Global rounds, timed, in a run directory that is thrown away.

    Args:
        world: what is run.
        parameters: of the simulation.
        warm_up: runs one edge round first, in which everybody is there.
    """
    with TemporaryDirectory() as folder, PoolExecutor(world, parameters) as executor:
        state = initial_state(world)
        writer = RunWriter.create(
            Path(folder) / "run",
            experiment_toml="",
            fleet=fleet_description(world),
            environment=describe_environment([], started=""),
        )
        with writer:
            yield _rounds(world, parameters, executor, state, writer)


def _rounds(
    world: World,
    parameters: SimulationParameters,
    executor: PoolExecutor,
    state: RunState,
    writer: RunWriter,
) -> Iterator[Round]:
    outcomes = simulate(world, executor, parameters, state, time.perf_counter)
    while True:
        begin, cpu = time.perf_counter(), time.process_time()
        outcome = next(outcomes)
        writer.append(outcome.record, outcome.plans)
        steps = int(outcome.plans.steps.sum())
        yield Round(steps, time.perf_counter() - begin, time.process_time() - cpu)
