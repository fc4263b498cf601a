"""Estimates how long a reproduction will take on this machine, before it starts.

It times local training and evaluation of the experiment's own model and data, with all workers busy. Schemes
that skip steps are faster than that, so the estimate is an upper one, for an otherwise idle machine.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cfel.control import Budget
from cfel.experiment import Experiment
from cfel.learning.device_messages import DeviceOrder
from cfel.reproduce.items import PlannedRun
from cfel.rounds.ending import is_over
from cfel.runlog import RunDirectory, holds_run
from cfel.simulation import PoolExecutor, initial_state
from cfel.simulation.executors import Job
from cfel.world import World

DEVICES_TIMED = 4
MOST_STEPS_TIMED = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of this machine with all workers busy.

    Attributes:
        step_seconds: wall time per local step.
        evaluation_seconds: wall time per evaluated model.
    """

    step_seconds: float
    evaluation_seconds: float


def measure_pace(experiment: Experiment) -> Pace:
    """Times a few local steps and an evaluation of an experiment."""
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    tau = min(MOST_STEPS_TIMED, world.setting.rounds.local_steps)
    jobs = [_build_job(world, n, tau) for n in range(min(DEVICES_TIMED, world.setting.fleet.devices))]
    with PoolExecutor(world, parameters) as executor:
        list(executor.run_updates(jobs))  # the first call warms up the workers
        begin = time.perf_counter()
        list(executor.run_updates(jobs))
        trained = time.perf_counter()
        executor.run_evaluations([world.start] * 2, parameters.evaluate_samples)
        tested = time.perf_counter()
    return Pace((trained - begin) / (len(jobs) * tau), (tested - trained) / 2)


def _build_job(world: World, device: int, tau: int) -> Job:
    order = DeviceOrder(
        seed=world.setting.seed,
        global_round=0,
        edge_round=0,
        device=device,
        rho=1.0,
        theta=0.1,
        tau=tau,
        model=world.start,
    )
    return order, initial_state(world).devices[device]


def estimate_seconds(runs: Sequence[PlannedRun], out: Path, pace: Pace) -> float:
    """Seconds that the remaining rounds of all runs will take."""
    return sum(count_rounds_left(run, out) * _estimate_round(run.experiment, pace) for run in runs)


def _estimate_round(experiment: Experiment, pace: Pace) -> float:
    rounds, simulation = experiment.rounds, experiment.simulation
    steps = experiment.fleet.devices * rounds.edge_rounds * rounds.local_steps
    clusters = experiment.fleet.clusters
    models = clusters if isinstance(clusters, int) else len(clusters)
    tests = (1 if simulation.evaluate_on == "mean" else models) / simulation.evaluate_every
    return steps * pace.step_seconds + tests * pace.evaluation_seconds


def count_rounds_left(run: PlannedRun, out: Path) -> int:
    """Global rounds that remain in a run; 0 if it has stopped at a budget or at its target."""
    rounds, path = run.experiment.rounds.global_rounds, out / run.place
    if not holds_run(path):
        return rounds
    directory = RunDirectory.open(path)
    records = directory.records()
    if not records:
        return rounds
    last, fleet = records[-1], directory.fleet()
    budget = Budget(fleet.seconds_budget or math.inf, fleet.joules_budget or math.inf)
    return 0 if is_over(run.experiment.rounds, budget, last) else rounds - last.round
