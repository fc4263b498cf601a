"""Clusters that are trained and added up by one worker each: the same log, and when they are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from cfel.experiment import Experiment
from cfel.simulation.executors import ClusterJob, ClusterResult, JobResult, PoolExecutor, is_even, run_cluster
from cfel.simulation.loop import simulate
from cfel.simulation.state import initial_state
from cfel.world import World
from tests.simulation.drive import records, timeless, tiny

FORGETTING = {"local": {"momentum_state": "reset"}, "scheme": {"name": "hcef"}}
SECTIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "mean": {},
    "weights by samples": {"scheme": {"name": "fedavg"}},
    "single updates": {
        "aggregation": {"kind": "trimmed_mean", "trim": 0.4},
        "fleet": {"clusters": [3, 2, 1]},
    },
    "a server's optimiser": {"aggregation": {"optimiser": "fedadam", "learning_rate": 0.01}},
    "few bits": {"compression": {"bits": [4, 8]}},
    "some take part": {"fleet": {"participation": 4}},
    "downloads of differences": {"compression": {"download_theta": 0.2, "download_bits": 8}},
}


class WholeClusters(PoolExecutor):
    """Threads that also train whole clusters."""

    def __init__(self, world: World, experiment: Experiment) -> None:
        super().__init__(world, experiment.resolve(world).simulation)
        self._rules, self.clusters = world.edge_rules, 0

    def can_run_clusters(self, sizes: Sequence[int]) -> bool:
        return is_even(sizes, 1)

    def run_clusters(self, jobs: Sequence[ClusterJob]) -> Iterator[ClusterResult]:
        for each in jobs:
            self.clusters += 1
            answers: Iterator[JobResult] = self.run_updates(each.jobs)
            yield run_cluster(each.model, answers, each.update, self._rules)


@pytest.mark.parametrize("sections", SECTIONS.values(), ids=SECTIONS.keys())
def test_the_log_is_the_same(sections: Mapping[str, Mapping[str, Any]]) -> None:
    experiment = tiny(FORGETTING, **sections)
    world = experiment.build_world()
    with WholeClusters(world, experiment) as executor:
        found = [each.record for each in simulate(world, executor, initial_state(world), lambda: 0.0)]
    assert timeless(found) == timeless(records(experiment))
    assert executor.clusters > 0


def test_a_deadline_is_kept_device_by_device() -> None:
    experiment = tiny(FORGETTING, {"scheme": {"name": "hcef", "deadline_seconds": 200}})
    world = experiment.build_world()
    with WholeClusters(world, experiment) as executor:
        list(simulate(world, executor, initial_state(world), lambda: 0.0))
    assert executor.clusters == 0


@pytest.mark.parametrize(
    ("sizes", "workers", "even"),
    [
        ([5] * 8, 2, True),  # four turns of two
        ([5] * 8, 3, False),  # three turns for 8 of 9 places
        ([5] * 1000, 32, True),  # 32 turns, 24 places left over of 1,024
        ([5] * 8, 16, False),
        ([9, 1, 1, 1], 2, False),  # 9 and 3: 12 of 18
        ([9, 1, 5, 3], 2, True),  # 9 each
        ([], 2, True),
    ],
)
def test_workers_are_kept_busy(sizes: list[int], workers: int, even: bool) -> None:
    assert is_even(sizes, workers) is even
