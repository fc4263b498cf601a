"""A simulation that the caller drives: one global round per step, nothing written to disk."""

import time
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from torch import nn

from cfel.api.results import tabulate_plan
from cfel.api.run_options import RunOptions
from cfel.api.runs import open_executor
from cfel.errors import InputError
from cfel.experiment import Experiment
from cfel.rounds.edge_models import mean_model
from cfel.runlog import RoundRecord
from cfel.simulation import RoundOutcome, initial_state, simulate


class Simulation:
    """An experiment, simulated round by round while the caller iterates over its records.

    `plans` and `model` show the last round that was yielded. Iterating again starts again.

    Args:
        experiment: what is run.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._world = experiment.build_world()
        self._last: RoundOutcome | None = None

    def __iter__(self) -> Iterator[RoundRecord]:
        world = self._world
        parameters = self.experiment.resolve(world).simulation
        with open_executor(world, parameters, RunOptions()) as executor:
            rounds = simulate(world, executor, parameters, initial_state(world), time.perf_counter)
            # A caller may stop early; the work that is under way must end before its executor does.
            with closing(rounds):  # type: ignore[type-var]
                for outcome in rounds:
                    self._last = outcome
                    yield outcome.record

    @property
    def plans(self) -> pa.Table:
        """One row per edge round and device of the last round: orders, conditions and costs."""
        return tabulate_plan(self._outcome().plans)

    def model(self, edge: int | None = None) -> nn.Module:
        """The model after the last round, in evaluation mode: one edge server's, or the consensus of all."""
        models = dict(enumerate(self._outcome().state.models))
        if edge is not None and edge not in models:
            raise InputError(f"edge = {edge}: there are edge servers 0 to {len(models) - 1}")
        flat = self._world.task.build()
        flat.load(mean_model(self._world.setting.fleet.sizes, models) if edge is None else models[edge])
        return flat.module.eval()

    def _outcome(self) -> RoundOutcome:
        if self._last is None:
            raise InputError("simulate: no round has been simulated yet; iterate first")
        return self._last
