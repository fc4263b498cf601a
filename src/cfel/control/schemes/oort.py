"""Oort: asks the devices that are worth most, those with large losses that are fast enough.

Reference: Lai, Zhu, Madhyastha, Chowdhury, "Oort: Efficient Federated Learning via Guided Participant
Selection", OSDI 2021 (arXiv 2010.06081).

Kept: utility = statistical utility × (T/t)^α for devices slower than T, with values beyond the 95th
percentile clipped; a bonus for devices not asked for long; a share ε of exploration among devices never
asked, preferring fast ones, that decays; random choice above a cutoff; a pacer that raises T when utility
falls. Not kept: selection is per cluster, as every edge server needs devices; the statistical utility uses
the mean of the losses (samples × mean loss) where the paper has their root mean square, as that is what
devices report; no device is excluded for good after many rounds. As in the paper, the choice is not corrected
by weights. Every device that is asked takes every step and sends everything; budgets are ignored.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IndexArray
from cfel.control.planning import compute_costs
from cfel.control.scheme import (
    Observation,
    RoundPlan,
    Scheme,
    SchemeParameters,
    State,
    make_empty_plan,
    read_options,
)
from cfel.seeding import make_generator

WINDOW = 20
"""Plans over which the pacer adds up utilities before it compares."""
PACE = 5.0
"""Percentage points by which the pacer raises T."""
CLIP = 95.0
STALENESS = 0.1


@dataclass(frozen=True, slots=True)
class Options:
    """`[scheme.options]` of Oort.

    Attributes:
        share: of a cluster's available devices to ask, in (0, 1]; at least one.
        penalty: α ≥ 0; 0 ignores speed.
        exploration, least_exploration, decay: ε begins at the first, and falls by `decay` per plan.
        cutoff: devices with at least this share of the utility of the last one needed may be chosen.
        threshold: T at first, as a percentile of the devices' seconds.
    """

    share: float = 0.5
    penalty: float = 2.0
    exploration: float = 0.9
    least_exploration: float = 0.2
    decay: float = 0.98
    cutoff: float = 0.95
    threshold: float = 30.0

    def __post_init__(self) -> None:
        validation.check_number("scheme.options.share", self.share, above=0, most=1)
        validation.check_number("scheme.options.penalty", self.penalty, least=0)
        for name in ("exploration", "least_exploration", "decay", "cutoff"):
            validation.check_number(f"scheme.options.{name}", getattr(self, name), least=0, most=1)
        validation.check_number("scheme.options.threshold", self.threshold, least=0, most=100)


def oort(parameters: SchemeParameters) -> Scheme:
    """Selects devices in every edge round."""
    options = read_options(Options, parameters.options)

    def init() -> dict[str, Any]:
        return {"plans": 0, "asked": [], "threshold": options.threshold, "utilities": []}

    def plan(state: State, seen: Observation) -> tuple[RoundPlan, State]:
        devices = len(seen.cluster)
        if not seen.conditions.available.any():
            return make_empty_plan(devices), state
        # When each device was asked last, counted in plans from 1; 0 for never.
        # A fleet may have grown since.
        asked = np.array(state["asked"] + [0] * (devices - len(state["asked"])))
        number = state["plans"] + 1
        seconds, _ = compute_costs(seen, 1.0, 1.0)
        utility = rate(options, seen, seconds, asked, number, state["threshold"])
        chosen = np.zeros(devices, dtype=bool)
        # One stream for all clusters in order, so that a plan is a function of its round.
        generator = make_generator(seen.seed, "oort", seen.global_round, seen.edge_round)
        exploration = max(options.least_exploration, options.exploration * options.decay ** (number - 1))
        for who in _group(seen):
            chosen[_select(options, generator, exploration, who, utility, seconds)] = True
        work = chosen.astype(np.float64)
        gained = float(np.nansum(np.where(chosen, utility, 0.0)))
        threshold, utilities = _pace(state["threshold"], [*state["utilities"], gained])
        return RoundPlan(work, work), {
            "plans": number,
            "asked": np.where(chosen, number, asked).tolist(),
            "threshold": threshold,
            "utilities": utilities,
        }

    return Scheme(init, plan)


def rate(
    options: Options, seen: Observation, seconds: FloatArray, asked: IndexArray, number: int, threshold: float
) -> FloatArray:
    """Utility of every device; NaN for those whose loss is not known yet."""
    present = seen.conditions.available
    if seen.losses is None or not (known := present & np.isfinite(seen.losses) & (asked > 0)).any():
        return np.full(len(seen.cluster), np.nan)
    statistical = np.where(known, seen.losses, np.nan)
    if seen.samples is not None:
        statistical = statistical * seen.samples
    clipped = np.minimum(statistical, np.percentile(statistical[known], CLIP))
    low = float(np.nanmin(clipped))
    # Scaled to [0, 1], so that the bonus means the same at any loss.
    scaled = (clipped - low) / (float(np.nanmax(clipped)) - low or 1.0)
    bonus = np.sqrt(STALENESS * np.log(number) / np.maximum(asked, 1))
    preferred = np.percentile(seconds[present], threshold)
    slower = np.minimum(1.0, preferred / seconds) ** options.penalty
    return np.asarray((scaled + bonus) * slower)


def _group(seen: Observation) -> list[IndexArray]:
    """The available devices of each cluster."""
    ranked = np.argsort(seen.cluster, kind="stable")
    ranked = ranked[seen.conditions.available[ranked]]
    return np.split(ranked, np.searchsorted(seen.cluster[ranked], np.arange(1, seen.clusters)))


def _select(
    options: Options,
    generator: np.random.Generator,
    exploration: float,
    who: IndexArray,
    utility: FloatArray,
    seconds: FloatArray,
) -> IndexArray:
    """The devices of one cluster to ask."""
    if not who.size:
        return who
    wanted = max(1, round(options.share * who.size))
    known: BoolArray = np.isfinite(utility[who])
    fresh, tried = who[~known], who[known]
    explored = min(fresh.size, max(round(exploration * wanted), wanted - tried.size))
    first = _draw(generator, fresh, 1.0 / seconds[fresh], explored)
    left = wanted - explored
    if not left:
        return first
    least = np.sort(utility[tried])[-left] * options.cutoff
    worthy = tried[utility[tried] >= least]
    return np.concatenate([first, _draw(generator, worthy, utility[worthy], left)])


def _draw(generator: np.random.Generator, who: IndexArray, worth: FloatArray, count: int) -> IndexArray:
    """Draws without replacement, with chances that follow the worth."""
    # The largest of u^(1/w) are such a draw, and a worth of zero needs no special case.
    keys = np.log(generator.random(who.size)) / np.maximum(worth, np.finfo(np.float64).tiny)
    return who[np.argsort(-keys, kind="stable")[:count]]


def _pace(threshold: float, utilities: list[float]) -> tuple[float, list[float]]:
    """Raises T when the last window of plans gained less than the one before."""
    if len(utilities) < 2 * WINDOW:
        return threshold, utilities
    before, after = sum(utilities[:WINDOW]), sum(utilities[WINDOW:])
    return (min(100.0, threshold + PACE) if before > after else threshold), utilities[WINDOW:]
