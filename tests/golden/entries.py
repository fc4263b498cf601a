"""All that the golden values use of cfel, in one place: when a module moves, only this file changes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cfel import DataSet, Experiment, RoundProblem, simulate, solve
from cfel.control import SCHEMES, Observation, RoundPlan, Scheme, SchemeParameters, Setting
from cfel.cost import Ledger
from cfel.learning.compressors import BUILTIN as COMPRESSORS
from cfel.learning.local.algorithms import ALGORITHMS
from cfel.learning.packing import pack_update
from cfel.rounds.dry_run import dry_run
from cfel.seeding import draw_uniforms, make_generator, make_key
from cfel.world import World

__all__ = [
    "ALGORITHMS",
    "COMPRESSORS",
    "PLAN_COLUMNS",
    "SCHEMES",
    "DataSet",
    "Experiment",
    "Observation",
    "RoundPlan",
    "RoundProblem",
    "Scheme",
    "SchemeParameters",
    "Setting",
    "draw_uniforms",
    "dry_run",
    "make_generator",
    "make_key",
    "make_observation",
    "make_plan",
    "pack_update",
    "read_clock",
    "read_shares",
    "simulate",
    "solve",
]


PLAN_COLUMNS = ("rho", "theta", "speed", "steps", "seconds", "joules")


def make_plan(rho: NDArray[np.float64], theta: NDArray[np.float64], clock: NDArray[np.float64]) -> RoundPlan:
    """A plan with clocks."""
    return RoundPlan(rho, theta, speed=clock)


def read_clock(plan: RoundPlan) -> NDArray[np.float64] | None:
    """The clocks of a plan."""
    return plan.speed


def read_shares(world: World) -> list[NDArray[np.int64]]:
    """The training samples of each device."""
    return [each.indices for each in world.data]


def make_observation(setting: Setting, edge_round: int, **seen: Any) -> Observation:
    """What a scheme sees in the second global round, with a sixth of the budget spent."""
    clusters = setting.fleet.clusters
    ledger = Ledger(
        setting.budget.seconds / 6, setting.budget.joules / 6, (0.0,) * clusters, elapsed_joules=0.0
    )
    return Observation(
        global_round=1,
        edge_round=edge_round,
        rounds=setting.rounds,
        conditions=setting.conditions(1, edge_round),
        cluster=setting.fleet.cluster,
        ledger=ledger,
        budget=setting.budget,
        gossip_seconds_left=setting.exchange_seconds,
        seed=setting.seed,
        small_batches=setting.small_batches,
        **seen,
    )
