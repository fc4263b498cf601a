"""A simulation with its run directory: begun, interrupted, resumed at will."""

import time
from collections.abc import Callable
from pathlib import Path

from cfel.runlog import (
    FleetDescription,
    RoundRecord,
    RunDirectory,
    RunWriter,
    describe_environment,
    holds_run,
)
from cfel.simulation.executors import Executor
from cfel.simulation.loop import simulate
from cfel.simulation.parameters import SimulationParameters
from cfel.simulation.state import from_checkpoint, initial_state, to_checkpoint
from cfel.world import World

Progress = Callable[[RoundRecord], None]
"""Told of every finished round."""


def run_in_directory(
    world: World,
    executor: Executor,
    parameters: SimulationParameters,
    path: Path,
    *,
    experiment_toml: str,
    command: list[str],
    resume: bool = False,
    progress: Progress | None = None,
) -> list[RoundRecord]:
    """Runs an experiment to its end and leaves the run directory complete.

    Args:
        world: what is run.
        executor: where devices' work is done.
        parameters: of the simulation.
        path: the run directory.
        experiment_toml: the experiment, resolved.
        command: what was typed, for the record.
        resume: go on with the run that `path` holds, if it holds one.
        progress: told of every round as it is written.

    Returns:
        The records of all rounds, those before a resume included.
    """
    if resume and holds_run(path):
        writer, checkpoint = RunWriter.resume(path)
        state = initial_state(world) if checkpoint is None else from_checkpoint(checkpoint, world)
    else:
        environment = describe_environment(
            command, started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        )
        writer = RunWriter.create(
            path, experiment_toml=experiment_toml, fleet=fleet_description(world), environment=environment
        )
        state = initial_state(world)
    with writer:
        last_saved = state.rounds_done
        for outcome in simulate(world, executor, parameters, state, time.perf_counter):
            writer.append(outcome.record, outcome.plans)
            done = outcome.state.rounds_done
            if parameters.checkpoint_every and done % parameters.checkpoint_every == 0:
                writer.save_checkpoint(to_checkpoint(outcome.state))
                last_saved = done
            if progress is not None:
                progress(outcome.record)
            state = outcome.state
        if last_saved < state.rounds_done:
            writer.save_checkpoint(to_checkpoint(state))
        writer.wait()
    return list(RunDirectory.open(path).records())


def fleet_description(world: World) -> FleetDescription:
    """Clusters, backhaul and budgets, as a report needs them."""
    return FleetDescription(
        cluster=tuple(world.fleet.cluster.tolist()),
        edges=tuple(world.backhaul.edges),
        mixing=tuple(tuple(row) for row in world.backhaul.weights.tolist()),
        seconds_budget=world.budget.seconds,
        joules_budget=world.budget.joules,
    )
