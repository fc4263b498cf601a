"""From what a run has come to, to what the scheme sees and what a device is asked."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control.scheme import Observation
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.rounds.outcome import Spent
from cfel.rounds.parameters import SimulationParameters
from cfel.system import Conditions
from cfel.world import World

MOST_MEDIANS = 1000.0
"""How far above the others' a device's estimates may be. Honest ones on very uneven data come to some 300."""


def wants_estimates(world: World, known: Sequence[Estimates | None]) -> bool:
    """Whether devices are asked for σ² and G² before a plan: while there are none, or always (`fresh`).

    With `reuse` a device's first steps give its own estimates at no cost. Whoever joins later is taken to be
    like the others until then, instead of computing two more gradients.
    """
    return world.local.estimator == "fresh" or all(each is None for each in known)


def observed(
    world: World,
    parameters: SimulationParameters,
    spent: Spent,
    edge_round: int,
    conditions: Conditions,
    known: Sequence[Estimates | None],
) -> Observation:
    """What the scheme sees at the start of an edge round.

    Args:
        world: what is run.
        parameters: which account counts.
        spent: what the run has come to.
        edge_round: r, from 0.
        conditions: of this edge round.
        known: every device's newest estimates.
    """
    sigma2, g2 = known_estimates(known)
    battery = world.fleet.battery_joules
    exchanges = world.scheme.gossip.exchanges_from(edge_round, world.rounds.edge_rounds)
    return Observation(
        global_round=spent.rounds_done,
        edge_round=edge_round,
        rounds=world.rounds,
        conditions=conditions,
        cluster=world.fleet.cluster,
        sigma2=sigma2,
        g2=g2,
        ledger=spent.expected if parameters.accounting == "expected" else spent.realised,
        budget=world.budget,
        backhaul_seconds=world.exchange_seconds * exchanges,
        battery=None if battery is None else np.maximum(battery - spent.spent_joules, 0.0),
        kept_energy=kept_energy(known),
    )


def known_estimates(known: Sequence[Estimates | None]) -> tuple[FloatArray, FloatArray]:
    """Every device's σ² and G²; the mean of the others for those without any, or `beyond_belief`."""
    both = _both(known)
    missing = np.isnan(both[:, 0]) | _doubtful(both)
    both[missing] = 0.0 if missing.all() else both[~missing].mean(axis=0)
    return both[:, 0], both[:, 1]


def beyond_belief(known: Sequence[Estimates | None]) -> list[int]:
    """The devices whose σ² + |G²| is more than `MOST_MEDIANS` times its median over all devices.

    Plans follow the mean, which a single absurd number would rule; the median it cannot move while most
    devices are honest. Those who tell of nothing but zeros (one batch holds all their data) have no say.
    """
    found: list[int] = np.flatnonzero(_doubtful(_both(known))).tolist()
    return found


def _doubtful(both: FloatArray) -> BoolArray:
    sizes = np.minimum(np.abs(both), np.finfo(np.float64).max / 2).sum(axis=1)
    telling = sizes[sizes > 0]
    usual = float(np.median(telling)) if telling.size else math.inf
    # Whoever told nothing is NaN here, and NaN is larger than nothing.
    doubtful: BoolArray = sizes > MOST_MEDIANS * usual
    return doubtful


def _both(known: Sequence[Estimates | None]) -> FloatArray:
    return np.array([(math.nan, math.nan) if each is None else (each.sigma2, each.g2) for each in known])


def kept_energy(known: Sequence[Estimates | None]) -> FloatArray | None:
    """The share of an update's energy in its largest entries, averaged over the devices that told it."""
    told = [each.kept_energy for each in known if each is not None and each.kept_energy]
    return np.mean(told, axis=0) if told else None


def device_weights(world: World, samples: Mapping[int, int]) -> dict[int, float]:
    """The weight of each device within its cluster, from the number of samples it holds."""
    if world.scheme.gossip.weights == "equal":
        return dict.fromkeys(samples, 1.0)
    return {device: float(held) for device, held in samples.items()}


def ordered(
    world: World,
    global_round: int,
    edge_round: int,
    device: int,
    rho: float,
    theta: float,
    model: FlatModel,
) -> DeviceOrder:
    """What a device is asked in one edge round."""
    return DeviceOrder(
        seed=world.seed,
        global_round=global_round,
        edge_round=edge_round,
        device=device,
        rho=rho,
        theta=theta,
        tau=world.rounds.local_steps,
        model=model,
    )
