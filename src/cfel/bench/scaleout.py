"""`cfel bench scaleout`: the Ray engine beside threads, two nodes beside one, and what a device costs.

Wall-clock depends on the machine; what counts are ratios between engines that took turns. The first round of
each is not counted: workers load code and data in it.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from cfel.bench.scaleout_child import Engine, Lap, child
from cfel.scaleout import require_ray


@dataclass(frozen=True, slots=True)
class Race:
    """Global rounds of ResNet-20 on several engines, in turn.

    Attributes:
        devices: that took part.
        seconds: of a round, the median, by engine.
        ray_to_threads: speed of Ray on one node over that of threads, the median over pairs of rounds.
        two_nodes_to_one: speed of two nodes with half the cores each over that of one, likewise.
    """

    devices: int
    seconds: Mapping[str, float]
    ray_to_threads: float
    two_nodes_to_one: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a device costs beyond its training, with as little of that as possible.

    Attributes:
        devices: that took part.
        milliseconds: of a core per device: (seconds of updates · cores − CPU seconds of training) / devices.
        training_milliseconds: of CPU per device.
        driver_bytes: peak memory of the driver.
    """

    devices: int
    milliseconds: float
    training_milliseconds: float
    driver_bytes: int


def even_cores() -> int:
    """The machine's cores, an even number so that two nodes can share them."""
    return max(2, (os.cpu_count() or 2) // 2 * 2)


def measure_race(devices: int, clusters: int, edge_rounds: int, repeats: int) -> Race:
    """Threads, Ray, and Ray on two nodes, a round each in turn."""
    require_ray()
    cores = even_cores()
    kinds = {"threads": 0, "ray": 1, "ray, two nodes": 2}
    laps: dict[str, list[float]] = {name: [] for name in kinds}
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(child(Engine("resnet", devices, clusters, edge_rounds, nodes, cores)))
            for name, nodes in kinds.items()
        }
        for number in range(1 + repeats):
            for name, engine in children.items():
                lap = engine.lap()
                if number:
                    laps[name].append(lap.seconds)
    return Race(
        devices,
        {name: statistics.median(values) for name, values in laps.items()},
        _speed(laps["threads"], laps["ray"]),
        _speed(laps["ray"], laps["ray, two nodes"]),
    )


def _speed(reference: Sequence[float], measured: Sequence[float]) -> float:
    return statistics.median(one / two for one, two in zip(reference, measured, strict=True))


def measure_overhead(devices: int, repeats: int) -> Overhead:
    """Rounds of one step with the small model on one node; the one with the least overhead counts."""
    require_ray()
    cores = even_cores()
    with child(Engine("small", devices, 8, 1, 1, cores)) as engine:
        engine.lap()
        laps = [engine.lap() for _ in range(repeats)]

    def overhead(lap: Lap) -> float:
        return 1e3 * (lap.update_seconds * cores - lap.busy_seconds) / devices

    best = min(laps, key=overhead)
    training = 1e3 * best.busy_seconds / devices
    return Overhead(devices, overhead(best), training, max(lap.peak_bytes for lap in laps))


def as_document(race: Race, overheads: Sequence[Overhead]) -> dict[str, Any]:
    """What was measured, as plain values."""
    return {
        "cores": even_cores(),
        "race": asdict(race) | {"seconds": dict(race.seconds)},
        "overhead": [asdict(each) for each in overheads],
    }
