"""One of eight devices sends a scaled-up, well-formed update in every round: who still learns?"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cfel.learning.edge import ScaledUpdate
from cfel.simulation.executors import Job, JobResult, PoolExecutor
from cfel.simulation.loop import simulate
from cfel.simulation.state import initial_state
from tests.simulation.drive import outcomes, tiny


class Poisoned(PoolExecutor):
    """Device 3 turns its update round and sends thirty times as much."""

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """As the executor does, but for device 3."""
        for report, state in super().run_updates(jobs):
            if report.device == 3:
                yield replace(report, update=ScaledUpdate(report.update, -30.0)), state
            else:
                yield report, state


def accuracy(kind: str, poisoned: bool) -> float:
    experiment = tiny(
        rounds={"global": 4, "edge": 3, "local": 5},
        fleet={"devices": 8, "clusters": 1},
        data={"partition": "iid"},
        scheme={"name": "cef"},
        aggregation={"kind": kind},
    )
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    with (Poisoned if poisoned else PoolExecutor)(world, parameters) as executor:
        rounds = list(simulate(world, executor, initial_state(world), lambda: 0.0))
    found = rounds[-1].record.accuracy
    assert found is not None
    return found


def test_a_liar_ruins_the_mean_and_not_the_robust_rules() -> None:
    honest = accuracy("mean", poisoned=False)
    ruined = accuracy("mean", poisoned=True)
    kinds = ("trimmed_mean", "median", "clipped", "krum", "geometric_median")
    robust = {kind: accuracy(kind, poisoned=True) for kind in kinds}
    assert honest > 0.8
    assert ruined < 0.3
    assert all(each > honest - 0.1 for each in robust.values()), (honest, robust)


def test_with_two_devices_each_every_rule_is_the_mean() -> None:
    """Six devices in three clusters: nobody can be left out, so the models are equal to the bit."""
    digests = {
        outcomes(tiny(aggregation={"kind": kind, "clip": 10.0}))[-1].record.model_sha256
        for kind in ("mean", "trimmed_mean", "median", "clipped")
    }
    assert len(digests) == 1
