"""Small experiments driven through the real round loop, and what the tests look at in the end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cfel.arrays import Float32Array, FloatArray
from cfel.experiment import Experiment, parse_experiment
from cfel.experiment.sections import merge
from cfel.learning.device_messages import DeviceOrder
from cfel.plugins import ANY_CODE
from cfel.runlog import WALL_CLOCK_FIELDS, PlanTable, RoundRecord
from cfel.simulation.executors import Job, JobResult, PoolExecutor
from cfel.simulation.loop import simulate
from cfel.simulation.state import RoundOutcome, initial_state
from cfel.world import World

TINY: Mapping[str, Any] = {
    "rounds": {"global": 3, "edge": 2, "local": 3},
    "data": {"beta": 1.0},
    "local": {"learning_rate": 0.05},
    "fleet": {"devices": 6, "clusters": 3, "conditions": {"alpha_joules": 0.15}},
    "scheme": {"name": "hcef"},
    "simulation": {"engine": "threads", "workers": 2},
}


def tiny(*changes: Mapping[str, Any], **sections: Mapping[str, Any] | int) -> Experiment:
    """Six devices in three clusters on the digits, with some sections changed."""
    document: Mapping[str, Any] = TINY
    for change in (*changes, sections):
        document = merge(document, change)
    return parse_experiment({"preset": "demo", **document}, ANY_CODE)


def outcomes(experiment: Experiment, world: World | None = None) -> list[RoundOutcome]:
    """Every round of an experiment."""
    built = world or experiment.build_world()
    parameters = experiment.resolve(built).simulation
    with PoolExecutor(built, parameters) as executor:
        return list(simulate(built, executor, initial_state(built), lambda: 0.0))


def records(experiment: Experiment) -> list[RoundRecord]:
    """The log of an experiment."""
    return [outcome.record for outcome in outcomes(experiment)]


def timeless(lines: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """Records without what differs between two runs of the same experiment."""
    return [
        {key: value for key, value in asdict(line).items() if key not in WALL_CLOCK_FIELDS} for line in lines
    ]


def column(tables: Sequence[PlanTable], name: str) -> FloatArray:
    """One column of the plan tables of all rounds."""
    return np.concatenate([np.asarray(getattr(table, name), dtype=np.float64) for table in tables])


def parameters_of(outcome: RoundOutcome) -> list[Float32Array]:
    """The edge models after a round."""
    return [model.parameters.numpy() for model in outcome.state.models]


class Listening(PoolExecutor):
    """An executor that remembers every order it was given."""

    def __init__(self, world: World, experiment: Experiment) -> None:
        super().__init__(world, experiment.resolve(world).simulation)
        self.orders: list[DeviceOrder] = []

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """As the executor does."""
        self.orders += [order for order, _ in jobs]
        return super().run_updates(jobs)
