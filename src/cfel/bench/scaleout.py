"""`cfel bench scaleout`: the Ray engine compared with threads, two nodes with one, and the cost of a device.

Wall time depends on the machine, so only ratios between engines that take turns count. The first round of
each engine is ignored, as workers load code and data in it.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from cfel.bench.scaleout_child import EngineSetting, RoundTiming, start_child
from cfel.scaleout import require_ray


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
        driver_bytes: peak memory of the driver.
    """

    devices: int
    milliseconds: float
    training_milliseconds: float
    driver_bytes: int


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
    return Overhead(devices, overhead(best), training, max(timing.peak_bytes for timing in timings))


def as_document(race: EngineComparison, overheads: Sequence[Overhead]) -> dict[str, Any]:
    """The results as plain values."""
    return {
        "cores": count_even_cores(),
        "race": asdict(race) | {"seconds": dict(race.seconds)},
        "overhead": [asdict(each) for each in overheads],
    }
